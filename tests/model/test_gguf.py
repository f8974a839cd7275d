"""GGUF files: the same model as the checkpoint that they were made from, and files that are refused."""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter
from gguf.constants import GGML_QUANT_SIZES, GGUFValueType, Keys
from gguf.constants import GGMLQuantizationType as Type
from gguf.quants import dequantize, quantize
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid import LLM, SamplingParams, loaded_model
from pellucid.backends.cpu.backend import CpuBackend
from pellucid.backends.joined_matrix import JoinedMatrix
from pellucid.backends.numpy.backend import NumpyBackend
from pellucid.backends.quantization.formats import (
    FORMATS,
    INT4,
    INT4_K,
    INT4_K16,
    INT4_MIN,
    INT4_S16,
    INT5_K,
    INT6_K16,
    INT8,
    INT8_MIN,
    IQ4_NL,
    IQ4_XS,
    MXFP4,
)
from pellucid.backends.quantization.matrix import QuantizedMatrix
from pellucid.backends.quantization.weights import quantize_matrix
from pellucid.facts.model_config import GatedDeltaNetConfig, LongRopeScaling, ModelConfig
from pellucid.loading import gguf_blocks
from pellucid.loading.gguf_checkpoint import GgufCheckpoint
from pellucid.loading.gguf_config import read_gguf_config, read_gguf_metadata
from pellucid.loading.gguf_file import GgufFile
from pellucid.loading.gguf_model import FACT_TENSORS
from pellucid.loading.gguf_types import TensorKind
from pellucid.loading.open_model import open_stored_model
from pellucid.loading.weights_identity import weights_identity
from pellucid.models.gguf_metadata import with_widths_of_tensors
from pellucid.text.tokenizer import Tokenizer
from support.checkpoints import write_checkpoint
from support.decoders import load_decoder
from support.decoding import prompt_logits
from support.gguf_files import (
    GGUF_FAMILIES,
    GGUF_OVERRIDES,
    finish,
    order_v_heads_as_llama_cpp,
    write_gguf,
)
from support.published_configs import facts_line
from support.recording_backend import RecordingBackend
from support.refusals import check_refusals

OPS = NumpyBackend()
OPS_IN_FLOATS = NumpyBackend(quantize_activations=False)
PROMPT = list(range(10, 50))
FORMATS_OF_TYPES = {
    Type.Q8_0: INT8,
    Type.Q5_0: INT8,
    Type.MXFP4: MXFP4,
    Type.IQ4_NL: IQ4_NL,
    Type.Q4_0: INT4,
    Type.Q4_1: INT4_MIN,
    Type.Q4_K: INT4_K,
    Type.Q5_1: INT8_MIN,
    Type.Q5_K: INT5_K,
    Type.Q2_K: INT4_K16,
    Type.Q3_K: INT4_S16,
    Type.Q6_K: INT6_K16,
    Type.IQ4_XS: IQ4_XS,
}
WRITABLE = (Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1)  # by the gguf library


def write_both(
    directory: Path, family: str = "llama", *, dtype: str = "float32", **options: Any
) -> Path:
    """A checkpoint in `directory` and, in there, model.gguf of the same weights."""
    write_checkpoint(directory, family, dtype=dtype, config_overrides=GGUF_OVERRIDES.get(family))
    return write_gguf(directory / "model.gguf", directory, **options)


# -- what is the same ------------------------------------------------------------------------------


@pytest.mark.parametrize("family", GGUF_FAMILIES)
def test_same_logits_as_the_checkpoint(family: str, tmp_path: Path) -> None:
    file = write_both(tmp_path, family)
    if family in ("qwen3.5", "qwen3.5-moe"):
        order_v_heads_as_llama_cpp(tmp_path)
    ours, config = load_decoder(file, OPS)
    theirs, their_config = load_decoder(tmp_path, OPS)
    actual = prompt_logits(ours, config, OPS, PROMPT)
    expected = prompt_logits(theirs, their_config, OPS, PROMPT)
    assert (actual == expected).all()
    assert np.ptp(actual) > 1


@pytest.mark.parametrize("family", sorted(set(GGUF_FAMILIES) - {"llama3"}))
def test_same_facts_as_config_json(family: str, tmp_path: Path) -> None:
    file = write_both(tmp_path, family)
    ours, theirs = (open_stored_model(path).config for path in (file, tmp_path))
    assert set(ours.eos_token_ids) == set(theirs.eos_token_ids)
    layers = []
    for our_layer, layer in zip(ours.layers, theirs.layers, strict=True):
        our, their = our_layer.attention, layer.attention
        if isinstance(layer.recurrence, GatedDeltaNetConfig):
            layer = replace(
                layer, recurrence=replace(layer.recurrence, tiled=family != "qwen3-next")
            )
        if their is None:
            layers.append(layer)
            continue
        assert our.scale == pytest.approx(their.scale, rel=1e-7)
        their = replace(their, scale=our.scale)
        if their.rope is not None and our.rope.theta == pytest.approx(their.rope.theta, rel=1e-7):
            their = replace(their, rope=replace(their.rope, theta=our.rope.theta))  # of an f32
        if their.rope is not None and isinstance(their.rope.scaling, LongRopeScaling):
            factor = their.rope.scaling.attention_factor
            assert our.rope.scaling.attention_factor == pytest.approx(factor)
            their = replace(their, rope=our.rope)
        layers.append(replace(layer, attention=their))
    theirs = replace(theirs, layers=tuple(layers), eos_token_ids=ours.eos_token_ids)
    if family == "granite-4":  # the converter calls it by what it computes
        theirs = replace(theirs, architecture="GraniteForCausalLM")
    assert ours == theirs


def test_layers_that_draft_are_left_out(tmp_path: Path) -> None:
    def add_drafting_layer(writer: GGUFWriter) -> None:
        writer.kv_data[0]["qwen35.block_count"].value = 5
        writer.add_nextn_predict_layers(1)
        writer.add_tensor("blk.4.attn_norm.weight", np.ones(64, np.float32))
        writer.add_tensor("blk.4.nextn.eh_proj.weight", np.ones((64, 128), np.float32))

    file = write_both(tmp_path, "qwen3.5", edit=add_drafting_layer)
    order_v_heads_as_llama_cpp(tmp_path)
    ours, theirs = (load_decoder(path, OPS) for path in (file, tmp_path))
    assert ours[1].num_layers == 4
    actual, expected = (prompt_logits(*each, OPS, PROMPT) for each in (ours, theirs))
    assert (actual == expected).all()


def rename_tensors(writer: GGUFWriter, renamed: Callable[[str], str]) -> None:
    [tensors] = writer.tensors
    writer.tensors[:] = [{renamed(name): info for name, info in tensors.items()}]


def experts_apart(writer: GGUFWriter) -> None:
    """A tensor for each expert, as in the first files of Mixtral."""
    [tensors] = writer.tensors
    for name, info in list(tensors.items()):
        if "_exps." in name:
            del tensors[name]
            for expert, matrix in enumerate(info.tensor):
                writer.add_tensor(
                    name.replace("_exps.", f".{expert}."), np.ascontiguousarray(matrix)
                )


def gate_and_up_joined(writer: GGUFWriter) -> None:
    [tensors] = writer.tensors
    for name in [name for name in tensors if "_gate_exps." in name]:
        parts = [tensors.pop(name.replace("gate", part)).tensor for part in ("gate", "up")]
        writer.add_tensor(name.replace("gate", "gate_up"), np.concatenate(parts, axis=1))


def gate_and_up_apart(writer: GGUFWriter) -> None:
    [tensors] = writer.tensors
    for name in [name for name in tensors if "_gate_up_exps." in name]:
        halves = np.split(tensors.pop(name).tensor, 2, axis=1)
        for part, half in zip(("gate", "up"), halves, strict=True):
            writer.add_tensor(name.replace("gate_up", part), np.ascontiguousarray(half))


def leave_widths_to_the_tensors(writer: GGUFWriter) -> None:
    """Of experts, as Ollama's converter does."""
    [facts] = writer.kv_data
    for key in [key for key in facts if ".expert_" in key and key.endswith("feed_forward_length")]:
        del facts[key]


def projections_joined(writer: GGUFWriter) -> None:
    """q, k, v and the gate of each of two k-heads in one tensor, as in the first files of Qwen3-Next."""
    [tensors] = writer.tensors
    for name in [name for name in tensors if name.endswith("attn_qkv.weight")]:
        q, k, v = np.split(tensors.pop(name).tensor, np.cumsum([2 * 24, 2 * 24]))
        gate = tensors.pop(name.replace("qkv", "gate")).tensor
        heads = zip(*(np.split(part, 2) for part in (q, k, v, gate)), strict=True)
        joined = np.concatenate([part for head in heads for part in head])
        writer.add_tensor(name.replace("attn_qkv", "ssm_in"), joined)


def rename_architecture(writer: GGUFWriter, name: str) -> None:
    [facts] = writer.kv_data
    theirs = facts["general.architecture"].value
    facts["general.architecture"].value = name
    for key in [key for key in facts if key.startswith(f"{theirs}.")]:
        facts[key.replace(theirs, name, 1)] = facts.pop(key)


def kv_heads_of_layers(writer: GGUFWriter) -> None:
    del writer.kv_data[0]["qwen35.attention.head_count_kv"]
    writer.add_array("qwen35.attention.head_count_kv", [0, 0, 0, 2])
    writer.kv_data[0]["qwen35.full_attention_interval"].value = 2  # what the kv-heads say wins


def norm_of_output(writer: GGUFWriter) -> None:
    rename_tensors(writer, lambda name: name.replace("token_embd_norm", "output_norm"))


def what_stands_for_none(writer: GGUFWriter) -> None:
    writer.add_string("llama.rope.scaling.type", "")
    writer.add_float32("llama.rope.scaling.factor", 0.0)
    writer.add_float32("llama.rope.scaling.yarn_beta_fast", 0.0)
    writer.add_uint32("llama.rope.scaling.original_context_length", 0)
    writer.add_uint32("llama.attention.head_dim", 16)


def recurrent_layers(writer: GGUFWriter) -> None:
    writer.add_array("qwen35.attention.recurrent_layers", [True, True, True, False, True])
    writer.kv_data[0]["qwen35.full_attention_interval"].value = 3
    writer.kv_data[0]["qwen35.block_count"].value = 5
    writer.add_nextn_predict_layers(1)
    writer.add_tensor("blk.4.nextn.eh_proj.weight", np.ones((64, 128), np.float32))


@pytest.mark.parametrize(
    ("family", "edit"),
    [
        ("mixtral", experts_apart),
        *(
            (family, gate_and_up_joined)
            for family in ("qwen3-moe", "lfm2-moe", "qwen2-moe", "qwen3-vl-moe", "granite-moe")
        ),
        *((family, gate_and_up_joined) for family in ("olmoe", "mixtral", "qwen3-next")),
        ("qwen3-next", projections_joined),
        *(
            (family, leave_widths_to_the_tensors)
            for family in ("qwen2-moe", "qwen3-moe", "qwen3-vl-moe", "qwen3.5-moe", "lfm2-moe")
        ),
        ("qwen2.5-vl", lambda w: rename_architecture(w, "qwen25vl")),
        ("gemma4-moe", gate_and_up_apart),
        (
            "gemma4-moe",
            lambda w: rename_tensors(
                w,
                lambda name: name.replace("down_exps.scale", "gate_inp.per_expert_scale"),
            ),
        ),
        ("qwen3.5", kv_heads_of_layers),
        ("qwen3.5", recurrent_layers),
        (
            "qwen3.5",
            lambda w: rename_tensors(w, lambda name: name.replace("ssm_dt.bias", "ssm_dt")),
        ),
        *((family, norm_of_output) for family in ("lfm2", "lfm2-moe")),
        (
            "gpt-oss",
            lambda w: rename_tensors(
                w,
                lambda name: (
                    name.replace("attn_output", "attn_out")
                    .replace("attn_sinks.weight", "attn_sinks")
                    .replace("post_attention_norm", "ffn_norm")
                ),
            ),
        ),
        ("qwen2", lambda w: w.add_array("qwen2.feed_forward_length", [96] * 3)),
        ("llama", what_stands_for_none),
    ],
)
def test_the_same_weights_as_other_converters_write_them(
    family: str, edit: Callable[[GGUFWriter], None], tmp_path: Path
) -> None:
    usual = load_decoder(write_both(tmp_path / "usual", family), OPS)
    other = load_decoder(write_both(tmp_path / "other", family, edit=edit), OPS)
    assert other[1] == usual[1]
    expected, actual = (
        prompt_logits(decoder, config, OPS, PROMPT) for decoder, config in (usual, other)
    )
    assert (actual == expected).all()


def test_granites_hybrids_of_attention_alone(tmp_path: Path) -> None:
    usual = open_stored_model(write_both(tmp_path / "usual", "granite-4"))
    assert usual.notes == ("left out: keys of other models (6 keys)",)
    file = write_both(
        tmp_path / "hybrid", "granite-4", edit=lambda w: rename_architecture(w, "granitehybrid")
    )
    theirs, _ = load_decoder(tmp_path / "usual", OPS)
    ours, config = load_decoder(file, OPS)
    assert config == replace(usual.config, architecture="GraniteMoeHybridForCausalLM")
    actual, expected = (prompt_logits(each, config, OPS, PROMPT) for each in (ours, theirs))
    assert (actual == expected).all()

    def unrotated(writer: GGUFWriter) -> None:
        rename_architecture(writer, "granitehybrid")
        writer.kv_data[0]["granitehybrid.rope.scaling.finetuned"].value = False

    without = open_stored_model(write_both(tmp_path / "nope", "granite-4", edit=unrotated)).config
    assert {it.attention and it.attention.rope for it in without.layers} == {None}


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "attention.head_count_kv",
            [0, 0, 2],
            r"attention.head_count_kv=\[0, 0, 2\]: no family has what it needs: Mamba-2 layers",
        ),
        (
            "expert_count",
            64,
            "expert_count=64: no family has what it needs: experts beside an MLP without",
        ),
    ],
)
def test_granites_hybrids_of_other_layers_are_refused(
    key: str, value: Any, message: str, tmp_path: Path
) -> None:
    def as_hybrid(writer: GGUFWriter) -> None:
        rename_architecture(writer, "granitehybrid")
        writer.kv_data[0][f"granitehybrid.{key}"].value = value

    file = write_both(tmp_path, "granite-4", edit=as_hybrid)
    with pytest.raises(ValueError, match=rf"model\.gguf: granitehybrid\.{message}"):
        open_stored_model(file)


def test_what_text_does_not_need_is_left_out_and_named(tmp_path: Path) -> None:
    def edit(writer: GGUFWriter) -> None:
        writer.add_uint32("qwen35.vision.block_count", 27)
        writer.add_uint32("qwen35.image_token_id", 1)
        writer.add_uint32("qwen35.audio.block_count", 12)
        writer.add_array("qwen35.rope.mrope_section", [11, 11, 10])
        writer.add_bool("qwen35.rope.mrope_interleaved", True)
        writer.add_bool("qwen35.ssm.v_head_reordered", True)
        writer.add_string("mradermacher.convert_type", "hf")
        for name in ("v.blk.0.attn_q.weight", "mm.0.weight", "mm.a.0.weight", "mtp.fc.weight"):
            writer.add_tensor(name, np.ones((2, 2), np.float32))

    plain = open_stored_model(write_both(tmp_path, "qwen3.5"))
    assert plain.notes == ()
    model = open_stored_model(write_both(tmp_path, "qwen3.5", edit=edit))
    assert model.config == plain.config
    [note] = model.notes
    assert note == (
        "left out: an encoder of images (2 tensors, 2 keys), an encoder of sound (1 tensor, 1 key) and"
        " layers that draft (1 tensor)"
    )
    load_decoder(model.path, OPS)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_weights_stay_what_they_are(dtype: str, tmp_path: Path) -> None:
    file = write_both(tmp_path, dtype=dtype)
    arrays, expected = RecordingBackend(), RecordingBackend()
    load_decoder(file, arrays)
    load_decoder(tmp_path, expected)
    for array, other in zip(arrays.arrays, expected.arrays, strict=True):
        assert array.ndim == 1 or array.dtype == other.dtype
        np.testing.assert_array_equal(array.astype(np.float32), other.astype(np.float32))


@pytest.mark.parametrize("kind", ["gguf", "gguf without a tokenizer", "directory"])
def test_another_tokenizer_than_the_models_own(kind: str, tmp_path: Path) -> None:
    """Of a file whose own tokenizer is not known, and of a directory without one."""

    def of_another_age(writer: GGUFWriter) -> None:
        facts = writer.kv_data[0]
        for key in [key for key in facts if key.startswith("tokenizer.")]:
            if kind == "gguf without a tokenizer" or key == "tokenizer.ggml.pre":
                del facts[key]

    file = write_both(tmp_path, edit=of_another_age)
    other = shutil.copytree(tmp_path, tmp_path / "other", ignore=shutil.ignore_patterns("model*"))
    expected = Tokenizer.load(other, 320)
    (tmp_path / "tokenizer.json").unlink()
    model = str(tmp_path if kind == "directory" else file)
    with pytest.raises(ValueError, match=r"--tokenizer DIR\|owner/name"):
        LLM(model, backend="numpy")
    llm = LLM(model, backend="numpy", tokenizer=str(other))
    tokenizer = llm.engine.model.tokenizer
    text = "the quick 你好 <|im_end|>"
    assert tokenizer.encode(text) == expected.encode(text)
    assert tokenizer.chat_template == expected.chat_template
    prompt = {"prompt_token_ids": [10, 20, 30]}
    by_ids = LLM(model, backend="numpy", skip_tokenizer_init=True)
    params = SamplingParams(temperature=0, max_tokens=8)
    assert (
        llm.generate([prompt], params)[0].outputs[0].token_ids
        == by_ids.generate([prompt], params)[0].outputs[0].token_ids
    )


@pytest.mark.parametrize(
    "value_type", [GGUFValueType.INT32, GGUFValueType.UINT32, GGUFValueType.INT64]
)
def test_each_end_of_ollamas_list_ends_an_answer(value_type: GGUFValueType, tmp_path: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=6)
    prompt = {"prompt_token_ids": PROMPT}
    free = LLM(str(write_both(tmp_path)), backend="numpy").generate([prompt], params)[0].outputs[0]
    assert free.finish_reason == "length"
    for number in (1, 2):
        last = free.token_ids[number]

        def add_ends(writer: GGUFWriter, last: int = last) -> None:
            ends = [4294967295 if value_type == GGUFValueType.UINT32 else -1, last, 3]
            writer.add_key_value(
                "tokenizer.ggml.eos_token_ids", ends, GGUFValueType.ARRAY, value_type
            )

        file = write_gguf(tmp_path / f"{number}.gguf", tmp_path, edit=add_ends)
        assert {last, 3} < set(open_stored_model(file).config.eos_token_ids)
        answer = LLM(str(file), backend="numpy").generate([prompt], params)[0].outputs[0]
        assert answer.finish_reason == "stop"
        assert answer.token_ids == free.token_ids[: free.token_ids.index(last) + 1]


def test_an_unknown_tokenizer_is_refused_before_weights_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make_decoder(*_: object) -> None:
        raise AssertionError("weights are read")

    monkeypatch.setattr(loaded_model, "make_decoder", make_decoder)
    file = write_both(tmp_path, edit=lambda writer: writer.kv_data[0].pop("tokenizer.ggml.pre"))
    with pytest.raises(ValueError, match=r"tokenizer\.ggml\.pre is missing"):
        LLM(str(file), backend="numpy")


@pytest.mark.parametrize("none", [-1, 2**32 - 1])
def test_no_token_begins_or_ends_a_text(none: int, tmp_path: Path) -> None:
    file = GgufCheckpoint(write_both(tmp_path))
    roles = ("bos", "eos", "eot", "eom")
    keys = {f"tokenizer.ggml.{role}_token_id": none for role in roles}
    file.metadata = dict(file.metadata) | keys
    config = read_gguf_config(read_gguf_metadata(file, {}))
    assert (config.bos_token_id, config.eos_token_ids) == (None, ())


def test_another_tokenizer_must_fit(tmp_path: Path) -> None:
    file = write_both(tmp_path)
    path = tmp_path / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["vocab"]["beyond"] = 320
    path.write_text(json.dumps(content))
    with pytest.raises(
        ValueError,
        match=r"tokenizer of \S+ does not fit: token 'beyond' has id 320, but the model has a vocabulary of 320",
    ):
        LLM(str(file), backend="numpy", tokenizer=str(tmp_path))
    with pytest.raises(ValueError, match=r"tokenizer='missing': must be a directory"):
        LLM(str(file), backend="numpy", tokenizer="missing")


def test_text_and_chat_are_the_same(tmp_path: Path) -> None:
    file = write_both(tmp_path)
    ours = LLM(str(file), backend="numpy")
    theirs = LLM(str(tmp_path), backend="numpy")
    params = SamplingParams(temperature=0, max_tokens=12, logprobs=2)
    prompts = ["the quick brown fox", "naïve 你好 <|im_end|> fox"]
    for actual, expected in zip(
        ours.generate(prompts, params), theirs.generate(prompts, params), strict=True
    ):
        assert actual.prompt_token_ids == expected.prompt_token_ids
        assert actual.outputs[0].text == expected.outputs[0].text
        assert actual.outputs[0].logprobs == expected.outputs[0].logprobs
    messages = [{"role": "user", "content": "hello <|im_end|>"}]
    ids = [llm.engine.model.tokenizer.encode_chat(messages) for llm in (ours, theirs)]
    assert ids[0] == ids[1]


def test_sampling_parameters_of_the_file(tmp_path: Path) -> None:
    def edit(writer: GGUFWriter) -> None:
        writer.add_float32("general.sampling.temp", 0.6)
        writer.add_int32("general.sampling.top_k", 20)
        writer.add_float32("general.sampling.penalty_repeat", 1.1)

    model = open_stored_model(write_both(tmp_path, edit=edit))
    assert model.default_sampling_params == SamplingParams(
        temperature=0.6, top_k=20, repetition_penalty=1.1
    )


# -- quantized tensors -----------------------------------------------------------------------------


def tensor_of(tmp_path: Path, data: np.ndarray, tensor_type: Type) -> Any:
    writer = GGUFWriter(tmp_path / "one.gguf", "llama")
    writer.add_tensor("t.weight", data, raw_dtype=tensor_type)
    finish(writer)
    return GgufCheckpoint(tmp_path / "one.gguf").tensor("t.weight")


@pytest.mark.parametrize("tensor_type", FORMATS_OF_TYPES)
def test_blocks_become_a_format_of_ours_also_those_of_some_rows(
    tensor_type: Type, tmp_path: Path
) -> None:
    blocks = random_blocks(tensor_type)
    matrix = tensor_of(tmp_path, blocks, tensor_type)
    assert matrix.format == FORMATS_OF_TYPES[tensor_type]
    table, rows = GgufCheckpoint(tmp_path / "one.gguf").table("t.weight"), np.array([4, 0, 0, 5])
    assert table.shape == matrix.shape
    with np.errstate(all="ignore"):  # where a scale is infinite
        weights, expected = matrix.dequantize(), dequantize(blocks, tensor_type)
        np.testing.assert_array_equal(table.read(rows), weights[rows])
    assert np.isfinite(expected).mean() > 0.5
    np.testing.assert_array_equal(weights, expected)
    with pytest.raises(IndexError):
        table.read(np.array([6]))


def random_blocks(tensor_type: Type) -> np.ndarray:
    """Any bytes: a code, a scale, a minimum is valid whatever its bits, in MXFP4 any but extreme scales."""
    _, block_bytes = GGML_QUANT_SIZES[tensor_type]
    blocks = np.random.default_rng(0).integers(0, 256, (6, 3 * block_bytes), np.uint8)
    if tensor_type is Type.MXFP4:
        blocks[:, ::block_bytes] = 2 + blocks[:, ::block_bytes] % 199
    return blocks


def test_blocks_are_unpacked_in_pieces_that_fit_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = (np.arange(40 * 34_000) % 100).astype(np.uint8).reshape(40, -1)  # 1,000 in a row
    read, pieces = gguf_blocks._READERS[TensorKind.Q8_0], []

    def counted(piece: np.ndarray) -> QuantizedMatrix:
        pieces.append(len(piece))
        return read(piece)

    monkeypatch.setitem(gguf_blocks._READERS, TensorKind.Q8_0, counted)
    matrix = gguf_blocks.matrix_from_blocks(blocks, TensorKind.Q8_0)
    np.testing.assert_array_equal(matrix.dequantize(), dequantize(blocks, Type.Q8_0))
    assert pieces == [3] * 13 + [1]  # of 131,072 bytes at most


@pytest.mark.parametrize("exponent", [202, 255])  # 255 is not a number
def test_a_scale_near_the_end_of_f32_is_refused(exponent: int, tmp_path: Path) -> None:
    file = write_both(tmp_path, matrix_type=Type.MXFP4)
    info = GgufFile(file).tensors["blk.0.ffn_down.weight"]
    data = bytearray(file.read_bytes())
    data[info.start] = exponent
    file.write_bytes(data)
    with pytest.raises(ValueError, match=rf"blk.0.ffn_down.weight .* exponent {exponent - 1}: "):
        load_decoder(file, OPS)


@pytest.mark.parametrize("exponent", [0, 1])
def test_the_smallest_scales_are_zero(exponent: int, tmp_path: Path) -> None:
    blocks = random_blocks(Type.MXFP4)
    blocks[2, 17] = exponent
    matrix = tensor_of(tmp_path, blocks, Type.MXFP4)
    assert (matrix.dequantize()[2, 32:64] == 0).all()


@pytest.mark.parametrize("tensor_type", WRITABLE)
def test_a_quantized_file_computes_with_its_own_numbers(tensor_type: Type, tmp_path: Path) -> None:
    file = write_both(tmp_path, matrix_type=tensor_type)
    exact = NumpyBackend(quantize_activations=False)
    decoder, config = load_decoder(file, exact)
    actual = prompt_logits(decoder, config, exact, PROMPT)

    def round_trip(weights: dict[str, np.ndarray]) -> None:
        for name, weight in weights.items():
            if weight.ndim == 2:
                weights[name] = dequantize(quantize(weight, tensor_type), tensor_type)

    write_checkpoint(tmp_path / "rounded", "llama", edit_weights=round_trip)
    decoder, config = load_decoder(tmp_path / "rounded", exact)
    assert (actual == prompt_logits(decoder, config, exact, PROMPT)).all()


def test_a_file_can_be_quantized_again(tmp_path: Path) -> None:
    file = write_both(tmp_path, matrix_type=Type.Q4_1)
    backend = RecordingBackend()
    load_decoder(file, backend, quantization="int4-zp")
    stored = GgufCheckpoint(file).tensor("blk.0.ffn_down.weight")
    expected = quantize_matrix(stored.dequantize(), FORMATS["int4-zp"])
    matrices = [weight for weight in backend.arrays if isinstance(weight, QuantizedMatrix)]
    assert any(
        matrix.shape == expected.shape and (matrix.dequantize() == expected.dequantize()).all()
        for matrix in matrices
    )


@pytest.mark.parametrize("family", ["llama", "qwen2"])  # without biases, and with them
def test_joined_matrices_keep_the_formats_of_their_parts(family: str, tmp_path: Path) -> None:
    other_types = {"attn_v": Type.Q5_1, "ffn_up": Type.F32}
    file = write_both(tmp_path, family, matrix_type=Type.Q4_1, other_types=other_types)
    weights = RecordingBackend()
    load_decoder(file, weights)
    joined = [weight for weight in weights.arrays if isinstance(weight, JoinedMatrix)]
    (qk, v), (gate, up) = (matrix.parts for matrix in joined[:2])
    assert (qk.format, v.format, gate.format) == (INT4_MIN, INT8_MIN, INT4_MIN)
    assert isinstance(up, np.ndarray)

    backend = CpuBackend(quantize_activations=False)
    native, config = load_decoder(file, backend)
    exact, _ = load_decoder(file, OPS_IN_FLOATS)
    actual = prompt_logits(native, config, backend, PROMPT)
    wanted = prompt_logits(exact, config, OPS_IN_FLOATS, PROMPT)
    assert np.abs(actual - wanted).max() <= 1e-4 * np.abs(wanted).max()
    compiled = backend.compile(native, config)
    assert (prompt_logits(compiled, config, backend, PROMPT) == actual).all()


def test_joined_matrices_become_one_when_they_are_quantized(tmp_path: Path) -> None:
    file = write_both(tmp_path, matrix_type=Type.Q8_0, other_types={"attn_v": Type.Q4_1})
    weights = RecordingBackend()
    load_decoder(file, weights, quantization="int8")
    stored = GgufCheckpoint(file)
    v = quantize_matrix(stored.tensor("blk.0.attn_v.weight").dequantize(), INT8)
    k = stored.tensor("blk.0.attn_k.weight")
    qkv = weights.arrays[2]  # behind the embedding and a norm
    np.testing.assert_array_equal(qkv.rows(slice(-len(v.codes), None)).codes, v.codes)
    assert qkv.shape[0] > len(v.codes) + k.shape[0]
    assert qkv.format == INT8


# Of keys that this family does not read: what means nothing, as llama.cpp's converters write it for some models.
NEUTRAL: dict[str, float] = {
    "attention.clamp_kqv": 0.0,
    "attention.max_alibi_bias": 0.0,
    "embedding_scale": 1.0,
    "expert_group_count": 1,
    "expert_group_used_count": 1,
    "expert_shared_count": 0,
    "expert_weights_scale": 1.0,
    "logit_scale": 1.0,
    "residual_scale": 1.0,
    "rope.scale_linear": 1.0,
}


def add_number(writer: GGUFWriter, key: str, value: float) -> None:
    add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
    add(f"llama.{key}", value)


def test_values_that_change_nothing_load_and_others_are_refused(tmp_path: Path) -> None:
    def edit(writer: GGUFWriter) -> None:
        writer.add_bool("llama.attention.causal", True)
        writer.add_uint32("llama.nextn_predict_layers", 0)
        for key, value in NEUTRAL.items():
            add_number(writer, key, value)

    plain = open_stored_model(write_both(tmp_path)).config
    assert open_stored_model(write_both(tmp_path, edit=edit)).config == plain
    for key, value in NEUTRAL.items():
        file = write_both(tmp_path, edit=partial(add_number, key=key, value=value + 2))
        with pytest.raises(ValueError, match=re.escape(f"llama.{key}={value + 2}: supported is")):
            open_stored_model(file)


@pytest.mark.parametrize("tensor_type", [*FORMATS_OF_TYPES, Type.F16])
def test_memory_is_planned_as_it_is_taken(tensor_type: Type, tmp_path: Path) -> None:
    data = np.zeros((4, 256), np.float16)
    tensor_of(
        tmp_path, data if tensor_type == Type.F16 else random_blocks(tensor_type), tensor_type
    )
    tensors = GgufCheckpoint(tmp_path / "one.gguf")
    tensor = tensors.tensor("t.weight")
    taken = tensor.nbytes if isinstance(tensor, np.ndarray) else tensor.num_bytes
    assert tensors.matrix_format("t.weight").num_bytes(*tensor.shape) == taken


# -- what is refused -------------------------------------------------------------------------------


MEANS_SOMETHING_ELSE: list[Callable[[GGUFWriter], None]] = [
    lambda w: w.add_uint32("llama.expert_count", 8),
    lambda w: w.add_float32("llama.logit_scale", 2.0),
    lambda w: w.add_bool("llama.attention.causal", False),
    lambda w: w.add_float32("llama.time_mix", 1.0),
    lambda w: w.add_array("prism.hadamard.weight_names", ["output.weight"]),
    lambda w: w.add_bool("llama.norm_top_k_prob", False),
    lambda w: w.add_uint16("split.count", 3),
    lambda w: w.add_string("general.type", "adapter"),
    lambda w: w.add_string("llama.rope.scaling.type", "ntk"),
    lambda w: w.add_float32("general.sampling.temp", -1.0),
    lambda w: w.add_tensor("blk.0.extra.weight", np.zeros((2, 2), np.float32)),
]


def test_what_would_compute_something_else_is_refused(tmp_path: Path) -> None:
    def load(edit: Callable[[GGUFWriter], None]) -> None:
        load_decoder(write_both(tmp_path, edit=edit), OPS)

    check_refusals("gguf_meaning", MEANS_SOMETHING_ELSE, load, name=lambda _: "", hidden=tmp_path)


BAD_VALUES: list[tuple[str, Any]] = [
    ("general.architecture", "mamba"),
    ("llama.attention.head_count", None),
    ("llama.attention.head_count", [4, 4]),
    ("llama.attention.head_count", [4, 4, 2]),
    ("llama.attention.head_count_kv", 3),
    ("llama.block_count", 2**31),
    ("llama.attention.value_length", 8),
    ("llama.rope.dimension_count", 8),
    ("tokenizer.ggml.model", "bert"),
    ("tokenizer.ggml.pre", "martian"),
    ("tokenizer.ggml.merges", ["ab"]),
    ("tokenizer.ggml.tokens", ["a"] * 320),
    ("tokenizer.ggml.token_type", [1]),
    ("tokenizer.ggml.bos_token_id", 10**6),
]


def test_bad_values_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_both(tmp_path)
    read = GgufFile.__init__

    def read_tokenizer(case: tuple[str, Any]) -> None:
        key, value = case

        def with_another_value(self: GgufFile, path: Path) -> None:
            read(self, path)
            self.metadata.pop(key, None)
            if value is not None:
                self.metadata[key] = value

        monkeypatch.setattr(GgufFile, "__init__", with_another_value)
        open_stored_model(file).read_tokenizer()

    check_refusals("gguf_value", BAD_VALUES, read_tokenizer, hidden=tmp_path)


ABSURD = [0, -1, 1, 2**31, 2**62, 0.0, -1.0, 1e-40, 1e38, np.nan, np.inf, "", "x", True, [], [1, 2]]


class KeyReader:
    """Reads the facts of a file with other keys."""

    def __init__(self, path: Path) -> None:
        self._file = GgufCheckpoint(path)
        facts = [name for name in FACT_TENSORS if name in self._file]
        self._factors = {name: self._file.tensor(name) for name in facts}
        self.keys = dict(self._file.metadata)
        self.prefix = f"{self.keys['general.architecture']}."

    def read(self, key: str = "general.name", value: Any = None) -> ModelConfig:
        """With another value of a key; a value of None: the key is missing."""
        self._file.metadata = {name: own for name, own in self.keys.items() if name != key}
        if value is not None:
            self._file.metadata[key] = value
        metadata = read_gguf_metadata(self._file, self._factors)
        return read_gguf_config(with_widths_of_tensors(metadata)[0])


@pytest.fixture(scope="module", params=GGUF_FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def reader(family: str, tmp_path_factory: pytest.TempPathFactory) -> KeyReader:
    return KeyReader(write_both(tmp_path_factory.mktemp(family), family))


def test_absurd_facts_are_refused_by_name_or_make_a_config(reader: KeyReader) -> None:
    facts = [key for key in reader.keys if key.startswith((reader.prefix, "tokenizer.ggml.bos"))]
    others = ("attention.key_length", "attention.sliding_window", "rope.scaling.factor")
    half = len(reader.prefix) % 2  # families that share a key take the other one
    for key in [*facts, *(reader.prefix + other for other in others)]:
        for value in ABSURD[half::2]:
            assert "which file?" not in what_changes(reader, "", key, value), (key, value)


def what_changes(reader: KeyReader, plain: str, key: str, value: Any) -> str:
    """What of the facts `plain` is something else with another value of a key."""
    try:
        facts = facts_line(reader.read(key, value)).split()
    except ValueError as error:
        _, of_file, message = str(error).partition("model.gguf: ")
        return f"refused, {message.split(': ')[0]}" if of_file else f"{error}: which file?"
    added = dict.fromkeys(word for word in facts if word not in plain.split())
    gone = dict.fromkeys(f"no {word}" for word in plain.split() if word not in facts)
    return " ".join(added or gone) or "the same"


def other_values(value: Any) -> list[Any]:
    if isinstance(value, list):
        alike = [[it] * len(value) for it in (True, False)] if isinstance(value[0], bool) else []
        return [[other_values(each)[0] for each in value], *alike]
    if isinstance(value, bool):
        return [not value]
    return ["linear", "yarn"] if isinstance(value, str) else [2 * value, 0]


def keys_of_writers(reader: KeyReader) -> Iterator[tuple[str, list[Any]]]:
    """The keys of the file, and all others of the gguf library, with other values."""
    for key, value in reader.keys.items():
        if key.startswith(reader.prefix):
            yield key, [None, *other_values(value)]
    for group in vars(Keys).values():
        for key in vars(group).values() if isinstance(group, type) else ():
            full = str(key).replace("{arch}.", reader.prefix)
            if full.startswith(reader.prefix) and full not in reader.keys:
                yield full, [2, 0.5, True, False]


def test_each_key_changes_the_facts_that_it_says(family: str, reader: KeyReader) -> None:
    """One golden line for each key of the file, and for each other one that changes something: what of the facts
    becomes what, with each value. UPDATE_GGUF_KEYS=1 writes them: compare llama.cpp's defaults."""
    plain = facts_line(reader.read())
    lines = []
    for key, values in keys_of_writers(reader):
        found = [what_changes(reader, plain, key, value) for value in values]
        if None in values or not all(each[:7] in ("refused", "the sam") for each in found):
            changes = (f"{value}: {what}" for value, what in zip(values, found, strict=True))
            lines.append("\t".join((family, key, *changes)))
    golden = Path(__file__).parents[1] / "golden" / "gguf_keys.txt"
    known = golden.read_text(encoding="utf-8").splitlines() if golden.exists() else []
    if os.environ.get("UPDATE_GGUF_KEYS"):
        known = [*(line for line in known if not line.startswith(f"{family}\t")), *lines]
        golden.write_text("".join(f"{line}\n" for line in known))
    assert lines == [line for line in known if line.startswith(f"{family}\t")]


@pytest.mark.parametrize("tensor_type", [Type.Q8_0, Type.Q4_1])
def test_infinite_scales_are_named(tensor_type: Type, tmp_path: Path) -> None:
    file = write_both(tmp_path, matrix_type=tensor_type)
    start = GgufFile(file).tensors["blk.1.ffn_up.weight"].start
    data = bytearray(file.read_bytes())
    last_scale = GGML_QUANT_SIZES[tensor_type][1] + (2 if tensor_type == Type.Q4_1 else 0)
    data[start + last_scale : start + last_scale + 2] = np.float16(np.inf).tobytes()
    file.write_bytes(data)
    with pytest.raises(ValueError, match=r"tensor blk\.1\.ffn_up\.weight .* holds inf at \[0, 1\]"):
        load_decoder(file, OPS)


def test_missing_and_misshapen_tensors_are_named(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "llama")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 4}))
    file = write_gguf(tmp_path / "layers.gguf", tmp_path)
    with pytest.raises(ValueError, match=r"layers\.gguf: tensor blk\.3\.\S+ \(our .*\) is missing"):
        load_decoder(file, OPS)
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_key_value_heads": 4}))
    file = write_gguf(tmp_path / "heads.gguf", tmp_path)
    with pytest.raises(ValueError, match=r"tensor blk\.0\.attn_k\.weight .* has shape \[32, 64\]"):
        load_decoder(file, OPS)


def test_the_tensors_decide_how_wide_a_model_is(tmp_path: Path) -> None:
    def edit(writer: GGUFWriter) -> None:
        writer.kv_data[0]["lfm2.feed_forward_length"].value = 144

    plain = open_stored_model(write_both(tmp_path / "plain", "lfm2"))
    model = open_stored_model(write_both(tmp_path / "other", "lfm2", edit=edit))
    assert model.config == plain.config
    width = model.config.layers[0].mlp.intermediate_size
    assert model.notes == (
        f"lfm2.feed_forward_length=144, but the tensors are {width} wide: that counts",
    )


def test_layers_that_draft_for_another_model_are_no_model(tmp_path: Path) -> None:
    def edit(writer: GGUFWriter) -> None:
        [tensors] = writer.tensors
        for name in [name for name in tensors if name.startswith("blk.")]:
            del tensors[name]
        writer.kv_data[0]["qwen35.block_count"].value = 5
        writer.add_nextn_predict_layers(1)
        writer.add_tensor("blk.4.nextn.eh_proj.weight", np.ones((64, 128), np.float32))

    file = write_both(tmp_path, "qwen3.5", edit=edit)
    with pytest.raises(ValueError, match=r"model\.gguf: the file holds layers that draft for"):
        open_stored_model(file)


def test_what_ollama_leaves_out(tmp_path: Path) -> None:
    """Facts that are the same for all models of a family."""

    def gemma3(writer: GGUFWriter) -> None:
        facts = writer.kv_data[0]
        del facts["gemma3.attention.layer_norm_rms_epsilon"]
        for old, new in (("rope.freq_base", "global"), ("rope.freq_base_swa", "local")):
            if f"gemma3.{old}" in facts:
                facts[f"gemma3.rope.{new}.freq_base"] = facts.pop(f"gemma3.{old}")

    def gpt_oss(writer: GGUFWriter) -> None:
        for key in ("rope.scaling.type", "expert_feed_forward_length"):
            del writer.kv_data[0][f"gpt-oss.{key}"]

    for family, edit, epsilon in (("gemma3", gemma3, 1e-6), ("gpt-oss", gpt_oss, 1e-5)):
        plain = open_stored_model(write_both(tmp_path / family, family)).config
        found = open_stored_model(write_both(tmp_path / family, family, edit=edit)).config
        assert found == replace(plain, norm_eps=epsilon)


def test_truncated_experts_are_named(tmp_path: Path) -> None:
    file = write_both(tmp_path, "gpt-oss", other_types={"_exps": Type.MXFP4})
    load_decoder(file, OPS)
    data, tensors = file.read_bytes(), GgufFile(file).tensors
    block = GGML_QUANT_SIZES[Type.MXFP4][1]
    experts = [info for info in tensors.values() if info.type == Type.MXFP4]
    last = max(experts, key=lambda info: info.start)
    for missing in (1, block, last.num_bytes - 1):
        file.write_bytes(data[: last.end - missing])
        with pytest.raises(ValueError, match=r"model\.gguf: damaged GGUF file: tensor blk\.\d"):
            load_decoder(file, OPS)


def test_experts_that_the_facts_do_not_count_are_named(tmp_path: Path) -> None:
    write_both(tmp_path, "gpt-oss")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_local_experts": 4}))
    file = write_gguf(tmp_path / "four.gguf", tmp_path)
    with pytest.raises(ValueError, match=r"four\.gguf: tensor blk\.0\.\S+ .* has shape \[5, "):
        load_decoder(file, OPS)


def test_unread_types_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"one\.gguf: tensor t\.weight has type IQ2_XXS: supported"
    ):
        tensor_of(tmp_path, np.zeros((1, 66), np.uint8), Type.IQ2_XXS)


def test_a_file_with_unread_types_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    file = write_both(tmp_path)
    data = bytearray(file.read_bytes())
    name = b"blk.1.ffn_up.weight"
    at = data.index(name) + len(name) + 4 + 2 * 8
    data[at : at + 4] = (139).to_bytes(4, "little")
    file.write_bytes(data)
    with pytest.raises(
        ValueError,
        match=r"model\.gguf: tensor blk\.1\.ffn_up\.weight has type IQ4_K of ik_llama\.cpp: supported are F32,",
    ):
        open_stored_model(file)


@pytest.fixture(scope="module")
def small_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_both(tmp_path_factory.mktemp("fuzz"))


@given(st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 255)), min_size=1, max_size=4))
@settings(max_examples=60)
def test_damaged_files_are_refused_by_name_or_load(
    small_file: Path, changes: list[tuple[int, int]]
) -> None:
    file = GgufFile(small_file)
    header_bytes = min(info.start for info in file.tensors.values())
    data = bytearray(small_file.read_bytes())
    for position, value in changes:
        data[position % header_bytes] = value
    path = small_file.with_name("damaged.gguf")
    path.write_bytes(data)
    try:
        model = open_stored_model(path)
        Tokenizer.from_stored(model.read_tokenizer(), model.config.vocab_size, "tokenizer")
        load_decoder(path, OPS)
    except ValueError as error:
        if "damaged.gguf" not in str(error) and "tokenizer" not in str(error):
            raise AssertionError(f"{error}: which file?") from error


# -- split files -----------------------------------------------------------------------------------


def write_split(directory: Path, **changes: Any) -> list[Path]:
    """A checkpoint as llama-gguf-split writes it, in three parts; `changes` are of the last one's facts."""
    whole = GgufFile(write_both(directory, matrix_type=Type.Q8_0))
    names = list(whole.tensors)
    parts = []
    for number in range(3):
        path = directory / f"split-{number + 1:05d}-of-00003.gguf"
        writer = GGUFWriter(path, "llama")
        if number == 0:
            copy_metadata(whole, writer)
        facts = {"split.no": number, "split.count": 3, "split.tensors.count": len(names)}
        facts |= changes if number == 2 else {}
        writer.add_uint16("split.no", facts["split.no"])
        writer.add_uint16("split.count", facts["split.count"])
        writer.add_int32("split.tensors.count", len(names))
        for name in names[number::3]:
            info = whole.tensors[name]
            rows = whole.rows(name)
            if info.type == Type.Q8_0:
                writer.add_tensor(name, rows, raw_dtype=info.type)
            else:
                writer.add_tensor(name, rows.view(np.float32).reshape(info.shape))
        finish(writer)
        parts.append(path)
    return parts


def copy_metadata(file: GgufFile, writer: GGUFWriter) -> None:
    types = {str: writer.add_string, bool: writer.add_bool, float: writer.add_float32}
    for key, value in file.metadata.items():
        if key.startswith("general.architecture"):
            continue
        if isinstance(value, list):
            writer.add_array(key, value)
        else:
            types.get(type(value), writer.add_uint32)(key, value)


def test_split_file_is_the_whole_model(tmp_path: Path) -> None:
    parts = write_split(tmp_path)
    whole, split = RecordingBackend(), RecordingBackend()
    load_decoder(tmp_path / "model.gguf", whole)
    load_decoder(parts[1], split)  # any part stands for all
    for array, other in zip(whole.arrays, split.arrays, strict=True):
        if isinstance(array, QuantizedMatrix):
            array, other = array.dequantize(), other.dequantize()
        np.testing.assert_array_equal(array, other)
    model = open_stored_model(parts[0])
    assert model.path == parts[0]
    assert (
        model.read_tokenizer().special_tokens
        == open_stored_model(parts[2]).read_tokenizer().special_tokens
    )


def test_identity_of_a_split_file_covers_all_parts(tmp_path: Path) -> None:
    parts = write_split(tmp_path)
    before = weights_identity(parts[0])
    data = bytearray(parts[2].read_bytes())
    data[-1] ^= 1
    parts[2].write_bytes(data)
    assert weights_identity(parts[0]) != before


def test_parts_that_do_not_belong_together(tmp_path: Path) -> None:
    parts = write_split(tmp_path, **{"split.no": 1})
    with pytest.raises(ValueError, match=r"00003-of-00003\.gguf: split\.no=1: its name says 2"):
        open_stored_model(parts[0])
    parts[2].unlink()
    with pytest.raises(ValueError, match=r"split-00003-of-00003\.gguf: no such file"):
        open_stored_model(parts[0])
    shutil.copy(parts[1], parts[2])
    with pytest.raises(ValueError, match=r"00003-of-00003\.gguf: split\.no=1: its name says 2"):
        open_stored_model(parts[0])
