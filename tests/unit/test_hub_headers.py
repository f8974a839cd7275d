"""Headers of models on a hub on a local port: what is fetched, and that it opens as the whole would."""

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter
from huggingface_hub import constants

from pellucid.loading import hub_stand_ins
from pellucid.loading.gguf_file import GgufFile
from pellucid.loading.hub import find_model
from pellucid.loading.hub_headers import find_headers
from pellucid.loading.open_model import open_stored_model
from pellucid.loading.stored_model import StoredModel
from support.checkpoints import checkpoint_config, write_checkpoint
from support.command_line import CommandLine
from support.fake_hub import FakeHub, serve, use_hub
from support.gguf_files import finish, write_gguf
from support.refusals import check_refusals

MODEL = "owner/tiny-model"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    with serve(FakeHub(MODEL, {})) as hub:
        use_hub(monkeypatch, hub.url, tmp_path / "cache")
        yield hub


def files_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def facts(stored: StoredModel) -> tuple[object, ...]:
    tensors = {name: (info.shape, info.num_bytes) for name, info in infos(stored)}
    return stored.config, stored.default_sampling_params, stored.notes, tensors


def infos(stored: StoredModel) -> list[tuple[str, object]]:
    return [(name, stored.tensors.info(name)) for name in stored.tensors]


def opened(model: str) -> tuple[object, ...]:
    with find_headers(model) as location:
        assert location.name == model
        return facts(open_stored_model(location.path, verifies_checksums=False))


def opened_here(path: Path) -> tuple[object, ...]:
    with find_headers(str(path)) as location:
        assert location.path == path
        return facts(open_stored_model(path))


@pytest.mark.parametrize("num_shards", [1, 3])
@pytest.mark.parametrize("piece_bytes", [100, 1 << 18], ids=["in pieces", "at once"])
def test_a_directory(
    hub: FakeHub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    num_shards: int,
    piece_bytes: int,
) -> None:
    here = write_checkpoint(
        tmp_path / "here", "llama", num_shards=num_shards, config_overrides={"vocab_size": 9000}
    )
    monkeypatch.setattr(hub_stand_ins, "_SAFETENSORS_PIECE_BYTES", piece_bytes)
    tokens = b'{"added_tokens": []}'
    others = {"pytorch_model.bin": b"pickle" * 100, "tokenizer.json": tokens}
    hub.files = {**files_of(here), **others}
    assert opened(MODEL) == opened_here(here)
    with find_headers(MODEL) as location:
        assert (location.path / "tokenizer.json").read_bytes() == tokens
    hub.num_sent.clear()
    assert opened(MODEL) == opened_here(here)
    sent = {name: num for name, num in hub.num_sent.items() if name.endswith(".safetensors")}
    assert len(sent) == num_shards
    headers = {name: 8 + int.from_bytes(hub.files[name][:8], "little") for name in sent}
    assert sent == {
        name: max(header, min(piece_bytes, len(hub.files[name])))
        for name, header in headers.items()
    }
    assert hub.num_sent["pytorch_model.bin"] == 0


def llama3_gguf(folder: Path, add: Callable[[GGUFWriter], None] | None = None) -> Path:
    """With a tensor that is a fact, and 5 MB of weights."""
    folder.mkdir()
    directory = write_checkpoint(folder / "hf", "llama3", config_overrides={"vocab_size": 20_000})
    return write_gguf(folder / "tiny-F32.gguf", directory, edit=add)


@pytest.mark.parametrize("piece_bytes", [1000, 1 << 16], ids=["in pieces", "at once"])
def test_a_gguf_file(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece_bytes: int
) -> None:
    path = llama3_gguf(tmp_path / "here")
    monkeypatch.setattr(hub_stand_ins, "_GGUF_PIECE_BYTES", piece_bytes)
    hub.files = {path.name: path.read_bytes(), "README.md": b"# tiny"}
    assert opened(f"{MODEL}:F32") == opened_here(path)
    tensors = GgufFile(path).tensors
    header_bytes = min(info.start for info in tensors.values())
    needed = header_bytes + tensors["rope_freqs.weight"].num_bytes
    assert needed <= hub.num_sent[path.name] <= 2 * needed < path.stat().st_size / 4
    assert set(hub.num_sent) == {path.name}


def test_all_parts_of_a_split_file(hub: FakeHub, tmp_path: Path) -> None:
    def begin_part(writer: GGUFWriter) -> None:
        writer.add_uint16("split.no", 0)
        writer.add_uint16("split.count", 2)

    first = llama3_gguf(tmp_path / "here", begin_part)
    first = first.rename(first.with_name("tiny-00001-of-00002.gguf"))
    second = first.with_name("tiny-00002-of-00002.gguf")
    writer = GGUFWriter(second, "llama")
    writer.add_uint16("split.no", 1)
    writer.add_uint16("split.count", 2)
    writer.add_tensor("blk.0.attn_rot_embd.weight", np.ones(1_000_000, np.float32))
    finish(writer)
    hub.files = {f"F32/{part.name}": part.read_bytes() for part in (first, second)}
    assert opened(MODEL) == opened_here(first)
    assert set(hub.num_sent) == set(hub.files)
    hub.files = {name: data for name, data in hub.files.items() if "00001" in name}
    with pytest.raises(ValueError, match=rf"^{MODEL}/tiny-00002-of-00002.gguf: no such file"):
        opened(MODEL)


@pytest.mark.parametrize("layout", ["directory", "file"])
def test_what_is_in_the_cache_is_not_fetched(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    here = write_checkpoint(tmp_path / "here", "llama")
    hub.files = {".gitattributes": b"", **files_of(here)}
    if layout == "file":
        here = write_gguf(tmp_path / "tiny-F32.gguf", here)
        hub.files = {".gitattributes": b"", here.name: here.read_bytes()}
    find_model(MODEL)
    hub.num_sent.clear()
    assert opened(MODEL) == opened_here(here)
    assert not +hub.num_sent
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert opened(MODEL) == opened_here(here)


def test_what_is_refused_and_named_as_on_the_hub(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = files_of(write_checkpoint(tmp_path / "here", "llama"))
    damaged_weights = (here["model.safetensors"][:-1], b"\xff" * 100)  # a header of 2^64 bytes
    damaged_files = (b"", b"GGUF\3\0\0\0", b"<html>" + bytes(1 << 20))
    caches = (tmp_path / f"cache{number}" for number in itertools.count())
    cases: list[tuple[dict[str, bytes], tuple[int, str] | None]] = [
        ({}, (401, "RepoNotFound")),
        ({}, (403, "GatedRepo")),
        *(({"tiny-Q8_0.gguf": data}, None) for data in damaged_files),
        *((here | {"model.safetensors": data}, None) for data in damaged_weights),
    ]

    def open_it(case: tuple[dict[str, bytes], tuple[int, str] | None]) -> None:
        hub.files, hub.error = case
        use_hub(monkeypatch, hub.url, next(caches))
        opened(MODEL)

    check_refusals("hub_headers", cases, open_it, name=lambda _: "", hidden=hub.url)


def test_a_repository_of_several_gguf_files(hub: FakeHub) -> None:
    hub.files = {"tiny-Q4_K_M.gguf": b"GGUF", "tiny-Q8_0.gguf": b"GGUF", "config.json": b"{}"}
    with pytest.raises(ValueError, match=rf"several GGUF files.* {MODEL}:Q4_K_M, {MODEL}:Q8_0"):
        opened(MODEL)
    assert sum(hub.num_sent.values()) == 2  # config.json


def test_a_plan_needs_config_json_alone(
    hub: FakeHub, tmp_path: Path, pellucid: CommandLine
) -> None:
    here = write_checkpoint(
        tmp_path / "here", "qwen2", dtype="bfloat16", config_overrides={"vocab_size": 9000}
    )
    hub.files = files_of(here)
    machine = ("--memory=20GB", "--bandwidth=20", "--peak=500", "--json", "--gen=10", "--prompt=9")

    def plan(model: str) -> dict[str, float]:
        ran = pellucid("plan", model, *machine)
        assert ran.status == 0, ran.err
        return {n["name"]: n["value"] for n in json.loads(ran.out)["estimates"][0]["numbers"]}

    by_weights = plan(str(here))
    on_hub = plan(MODEL)
    assert set(hub.downloads) == {"config.json"}
    (here / "model.safetensors").unlink()
    assert plan(str(here)) == on_hub
    # The formulas leave out norms and biases.
    assert on_hub["weight_bytes"] == pytest.approx(by_weights["weight_bytes"], rel=0.01)
    assert on_hub["kv_bytes_per_request"] == by_weights["kv_bytes_per_request"]
    (here / "config.json").write_text(
        json.dumps(checkpoint_config("qwen2") | {"quantization_config": {"quant_method": "fp8"}})
    )
    ran = pellucid("plan", str(here), *machine)
    assert ran.status == 2 and "has no weights" in ran.err
