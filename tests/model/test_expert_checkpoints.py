"""Checkpoints with experts: every layout gives the same weights, and what is wrong is refused by name."""

import json
import re
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Type
from gguf.quants import dequantize, quantize

from pellucid.backends.cpu.backend import CpuBackend
from pellucid.backends.numpy.backend import NumpyBackend
from pellucid.loading.open_model import open_stored_model
from pellucid.memory.memory_plan import plan_weights
from support.checkpoints import Weights, write_checkpoint
from support.decoders import load_decoder
from support.decoding import prompt_logits
from support.gguf_files import write_gguf
from support.recording_backend import RecordingBackend
from support.refusals import check_refusals

OPS = NumpyBackend()
PROMPT = list(range(10, 40))
EXPERT = "model.layers.0.mlp.experts.3.up_proj.weight"


def put_together(weights: Weights) -> None:
    """One tensor for the matrices of all experts of a layer."""
    for layer in range(3):
        for kind in ("gate_proj", "up_proj", "down_proj"):
            block = f"model.layers.{layer}.mlp.experts"
            own = [weights.pop(f"{block}.{expert}.{kind}.weight") for expert in range(7)]
            weights[f"{block}.{kind}.weight"] = np.stack(own)


def stack(weights: Weights, is_transposed: bool) -> None:
    """All experts of a layer in one tensor, gate and up joined."""
    names = sorted({name.split(".experts.")[0] for name in weights if ".experts." in name})
    for block in names:
        count = len(
            [name for name in weights if re.fullmatch(rf"{block}\.experts\.\d+\.up.*", name)]
        )
        gate, up, down = (
            np.stack([weights.pop(f"{block}.experts.{e}.{x}_proj.weight") for e in range(count)])
            for x in ("gate", "up", "down")
        )
        for name, tensor in (("gate_up", np.concatenate((gate, up), axis=1)), ("down", down)):
            stored = tensor.swapaxes(1, 2) if is_transposed else tensor
            weights[f"{block}.experts.{name}_proj"] = np.ascontiguousarray(stored)


STACKED = ("qwen3-moe", "qwen2-moe", "qwen3.5-moe", "qwen3-next")


# OLMoE's are square, where nothing tells one way from the other.
@pytest.mark.parametrize(
    ("family", "is_transposed"), [*product(STACKED, (False, True)), ("olmoe", False)]
)
def test_stacks_of_joined_experts(family: str, is_transposed: bool, tmp_path: Path) -> None:
    """As Qwen3.5 is published, and Qwen3-VL, whose stacks are [experts, in, out]."""
    apart, stacked = RecordingBackend(), RecordingBackend()
    load_decoder(write_checkpoint(tmp_path / "apart", family), apart)
    edit: Callable[[Weights], None] = partial(stack, is_transposed=is_transposed)
    load_decoder(write_checkpoint(tmp_path / "stacked", family, edit_weights=edit), stacked)
    for array, expected in zip(stacked.arrays, apart.arrays, strict=True):
        np.testing.assert_array_equal(array, expected)


def test_experts_apart_and_together_are_the_same(tmp_path: Path) -> None:
    apart = write_checkpoint(tmp_path / "apart", "olmoe")
    together = write_checkpoint(tmp_path / "together", "olmoe", edit_weights=put_together)
    logits = [prompt_logits(*load_decoder(each, OPS), OPS, PROMPT) for each in (apart, together)]
    assert (logits[0] == logits[1]).all()


@pytest.mark.parametrize("block_type", [Type.Q8_0, Type.Q4_0])
def test_blocks_of_experts_are_read_expert_by_expert(block_type: Type, tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 32}
    directory = write_checkpoint(tmp_path, "olmoe", config_overrides=sizes)
    stored = RecordingBackend()
    load_decoder(directory, stored)
    read = RecordingBackend()
    file = write_gguf(tmp_path / "model.gguf", directory, matrix_type=block_type)
    load_decoder(file, read)
    experts = [
        (ours, theirs)
        for ours, theirs in zip(read.arrays, stored.arrays, strict=True)
        if theirs.shape in ((32, 64), (64, 32))
    ]
    assert len(experts) == 3 * 3 * 7
    for ours, theirs in experts:
        expected = dequantize(quantize(theirs.astype(np.float32), block_type), block_type)
        np.testing.assert_array_equal(ours.dequantize(), expected)


@pytest.mark.parametrize("quantization", ["none", "int4"])
def test_the_memory_plan_counts_all_experts(quantization: str, tmp_path: Path) -> None:
    apart = write_checkpoint(tmp_path / "apart", "olmoe")
    together = write_checkpoint(tmp_path / "together", "olmoe", edit_weights=put_together)
    plans = [
        plan_weights(open_stored_model(each), CpuBackend().weights.itemsize, quantization)
        for each in (apart, together)
    ]
    assert plans[0].total == plans[1].total


WRONG_TENSORS: list[Any] = [
    lambda weights: weights.pop(EXPERT),
    lambda weights: weights.update({EXPERT: np.zeros((32, 63), np.float32)}),
    lambda weights: weights["model.layers.1.mlp.gate.weight"].fill(np.nan),
    lambda weights: weights.update(
        {"model.layers.2.mlp.experts.7.up_proj.weight": np.zeros((32, 64), np.float32)}
    ),
]


def test_wrong_tensors_are_named(tmp_path: Path) -> None:
    def load_edited(edit: Any) -> None:
        load_decoder(write_checkpoint(tmp_path, "olmoe", edit_weights=edit), OPS)

    check_refusals("expert_tensor", WRONG_TENSORS, load_edited, name=lambda _: "", hidden=tmp_path)


WRONG_FACTS: list[tuple[str, dict[str, Any]]] = [
    ("olmoe", {"num_experts_per_tok": 0}),
    ("olmoe", {"num_experts_per_tok": 8}),
    ("olmoe", {"num_experts": 10**9}),
    ("olmoe", {"num_experts": None}),
    ("olmoe", {"clip_qkv": 8.0}),
    ("mixtral", {"num_local_experts": -1}),
    ("gpt-oss", {"num_experts_per_tok": 0}),
    ("gpt-oss", {"num_local_experts": 1 << 40}),
    ("gpt-oss", {"sliding_window": 0}),
    ("gpt-oss", {"swiglu_limit": 8.0}),
    ("gpt-oss", {"layer_types": ["linear_attention"] * 4}),
    ("lfm2-moe", {"num_experts_per_tok": 0}),
    ("qwen3.5-moe", {"shared_expert_intermediate_size": 0}),
    ("gemma4-moe", {"top_k_experts": 0}),
    ("qwen3-moe", {"mlp_only_layers": [1.5]}),
    ("qwen3-moe", {"decoder_sparse_step": 0}),
    ("qwen3-moe", {"moe_intermediate_size": "wide"}),
]


def test_wrong_facts_are_named(tmp_path: Path) -> None:
    def open_with(case: tuple[str, dict[str, Any]]) -> None:
        family, changes = case
        directory = write_checkpoint(tmp_path / family, family)
        config = json.loads((directory / "config.json").read_text())
        (directory / "config.json").write_text(json.dumps(config | changes))
        open_stored_model(directory)

    check_refusals("expert_fact", WRONG_FACTS, open_with, hidden=tmp_path)
