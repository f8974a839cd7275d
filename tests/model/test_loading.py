"""Loading a model directory: the arrays that a backend gets, and directories that are refused."""

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file, save_file

from pellucid.backends.numpy.backend import NumpyBackend
from pellucid.loading import checksums
from pellucid.loading.checkpoint import Checkpoint
from pellucid.loading.decoder import finish_weights
from pellucid.loading.hf_config import read_model_config
from pellucid.loading.open_model import open_stored_model
from pellucid.loading.parameters import CheckpointParameters, bytes_to_read
from pellucid.models.registry import family_of
from support.checkpoints import FAMILIES, Weights, write_checkpoint
from support.decoders import load_decoder
from support.recording_backend import RecordingBackend
from support.refusals import check_refusals

Edit = Callable[[Weights], None]
LAYER = "model.layers.1"


def load(directory: Path) -> list[npt.NDArray[Any]]:
    backend = RecordingBackend()
    load_decoder(directory, backend)
    return backend.arrays


def parameters(directory: Path) -> tuple[CheckpointParameters, RecordingBackend]:
    backend = RecordingBackend()
    config = read_model_config(directory)
    names = family_of(config.architecture).hf_names(config)
    return CheckpointParameters(Checkpoint(directory), names, config, backend.weights), backend


def refusal(directory: Path) -> str:
    with pytest.raises(ValueError, match=str(directory)) as error:
        load(directory)
    return str(error.value)


# -- what a weight is made of ----------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_every_tensor_is_used_once(family: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, family)
    stored, names = load_file(tmp_path / "model.safetensors"), parameters(tmp_path)[0]._names
    used = [tensor for name, tensor in stored.items() if not names.is_unused(name)]
    arrays = load(tmp_path)
    assert sum(array.size for array in arrays) == sum(tensor.size for tensor in used)
    assert all(array.flags.c_contiguous for array in arrays)


def test_q_k_v_and_gate_up_are_joined(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "llama-linear")
    stored = load_file(tmp_path / "model.safetensors")
    source, backend = parameters(tmp_path)
    source.matrix("layers.1.qkv_proj", 128, 64, bias=True, parts=(64, 32, 32))
    source.matrix("layers.1.gate_up_proj", 192, 64, bias=True, parts=(96, 96))
    for array, names in zip(
        backend.arrays,
        [
            [f"{LAYER}.self_attn.{x}_proj.weight" for x in "qkv"],
            [f"{LAYER}.self_attn.{x}_proj.bias" for x in "qkv"],
            [f"{LAYER}.mlp.{x}_proj.weight" for x in ("gate", "up")],
            [f"{LAYER}.mlp.{x}_proj.bias" for x in ("gate", "up")],
        ],
        strict=True,
    ):
        np.testing.assert_array_equal(array, np.concatenate([stored[name] for name in names]))


@pytest.mark.parametrize(
    ("family", "architecture", "prefix"),
    [
        ("gemma3", "Gemma3", "model.language_model."),
        ("gemma3", "Gemma3", "language_model.model."),
        ("gemma4", "Gemma4", "model.language_model."),
        ("mistral", "Mistral3", "language_model.model."),
        ("ministral3", "Mistral3", "model.language_model."),
        ("lfm2", "Lfm2Vl", "model.language_model."),
        ("llama", "SmolVLM", "model.text_model."),
        ("qwen2.5-vl", "Qwen2_5_VL", "model."),
    ],
)
def test_the_text_model_of_a_larger_one_is_loaded(
    family: str, architecture: str, prefix: str, tmp_path: Path
) -> None:
    """Whatever transformers of either version called its tensors; parts for other media are named."""

    def as_text_model(weights: Weights) -> None:
        for name in list(weights):
            if name == "lm_head.weight" and prefix == "language_model.model.":
                weights["language_model.lm_head.weight"] = weights.pop(name)
            else:
                weights[name.replace("model.", prefix, 1)] = weights.pop(name)
        weights["vision_tower.layer.weight"] = np.ones((3, 3), np.float32)
        weights["visual.merger.norm"] = np.ones(3, np.float32)
        weights["model.connector.norm"] = np.ones(3, np.float32)
        weights["model.multi_modal_projector.norm"] = np.ones(3, np.float32)

    plain = load(write_checkpoint(tmp_path / "plain", family))
    larger = write_checkpoint(tmp_path / "larger", family, edit_weights=as_text_model)
    text = json.loads((larger / "config.json").read_text())
    config = {"architectures": [f"{architecture}ForConditionalGeneration"], "text_config": text}
    (larger / "config.json").write_text(json.dumps(config))
    assert open_stored_model(larger).notes == ("left out: an encoder of images (4 tensors)",)
    arrays = load(larger)
    for array, expected in zip(arrays, plain, strict=True):
        np.testing.assert_array_equal(array, expected)


def test_layer_ten_is_not_layer_one(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "llama", config_overrides={"num_hidden_layers": 11})
    stored = load_file(tmp_path / "model.safetensors")
    source, backend = parameters(tmp_path)
    source.matrix("layers.10.down_proj", 64, 96)
    np.testing.assert_array_equal(backend.arrays[0], stored["model.layers.10.mlp.down_proj.weight"])


def test_joined_tensors_of_phi3(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "phi3")
    stored = load_file(tmp_path / "model.safetensors")
    source, backend = parameters(tmp_path)
    source.matrix("layers.1.qkv_proj", 128, 64)
    source.matrix("layers.1.gate_up_proj", 192, 64)
    np.testing.assert_array_equal(backend.arrays[0], stored[f"{LAYER}.self_attn.qkv_proj.weight"])
    np.testing.assert_array_equal(backend.arrays[1], stored[f"{LAYER}.mlp.gate_up_proj.weight"])


def test_norms_of_qwen3(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "qwen3")
    stored = load_file(tmp_path / "model.safetensors")
    source, backend = parameters(tmp_path)
    source.vector("layers.1.q_norm.weight", 16)
    source.vector("layers.1.k_norm.weight", 16)
    np.testing.assert_array_equal(backend.arrays[0], stored[f"{LAYER}.self_attn.q_norm.weight"])
    np.testing.assert_array_equal(backend.arrays[1], stored[f"{LAYER}.self_attn.k_norm.weight"])


def test_norms_of_gemma2_are_one_more(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "gemma2", dtype="bfloat16")
    stored = load_file(tmp_path / "model.safetensors")
    source, backend = parameters(tmp_path)
    names = {
        "layers.1.attention_norm": f"{LAYER}.input_layernorm",
        "layers.1.attention_post_norm": f"{LAYER}.post_attention_layernorm",
        "layers.1.mlp_norm": f"{LAYER}.pre_feedforward_layernorm",
        "layers.1.mlp_post_norm": f"{LAYER}.post_feedforward_layernorm",
        "norm": "model.norm",
    }
    for (ours, theirs), index in zip(names.items(), range(len(names)), strict=True):
        source.vector(f"{ours}.weight", 48)
        array = backend.arrays[index]
        assert array.dtype == np.float32  # 1 + w does not fit bfloat16
        np.testing.assert_array_equal(array, stored[f"{theirs}.weight"].astype(np.float32) + 1)


def test_matrices_of_gpt2_are_transposed(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "gpt2")
    stored = load_file(tmp_path / "model.safetensors")
    source, backend = parameters(tmp_path)
    source.matrix("layers.1.qkv_proj", 192, 64, bias=True)
    source.matrix("layers.1.up_proj", 256, 64, bias=True)
    source.matrix("embed_positions", 256, 64)
    layer = "transformer.h.1"
    for array, expected in zip(
        backend.arrays,
        [
            stored[f"{layer}.attn.c_attn.weight"].T,
            stored[f"{layer}.attn.c_attn.bias"],
            stored[f"{layer}.mlp.c_fc.weight"].T,
            stored[f"{layer}.mlp.c_fc.bias"],
            stored["transformer.wpe.weight"],
        ],
        strict=True,
    ):
        np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize(("family", "prefix"), [("llama", "model."), ("gpt2", "transformer.")])
def test_prefix_may_be_absent(tmp_path: Path, family: str, prefix: str) -> None:
    def drop_prefix(weights: Weights) -> None:
        for name in list(weights):
            weights[name.removeprefix(prefix)] = weights.pop(name)

    write_checkpoint(tmp_path / "with", family)
    write_checkpoint(tmp_path / "without", family, edit_weights=drop_prefix)
    for left, right in zip(load(tmp_path / "with"), load(tmp_path / "without"), strict=True):
        np.testing.assert_array_equal(left, right)


# -- files and formats -----------------------------------------------------------------------------


# Matrices that are joined, experts apart and in stacks, layers of several kinds.
@pytest.mark.parametrize("family", ["llama", "gpt2", "phi3", "qwen3-moe", "gpt-oss", "gemma4-moe"])
def test_shards_are_the_same_model(family: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "one", family)
    write_checkpoint(tmp_path / "three", family, num_shards=3)
    assert len(list((tmp_path / "three").glob("*.safetensors"))) == 3
    for left, right in zip(load(tmp_path / "one"), load(tmp_path / "three"), strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize(
    ("name", "dtype"), [("bfloat16", ml_dtypes.bfloat16), ("float16", np.float16)]
)
def test_weights_keep_their_dtype(name: str, dtype: type, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "float32", "qwen2")
    write_checkpoint(tmp_path / name, "qwen2", dtype=name)
    for single, half in zip(load(tmp_path / "float32"), load(tmp_path / name), strict=True):
        assert half.dtype == dtype
        np.testing.assert_array_equal(half, single.astype(dtype))


# Tensors of two of our weights, of all experts, of one expert each, and a table of which steps read rows.
@pytest.mark.parametrize("family", ["llama", "gpt-oss", "qwen3-next", "mixtral", "gemma4"])
def test_progress_ends_at_the_whole(family: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, family, num_shards=2)
    steps: list[tuple[int, int]] = []
    load_decoder(tmp_path, NumpyBackend(), lambda done, total: steps.append((done, total)))
    checkpoint = Checkpoint(tmp_path)
    num_bytes = sum(
        checkpoint.info(name).num_bytes
        for name in checkpoint
        if "per_layer.weight" not in name and not re.search(r"layers\.[34]\..*\.[kv]_", name)
    )
    assert {total for _, total in steps} == {num_bytes}
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)
    assert steps[-1][0] == num_bytes


def test_what_still_waits_is_read_and_reported(tmp_path: Path) -> None:
    model = open_stored_model(write_checkpoint(tmp_path, "llama"))
    total = bytes_to_read(model.tensors, model.names)
    steps, waiting = [], [30, 10, 0]

    class WaitingWeights:
        def read(self) -> int:
            return waiting.pop(0)

    finish_weights(model, WaitingWeights(), lambda *step: steps.append(step))
    assert steps == [(total - 30, total), (total - 10, total)]


def test_buffers_are_no_weights(tmp_path: Path) -> None:
    def add_frequencies(weights: Weights) -> None:
        weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(8, np.float32)

    def add_masks(weights: Weights) -> None:
        weights["transformer.h.0.attn.bias"] = np.ones((1, 1, 4, 4), bool)
        weights["transformer.h.0.attn.masked_bias"] = np.array(-np.inf, np.float32)

    write_checkpoint(tmp_path / "llama", "llama", edit_weights=add_frequencies)
    write_checkpoint(tmp_path / "gpt2", "gpt2", edit_weights=add_masks)
    load(tmp_path / "llama")
    load(tmp_path / "gpt2")


def test_tied_head_may_be_stored_twice(tmp_path: Path) -> None:
    def store_twice(weights: Weights) -> None:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]

    def store_another(weights: Weights) -> None:
        store_twice(weights)
        weights["lm_head.weight"] = weights["lm_head.weight"] + 1

    write_checkpoint(tmp_path / "same", "llama3", edit_weights=store_twice)
    write_checkpoint(tmp_path / "other", "llama3", edit_weights=store_another)
    load(tmp_path / "same")
    assert "lm_head.weight differs from model.embed_tokens.weight" in refusal(tmp_path / "other")


# -- bad tensors -----------------------------------------------------------------------------------


def without(name: str) -> Edit:
    return lambda weights: weights.__delitem__(name)


def with_shape(name: str, *shape: int) -> Edit:
    return lambda weights: weights.__setitem__(name, np.ones(shape, np.float32))


def with_value(name: str, index: tuple[int, ...], value: float) -> Edit:
    return lambda weights: weights[name].__setitem__(index, value)


K_PROJ = "model.layers.2.self_attn.k_proj.weight"


BAD_TENSORS: list[tuple[str, Edit]] = [
    ("llama", without(K_PROJ)),
    ("llama", without("lm_head.weight")),
    ("qwen2", without("model.layers.0.self_attn.v_proj.bias")),
    ("llama", with_shape(K_PROJ, 64, 64)),
    ("llama", with_shape(K_PROJ, 32 * 64)),
    ("gpt2", with_shape("transformer.h.0.mlp.c_fc.weight", 256, 64)),
    ("llama", with_shape("model.norm.weight", 65)),
    ("llama", with_value(K_PROJ, (7, 3), np.nan)),
    ("llama", with_value("model.norm.weight", (5,), -np.inf)),
    ("qwen2", with_value("model.layers.0.self_attn.q_proj.bias", (0,), np.inf)),
    ("llama", with_shape("model.layers.0.self_attn.q_proj.bias", 64)),
    ("llama", lambda weights: weights.update({f"x{i}": np.ones(1, np.float32) for i in range(7)})),
    ("llama", lambda weights: weights.update({K_PROJ: np.ones((32, 64), np.int8)})),
    ("lfm2", with_shape("model.layers.0.conv.conv.weight", 64, 1, 4)),
    ("qwen3.5", with_shape("model.layers.0.linear_attn.A_log", 5)),
    ("qwen3.5", with_shape("model.layers.0.linear_attn.conv1d.weight", 192, 1, 4)),
    ("qwen3-next", without("model.layers.0.linear_attn.dt_bias")),
    ("gpt-oss", with_shape("model.layers.1.self_attn.sinks", 2)),
    ("gpt-oss", with_value("model.layers.0.mlp.router.bias", (4,), np.nan)),
    ("lfm2-moe", with_value("model.layers.1.feed_forward.gate.weight", (5, 1), np.inf)),
    ("qwen3.5-moe", without("model.layers.3.mlp.experts.5.down_proj.weight")),
    ("gemma4", with_shape("model.embed_tokens_per_layer.weight", 320, 64)),
    ("gemma4-moe", with_shape("model.layers.0.experts.gate_up_proj", 5, 80, 48)),
]


def test_bad_tensors_are_named(tmp_path: Path) -> None:
    def load_edited(case: tuple[str, Edit]) -> None:
        family, edit = case
        load(write_checkpoint(tmp_path, family, edit_weights=edit))

    check_refusals("tensor", BAD_TENSORS, load_edited, name=lambda case: case[0], hidden=tmp_path)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
def test_non_finite_in_every_dtype(dtype: str, value: float, tmp_path: Path) -> None:
    write_checkpoint(
        tmp_path, "llama", dtype=dtype, edit_weights=with_value(K_PROJ, (31, 63), value)
    )
    assert f"{K_PROJ} (our layers.2.qkv_proj.weight) holds" in refusal(tmp_path)


def test_largest_finite_value_is_fine(tmp_path: Path) -> None:
    largest = float(np.finfo(np.float16).max)
    edit = with_value("model.norm.weight", (0,), largest)
    write_checkpoint(tmp_path, "llama", dtype="float16", edit_weights=edit)
    load(tmp_path)


def test_config_of_another_model(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "llama")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2}))
    assert "no place for the tensors model.layers.2." in refusal(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 4}))
    assert "tensor model.layers.3." in refusal(tmp_path)


# -- bad files -------------------------------------------------------------------------------------


def test_no_weights(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "llama")
    (tmp_path / "model.safetensors").unlink()
    assert "neither model.safetensors nor model.safetensors.index.json" in refusal(tmp_path)


def test_a_directory_without_a_model(tmp_path: Path) -> None:
    assert "is not a model: the directory has no config.json" in refusal(tmp_path)
    write_checkpoint(tmp_path, "llama")
    (tmp_path / "config.json").unlink()
    assert "is not a model: the directory has no config.json" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("adapter_model.safetensors", "holds a LoRA adapter.*merge it into its base model"),
        ("consolidated.safetensors", "holds Mistral's or Meta's own format"),
        ("pytorch_model-00001-of-00002.bin", "holds PyTorch files.*convert them"),
        ("model.onnx", "holds a model in another engine's format"),
        ("tiny-Q4_0.gguf", r"holds GGUF files: name one of them: \S+/tiny-Q4_0\.gguf"),
    ],
)
def test_other_formats_are_named(file: str, message: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "llama")
    (tmp_path / "model.safetensors").rename(tmp_path / file)
    with pytest.raises(ValueError, match=message):
        load(tmp_path)


@pytest.mark.parametrize(
    ("quantization", "message"),
    [
        ({"quant_method": "hqq", "bits": 4}, "HQQ, which.*quantization='int4'"),
        ({"quant_method": "quanto", "bits": 8}, "quanto.*quantization='int8'"),
        ({"bits": 4}, "an unnamed method.*'int4'"),
    ],
)
def test_quantizations_of_others_are_named(
    quantization: dict[str, object], message: str, tmp_path: Path
) -> None:
    write_checkpoint(tmp_path, "llama")
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = quantization
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=f"config.json: quantization_config: .*{message}"):
        load(tmp_path)


def test_truncated_file(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "llama")
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    size = path.stat().st_size
    message = (
        f"damaged safetensors file: the header describes {size + 1} bytes, the file has {size}"
    )
    assert message in refusal(tmp_path)


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path, "llama", num_shards=2)


FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def edit_index(directory: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    path = directory / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    edit(index["weight_map"])
    path.write_text(json.dumps(index))


def test_missing_shard(sharded: Path) -> None:
    (sharded / SECOND).unlink()
    message = refusal(sharded)
    assert f'="{SECOND}": there is no such file beside the index' in message
    assert "model.safetensors.index.json: weight_map." in message


def test_truncated_shard(sharded: Path) -> None:
    content = (sharded / SECOND).read_bytes()
    (sharded / SECOND).write_bytes(content[:1000])
    assert f"{SECOND}: damaged safetensors file" in refusal(sharded)


def test_tensor_in_another_shard_than_the_index_says(sharded: Path) -> None:
    name = next(iter(load_file(sharded / FIRST)))
    edit_index(sharded, lambda weight_map: weight_map.update({name: SECOND}))
    assert f'{name}="{SECOND}": that file does not hold the tensor' in refusal(sharded)


def test_tensor_that_the_index_does_not_know(sharded: Path) -> None:
    name = next(iter(load_file(sharded / FIRST)))
    edit_index(sharded, lambda weight_map: weight_map.pop(name))
    assert f"{FIRST}: tensor {name} is not in model.safetensors.index.json" in refusal(sharded)


def test_tensor_in_two_shards(sharded: Path) -> None:
    first, second = load_file(sharded / FIRST), load_file(sharded / SECOND)
    name = next(iter(first))
    save_file(second | {name: first[name]}, sharded / SECOND)
    assert f"{SECOND}: tensor {name} is also in {FIRST}" in refusal(sharded)


@pytest.mark.parametrize("name", ["../weights.safetensors", "/etc/passwd", "..\\weights"])
def test_shard_outside_the_directory(sharded: Path, name: str) -> None:
    edit_index(sharded, lambda weight_map: weight_map.update({"lm_head.weight": name}))
    assert "must be a file in the same directory" in refusal(sharded)


@pytest.mark.parametrize("text", ["{}", '{"weight_map": {}}', '{"weight_map": []}', "[]", "{"])
def test_bad_index(sharded: Path, text: str) -> None:
    (sharded / "model.safetensors.index.json").write_text(text)
    assert "model.safetensors.index.json" in refusal(sharded)


# -- checksums -------------------------------------------------------------------------------------


def write_sums(directory: Path) -> None:
    sums = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(directory.iterdir())
    ]
    (directory / "SHA256SUMS").write_text("".join(sums))


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_flipped_bit_is_seen_by_its_checksum(tmp_path: Path, name: str) -> None:
    write_checkpoint(tmp_path, "llama")
    write_sums(tmp_path)
    load(tmp_path)
    content = bytearray((tmp_path / name).read_bytes())
    content[-100] ^= 1
    (tmp_path / name).write_bytes(content)
    assert refusal(tmp_path).startswith(f"{tmp_path / name}: damaged: its SHA-256 is ")


def test_listed_file_that_nobody_reads_may_be_missing(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "llama")
    (tmp_path / "README.md").write_text("# tiny")
    write_sums(tmp_path)
    (tmp_path / "README.md").unlink()
    load(tmp_path)


@pytest.mark.parametrize("line", ["", "nonsense", f"{'0' * 63}  config.json", f"{'0' * 64}"])
def test_bad_line_of_checksums(tmp_path: Path, line: str) -> None:
    write_checkpoint(tmp_path, "llama")
    (tmp_path / "SHA256SUMS").write_text(f"{line}\n")
    assert "SHA256SUMS: line 1" in refusal(tmp_path)


@pytest.mark.parametrize("name", ["../config.json", "/etc/passwd"])
def test_checksum_of_a_file_elsewhere(tmp_path: Path, name: str) -> None:
    write_checkpoint(tmp_path, "llama")
    (tmp_path / "SHA256SUMS").write_text(f"{'0' * 64}  {name}\n")
    assert "must be a file beside it" in refusal(tmp_path)


def test_checksum_of_a_file_with_many_names_is_computed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(tmp_path, "llama")
    config = (tmp_path / "config.json").read_bytes()
    (tmp_path / "link.json").symlink_to("config.json")
    line = f"{hashlib.sha256(config).hexdigest()}  "
    (tmp_path / "SHA256SUMS").write_text(
        "".join(f"{line}{name}\n" for name in ["config.json", "./config.json", "link.json"] * 1000)
    )
    hashed: list[Path] = []
    digest = checksums.file_digest
    monkeypatch.setattr(checksums, "file_digest", lambda path: hashed.append(path) or digest(path))
    load(tmp_path)
    assert hashed == [tmp_path / "config.json"]


def test_checksums_that_contradict_each_other(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "llama")
    lines = (f"{digit * 64}  config.json\n" for digit in "01")
    (tmp_path / "SHA256SUMS").write_text("".join(lines))
    with pytest.raises(ValueError, match=r"line 2 gives 'config.json' another digest"):
        load(tmp_path)
