"""Experts in a temporary file: the same bits, what was read of it and found in memory, and what is refused."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pellucid import LLM, SamplingParams
from pellucid.backends.choice import make_backend
from pellucid.backends.cpu.backend import CpuBackend
from pellucid.inputs.config import EngineConfig
from pellucid.loading.open_model import open_stored_model
from pellucid.memory.memory_plan import check_weights_fit, plan_weights
from pellucid.observing.event_bus import Level
from pellucid.observing.events import Step
from support.checkpoints import write_checkpoint
from support.decoders import load_decoder
from support.decoding import prompt_logits

PROMPT = list(range(10, 30))


@pytest.mark.parametrize("family", ["olmoe", "gpt-oss"])
@pytest.mark.parametrize("quantization", ["none", "int4"])
def test_the_same_logits(family: str, quantization: str, tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, family)
    logits = []
    for maps_experts in (False, True):
        backend = CpuBackend(num_threads=2, maps_experts=maps_experts)
        decoder, config = load_decoder(path, backend, quantization=quantization)
        compiled = backend.compile(decoder, config)
        logits.append(prompt_logits(compiled, config, backend, PROMPT))
    assert (logits[0] == logits[1]).all()
    reads = backend.weights.expert_reads
    assert reads is not None
    assert reads.found == reads.read > 0  # a file that has just been written is in memory


def test_only_what_is_chosen_is_read(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, "olmoe")
    llm = LLM(path, experts="mapped", skip_tokenizer_init=True, num_threads=1)
    reads = llm.engine.model.backend.weights.expert_reads
    assert reads is not None and reads.read == 0
    llm.generate([[5]], SamplingParams(max_tokens=1))  # one row, once
    reads = llm.engine.model.backend.weights.expert_reads
    experts = llm.engine.model.config.layers[0].experts
    assert reads is not None and experts is not None
    all_bytes = llm.engine.model.decoder.step_weights.expert_bytes
    assert reads.read == all_bytes * experts.num_chosen // experts.num_experts


@pytest.mark.parametrize(
    "draw", [{"temperature": 0}, {"seed": 1}, {"logprobs": 1}, {"typical_p": 0.9, "seed": 1}]
)
def test_a_step_tells_the_bytes_of_the_experts_that_it_read(
    draw: dict[str, Any], tmp_path: Path
) -> None:
    """Drawn natively or by the sampler."""
    path = write_checkpoint(tmp_path, "olmoe")
    llm = LLM(path, skip_tokenizer_init=True, num_threads=1)
    steps: list[Step] = []
    llm.engine.events.subscribe(
        lambda record: isinstance(record.event, Step) and steps.append(record.event), Level.STEP
    )
    llm.generate([[5]], SamplingParams(max_tokens=3, ignore_eos=True, **draw))
    weights, experts = (
        llm.engine.model.decoder.step_weights,
        llm.engine.model.config.layers[0].experts,
    )
    assert experts is not None
    read = weights.expert_bytes * experts.num_chosen // experts.num_experts  # of one row
    plan, config = llm.engine.memory_plan, llm.engine.config
    position = plan.bytes_per_block // config.block_size
    assert [step.kv_write_bytes for step in steps] == [position] * 3
    assert [step.w_bytes for step in steps] == [weights.num_bytes(with_head=True) + read] * 3


def test_models_without_experts_are_refused(tmp_path: Path) -> None:
    config = open_stored_model(write_checkpoint(tmp_path, "llama")).config
    with pytest.raises(ValueError, match="experts='mapped': LlamaForCausalLM has no experts"):
        make_backend(EngineConfig(experts="mapped"), config)


def test_numpy_is_refused(tmp_path: Path) -> None:
    config = open_stored_model(write_checkpoint(tmp_path, "olmoe")).config
    with pytest.raises(ValueError, match="experts='mapped': needs backend='cpu'"):
        make_backend(EngineConfig(experts="mapped", backend="numpy"), config)


def test_a_directory_that_takes_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    with pytest.raises(ValueError, match=r"experts=.mapped.: /nowhere: .*TMPDIR names another"):
        CpuBackend(maps_experts=True)


def test_weights_larger_than_memory_may_be_mapped(tmp_path: Path) -> None:
    model = open_stored_model(write_checkpoint(tmp_path, "olmoe"))
    in_memory, mapped = CpuBackend(), CpuBackend(maps_experts=True)
    all_weights = plan_weights(model, in_memory.weights.itemsize, "none")
    available = plan_weights(
        model, in_memory.weights.itemsize, "none", with_experts=False
    ).while_loading
    assert available < all_weights.total
    assert check_weights_fit(model, mapped, "none", available).while_loading == available
    with pytest.raises(ValueError, match=r"experts='mapped' \(\S+ \S+, and the experts on disk\)"):
        check_weights_fit(model, in_memory, "none", available)
    smaller = plan_weights(model, in_memory.weights.itemsize, "int8", with_experts=False)
    with pytest.raises(ValueError, match=r"quantization='int8' \("):
        check_weights_fit(model, mapped, "none", smaller.while_loading)


def test_counts_are_of_the_steps_alone() -> None:
    reads = CpuBackend(maps_experts=True).weights.expert_reads
    assert reads is not None and np.array_equal([reads.size, reads.read, reads.found], [0, 0, 0])
