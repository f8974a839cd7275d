"""Checkpoints of `pellucid quantize`: the same computation as quantizing at load, and damaged files are
refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from pellucid import LLM, SamplingParams
from pellucid.backends.numpy.backend import NumpyBackend
from pellucid.backends.quantization.formats import FORMATS
from pellucid.backends.quantization.weights import quantize_matrix
from pellucid.cli import main
from pellucid.loading.checkpoint import Checkpoint
from pellucid.loading.file_names import INDEX_FILE
from pellucid.loading.quantized_writer import QuantizedWriter
from pellucid.quantizing import quantize_model
from support.checkpoints import DISTINCT_FAMILIES, write_checkpoint
from support.decoders import load_decoder
from support.decoding import prompt_logits
from support.refusals import check_refusals

OPS = NumpyBackend()
PROMPT = list(range(10, 40))

Arrays = dict[str, np.ndarray]


def logits(directory: Path, quantization: str = "none") -> np.ndarray:
    decoder, config = load_decoder(directory, OPS, quantization=quantization)
    return prompt_logits(decoder, config, OPS, PROMPT)


def quantized(tmp_path: Path, quantization: str = "int4-zp", family: str = "llama") -> Path:
    write_checkpoint(tmp_path / "source", family)
    quantize_model(str(tmp_path / "source"), tmp_path / "out", quantization)
    return tmp_path / "out"


def rewrite(
    directory: Path,
    edit: Callable[[Arrays], Any] | None = None,
    edit_metadata: Callable[[dict[str, str]], Any] | None = None,
) -> None:
    path = directory / "model.safetensors"
    arrays = load_file(path)
    with safe_open(path, "np") as file:
        metadata = file.metadata()
    if edit is not None:
        edit(arrays)
    if edit_metadata is not None:
        edit_metadata(metadata)
    save_file(arrays, path, metadata)


# -- what is written -------------------------------------------------------------------------------


@pytest.mark.parametrize("quantization", FORMATS)
def test_same_logits_as_quantizing_while_loading(quantization: str, tmp_path: Path) -> None:
    output = quantized(tmp_path, quantization)
    expected = logits(tmp_path / "source", quantization)
    assert (logits(output) == expected).all()
    assert (logits(output, quantization) == expected).all()
    assert (expected != logits(tmp_path / "source")).any()


@pytest.mark.parametrize("family", DISTINCT_FAMILIES)
def test_every_family_is_quantized(family: str, tmp_path: Path) -> None:
    """Every matrix is codes, those of experts too, and computes as one that was quantized while loading."""
    output = quantized(tmp_path, "int4", family)
    assert (logits(output) == logits(tmp_path / "source", "int4")).all()
    floats = {
        name: array.shape
        for name, array in load_file(output / "model.safetensors").items()
        if array.dtype == np.float32 and array.ndim > 1
    }
    # What is not multiplied with rows of many tokens, or not at all.
    unquantized = (".router.", ".shared_gate.", "conv.weight", "layer_embeddings.weight")
    assert all(any(part in name for part in unquantized) for name in floats), floats


def test_the_report_says_what_moved_and_what_was_saved(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "source", "llama", dtype="bfloat16")
    steps: list[tuple[int, int]] = []
    report = quantize_model(
        str(tmp_path / "source"), tmp_path / "out", "int4", None, lambda *step: steps.append(step)
    )
    stored = load_file(tmp_path / "source/model.safetensors")
    assert report.bytes_before == sum(tensor.nbytes for tensor in stored.values()) == steps[-1][0]
    written = load_file(tmp_path / "out/model.safetensors")
    assert report.bytes_after == sum(tensor.nbytes for tensor in written.values())
    assert len(report.matrices) == 2 + 4 * 3  # embedding and head, four in each layer
    assert all(0.05 < matrix.error.relative_rms < 0.12 for matrix in report.matrices)
    assert 0.05 < report.relative_rms_error < 0.12


def test_text_comes_out_of_the_directory(tmp_path: Path) -> None:
    output = quantized(tmp_path, "int8")
    params = SamplingParams(temperature=0, max_tokens=8)
    [ours] = LLM(str(output), backend="numpy").generate(["the fox"], params)
    [theirs] = LLM(str(tmp_path / "source"), backend="numpy", quantization="int8").generate(
        ["the fox"], params
    )
    assert ours.outputs[0].token_ids == theirs.outputs[0].token_ids
    name = "generation_config.json"
    assert (output / name).read_bytes() == (tmp_path / "source" / name).read_bytes()
    written, read = (
        Tokenizer.from_file(str(directory / "tokenizer.json"))
        for directory in (output, tmp_path / "source")
    )
    assert written.to_str() == read.to_str()


def test_large_models_come_in_several_files(tmp_path: Path) -> None:
    output = quantized(tmp_path, "int4-zp")
    arrays = Checkpoint(output)
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "config.json").write_bytes((output / "config.json").read_bytes())
    writer = QuantizedWriter(copy, FORMATS["int4-zp"], max_file_bytes=10_000)
    weights = {}
    rng = np.random.default_rng(0)
    for name in ("a", "b", "c"):
        weights[name] = quantize_matrix(rng.normal(size=(100, 64)), FORMATS["int4-zp"])
        writer.add_matrix(f"{name}.weight", weights[name])
        writer.add_floats(f"{name}.norm", np.ones(2000, np.float32))
    writer.finish()
    assert (copy / INDEX_FILE).exists()
    assert len(list(copy.glob("model-*-of-00003.safetensors"))) == 3
    assert list(Checkpoint(copy)) != list(arrays)
    for name, matrix in weights.items():
        assert (Checkpoint(copy).codes(f"{name}.weight.codes") == matrix.codes).all()


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_checkpoint(tmp_path / "in", "qwen3")
    arguments = ["quantize", str(tmp_path / "in"), str(tmp_path / "out"), "--quantization", "int8"]
    assert main([*arguments, "--json"]) == 0
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert report["quantization"] == "int8" and report["bytes_after"] < report["bytes_before"]
    assert report["matrices"][0]["name"] == "embed_tokens"
    assert 0.003 < report["relative_rms_error"] < 0.008
    assert "smaller" in err

    assert main(["quantize", str(tmp_path / "in"), str(tmp_path / "four")]) == 0
    out, _ = capsys.readouterr()
    assert "layers.2.down_proj" in out and "%" in out
    config = json.loads((tmp_path / "four/config.json").read_text())
    assert config["quantization_config"] == {
        "quant_method": "pellucid",
        "format": "int4",
        "version": 1,
    }

    assert main(arguments) == 2
    assert "must not exist yet" in capsys.readouterr().err


# -- what is refused -------------------------------------------------------------------------------


def test_another_format_than_the_stored_one(tmp_path: Path) -> None:
    output = quantized(tmp_path, "int8")
    with pytest.raises(
        ValueError, match=r"quantization='int4': .*out is quantized already; .*'none' and 'int8'"
    ):
        load_decoder(output, OPS, quantization="int4")
    with pytest.raises(ValueError, match="is quantized already: int8"):
        quantize_model(str(output), tmp_path / "again", "int4")


def test_bad_arguments(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "in", "llama")
    with pytest.raises(ValueError, match="quantization='none': allowed are int8, int8-channel"):
        quantize_model(str(tmp_path / "in"), tmp_path / "out", "none")
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(ValueError, match=r"model\.gguf'.* must be a directory"):
        quantize_model(str(tmp_path / "model.gguf"), tmp_path / "out", "int4")


def test_nothing_is_left_of_a_failure(tmp_path: Path) -> None:
    def spoil(weights: Arrays) -> None:
        weights["model.layers.2.mlp.down_proj.weight"][3, 4] = np.inf

    write_checkpoint(tmp_path / "in", "llama", edit_weights=spoil)
    with pytest.raises(ValueError, match=r"down_proj.* holds inf at \[3, 4\]"):
        quantize_model(str(tmp_path / "in"), tmp_path / "out", "int4")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


DAMAGES: list[Callable[[Arrays], Any]] = [
    lambda a: a.pop("lm_head.weight.scales"),
    lambda a: a.update({"lm_head.weight.codes": a["lm_head.weight.codes"][:, :-1].copy()}),
    lambda a: a.update({"lm_head.weight.scales": a["lm_head.weight.scales"].astype(np.float32)}),
    lambda a: a["lm_head.weight.scales"].__setitem__((7, 1), np.nan),
    lambda a: a["lm_head.weight.zero_points"].__setitem__((7, 1), 16),
    lambda a: a.update({"extra": np.ones(3, np.float32)}),
    lambda a: a.pop("norm.weight"),
]


METADATA: list[dict[str, str]] = [
    {"pellucid_format": "int8"},
    {"pellucid_version": "2"},
    {"pellucid_shapes": "["},
    {"pellucid_shapes": '{"lm_head.weight": [0, 64]}'},
    {"pellucid_shapes": '{"lm_head.weight": [320]}'},
    {"pellucid_shapes": '{"lm_head.weight": [320, 2e9]}'},
    {"pellucid_shapes": "{}"},
]
CONFIGS: list[dict[str, Any]] = [
    {"quant_method": "hqq"},
    {"format": "int3"},
    {"version": 2},
    {"format": "int8"},
]


def test_damage_is_named(tmp_path: Path) -> None:
    sound = quantized(tmp_path)

    def copied() -> Path:
        return shutil.copytree(sound, tmp_path / "damaged", dirs_exist_ok=True)

    def load_damaged(edit: Callable[[Arrays], Any]) -> None:
        rewrite(copied(), edit)
        load_decoder(tmp_path / "damaged", OPS)

    def load_with_metadata(changes: dict[str, str]) -> None:
        rewrite(copied(), edit_metadata=lambda metadata: metadata.update(changes))
        load_decoder(tmp_path / "damaged", OPS)

    def load_with_config(changes: dict[str, Any]) -> None:
        config = json.loads((copied() / "config.json").read_text())
        config["quantization_config"] |= changes
        (tmp_path / "damaged/config.json").write_text(json.dumps(config))
        load_decoder(tmp_path / "damaged", OPS)

    check_refusals("quantized_array", DAMAGES, load_damaged, name=lambda _: "", hidden=tmp_path)
    check_refusals("quantized_metadata", METADATA, load_with_metadata, hidden=tmp_path)
    check_refusals("quantized_config", CONFIGS, load_with_config, hidden=tmp_path)
    with pytest.raises(ValueError, match="pellucid_shapes: not JSON"):
        load_with_metadata({"pellucid_shapes": "[" * 10**5})


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return quantized(tmp_path_factory.mktemp("fuzz"))


@given(st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 255)), min_size=1, max_size=4))
@settings(max_examples=40)
def test_damaged_headers_are_refused_by_name_or_load(
    small: Path, changes: list[tuple[int, int]]
) -> None:
    path = small / "model.safetensors"
    good = path.read_bytes()
    header_bytes = 8 + int.from_bytes(good[:8], "little")
    data = bytearray(good)
    for position, value in changes:
        data[position % header_bytes] = value
    path.write_bytes(data)
    try:
        load_decoder(small, OPS)
    except ValueError as error:
        if str(small) not in str(error):
            raise AssertionError(f"{error}: which file?") from error
    finally:
        path.write_bytes(good)


def test_every_truncation_is_refused(small: Path) -> None:
    path = small / "model.safetensors"
    good = path.read_bytes()
    for length in range(0, len(good), 997):
        path.write_bytes(good[:length])
        with pytest.raises(ValueError, match=r"model\.safetensors: "):
            load_decoder(small, OPS)
    path.write_bytes(good)
