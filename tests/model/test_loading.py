"""Loading a model directory: the arrays that a backend gets, and directories that are refused."""

import hashlib
import json
import re
import shutil
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


def test_norms_of_gemma2_are_one_more_in_f32(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "gemma2", dtype="bfloat16")
    stored = load_file(tmp_path / "model.safetensors")["model.norm.weight"]
    source, backend = parameters(tmp_path)
    source.vector("norm.weight", 48)
    assert backend.arrays[0].dtype == np.float32  # 1 + w does not fit bfloat16
    np.testing.assert_array_equal(backend.arrays[0], stored.astype(np.float32) + 1)


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


# -- bad files -------------------------------------------------------------------------------------

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"
Damage = Callable[[Path], object]


def edited(file: str, edit: Callable[[dict[str, Any]], object]) -> Damage:
    def damage(directory: Path) -> None:
        content = json.loads((directory / file).read_text())
        edit(content)
        (directory / file).write_text(json.dumps(content))

    return damage


def with_config(**changes: Any) -> Damage:
    return edited("config.json", lambda config: config.update(changes))


def in_index(change: Callable[[dict[str, str], str], object]) -> Damage:
    """Changes where tensors are, of which one is the first in the first file."""

    def damage(directory: Path) -> None:
        name = next(iter(load_file(directory / FIRST)))
        edited(INDEX, lambda index: change(index["weight_map"], name))(directory)

    return damage


def removed(file: str) -> Damage:
    return lambda directory: (directory / file).unlink()


def renamed(name: str) -> Damage:
    return lambda directory: (directory / "model.safetensors").rename(directory / name)


def written(file: str, text: str) -> Damage:
    return lambda directory: (directory / file).write_text(text)


def cut_at(file: str, num_bytes: int) -> Damage:
    return lambda directory: (directory / file).write_bytes(
        (directory / file).read_bytes()[:num_bytes]
    )


def into_both(directory: Path) -> None:
    name, tensor = next(iter(load_file(directory / FIRST).items()))
    save_file(load_file(directory / SECOND) | {name: tensor}, directory / SECOND)


DAMAGES: dict[str, Damage] = {
    "no directory": shutil.rmtree,
    "no config": removed("config.json"),
    "no weights": removed("model.safetensors"),
    "a config of fewer layers": with_config(num_hidden_layers=2),
    "a config of more layers": with_config(num_hidden_layers=4),
    "a LoRA adapter": renamed("adapter_model.safetensors"),
    "the format of Mistral and Meta": renamed("consolidated.safetensors"),
    "PyTorch files": renamed("pytorch_model-00001-of-00002.bin"),
    "ONNX": renamed("model.onnx"),
    "GGUF": renamed("tiny-Q4_0.gguf"),
    "HQQ": with_config(quantization_config={"quant_method": "hqq", "bits": 4}),
    "quanto": with_config(quantization_config={"quant_method": "quanto", "bits": 8}),
    "an unnamed method": with_config(quantization_config={"bits": 4}),
    "a byte is missing": cut_at("model.safetensors", -1),
    "an empty line of checksums": written("SHA256SUMS", "\n"),
    "no line of checksums": written("SHA256SUMS", "nonsense\n"),
    "a short checksum": written("SHA256SUMS", f"{'0' * 63}  config.json\n"),
    "a checksum of nothing": written("SHA256SUMS", f"{'0' * 64}\n"),
    "a checksum elsewhere": written("SHA256SUMS", f"{'0' * 64}  ../config.json\n"),
    "a checksum of the system": written("SHA256SUMS", f"{'0' * 64}  /etc/passwd\n"),
    "two checksums": written("SHA256SUMS", f"{'0' * 64}  config.json\n{'1' * 64}  config.json\n"),
}
DAMAGES_OF_SHARDS: dict[str, Damage] = {
    "no second file": removed(SECOND),
    "a cut file": cut_at(SECOND, 1000),
    "a tensor of another file": in_index(lambda files, name: files.update({name: SECOND})),
    "a tensor that the index lacks": in_index(lambda files, name: files.pop(name)),
    "a tensor in two files": into_both,
    "a file above": in_index(lambda files, name: files.update({name: "../weights.safetensors"})),
    "a file of the system": in_index(lambda files, name: files.update({name: "/etc/passwd"})),
    "a file of Windows": in_index(lambda files, name: files.update({name: "..\\weights"})),
    "an empty index": written(INDEX, "{}"),
    "an index of nothing": written(INDEX, '{"weight_map": {}}'),
    "a list of files": written(INDEX, '{"weight_map": []}'),
    "a list as index": written(INDEX, "[]"),
    "no JSON": written(INDEX, "{"),
}


def test_damaged_directories_are_refused(tmp_path: Path) -> None:
    whole = write_checkpoint(tmp_path / "whole", "llama")
    shards = write_checkpoint(tmp_path / "shards", "llama", num_shards=2)

    def load_damaged(name: str) -> None:
        shutil.rmtree(tmp_path / "model", ignore_errors=True)
        shutil.copytree(whole if name in DAMAGES else shards, tmp_path / "model")
        (DAMAGES | DAMAGES_OF_SHARDS)[name](tmp_path / "model")
        load(tmp_path / "model")

    names = (*DAMAGES, *DAMAGES_OF_SHARDS)
    check_refusals("directory", names, load_damaged, name=str, hidden=tmp_path)


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
