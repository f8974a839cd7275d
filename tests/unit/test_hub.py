import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from pellucid.loading.hub import BUNDLED_MODEL, resolve_model
from support.fake_hub import FakeHub, serve

MODEL = "owner/tiny-model"
FILES = {
    "config.json": b"{}",
    "model.safetensors": b"weights",
    "tokenizer.json": b"{}",
    "modeling_tiny.py": b"raise SystemExit",
    "pytorch_model.bin": b"pickle",
    "consolidated.safetensors": b"the weights again",
    "README.md": b"# tiny",
}


def use_hub(monkeypatch: pytest.MonkeyPatch, endpoint: str, cache: Path) -> None:
    for name, value in {
        "ENDPOINT": endpoint,
        "HUGGINGFACE_CO_URL_TEMPLATE": endpoint + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_CACHE": str(cache),
        "HF_HUB_OFFLINE": False,
        "HF_HUB_DISABLE_PROGRESS_BARS": True,
        "HF_HUB_DISABLE_XET": True,
    }.items():
        monkeypatch.setattr(constants, name, value)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("HF_TOKEN", raising=False)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    with serve(FakeHub(MODEL, FILES, revisions=("main", "v2"))) as hub:
        use_hub(monkeypatch, hub.url, tmp_path / "cache")
        yield hub


@pytest.fixture
def closed_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def test_directory_is_itself(tmp_path: Path) -> None:
    assert resolve_model(str(tmp_path)) == tmp_path


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    assert resolve_model("~/model") == tmp_path / "model"


def test_directory_wins_over_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / MODEL).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert resolve_model(MODEL) == Path(MODEL)


def test_directory_has_no_revision(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"revision='v2': only a hub id has revisions"):
        resolve_model(str(tmp_path), "v2")


def test_bundled_model_has_no_revision() -> None:
    assert BUNDLED_MODEL.parent.name == "assets"
    with pytest.raises(ValueError, match=r"pellucid-5m"):
        resolve_model(None, "v2")


def test_file_is_not_a_model(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"")
    with pytest.raises(ValueError, match=r"model\.safetensors'.*must be a directory"):
        resolve_model(str(file))


@pytest.mark.parametrize(
    "model",
    [
        *("", "gpt2", "./missing", "/no/such/dir", "../owner", "a/b/c", "owner/", "owner/na me"),
        *("a\0b", "~no-such-user/model", "x" * 5000),
    ],
)
def test_neither_directory_nor_hub_id(model: str) -> None:
    with pytest.raises(ValueError, match="neither a directory nor a hub id") as error:
        resolve_model(model)
    assert repr(model) in str(error.value)


def test_hub_id_with_two_dashes() -> None:
    with pytest.raises(ValueError, match=r"model='owner/two--dashes': not a hub id"):
        resolve_model("owner/two--dashes")


def test_transfer_that_breaks_off(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot_download(*_: object, **__: object) -> str:
        raise RuntimeError("connection reset by peer")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    with pytest.raises(ConnectionError, match=rf"{MODEL}.*broke off.*reset by peer"):
        resolve_model(MODEL)


def test_download_takes_data_only(hub: FakeHub) -> None:
    directory = resolve_model(MODEL)
    wanted = {"config.json", "model.safetensors", "tokenizer.json"}
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == {
        name: FILES[name] for name in wanted
    }
    assert set(hub.downloads) == wanted


def test_cached_model_needs_no_network(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, closed_port: str
) -> None:
    directory = resolve_model(MODEL, "v2")
    monkeypatch.setattr(constants, "ENDPOINT", closed_port)
    assert resolve_model(MODEL, "v2") == directory
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert resolve_model(MODEL, "v2") == directory


def test_unknown_revision(hub: FakeHub) -> None:
    with pytest.raises(ValueError, match=r"revision='v3': .*no such branch, tag or commit"):
        resolve_model(MODEL, "v3")


def test_unknown_model(hub: FakeHub) -> None:
    hub.error = (401, "RepoNotFound")
    with pytest.raises(ValueError, match=rf"{MODEL}.*no such model at {hub.url}.*HF_TOKEN"):
        resolve_model(MODEL)


def test_gated_model(hub: FakeHub) -> None:
    hub.error = (403, "GatedRepo")
    with pytest.raises(ValueError, match=rf"agreement first: accept it at {hub.url}/{MODEL}"):
        resolve_model(MODEL)


def test_hub_error(hub: FakeHub) -> None:
    hub.error = (418, "")
    with pytest.raises(ConnectionError, match=rf"{MODEL}.*{hub.url} answered 418"):
        resolve_model(MODEL)


def test_no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, closed_port: str) -> None:
    use_hub(monkeypatch, closed_port, tmp_path)
    with pytest.raises(
        ConnectionError, match=rf"{MODEL}.*{closed_port} cannot be reached"
    ) as error:
        resolve_model(MODEL)
    assert "connect once to download it, or name a directory" in str(error.value)


def test_offline_mode_asks_nobody(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConnectionError, match=r"HF_HUB_OFFLINE is set"):
        resolve_model(MODEL)
    assert hub.downloads == []


def test_unwritable_cache(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    cache = tmp_path / "file" / "cache"  # a directory inside a file cannot be made, even by root
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    with pytest.raises(OSError, match=rf"cache directory {cache} cannot be written.*set HF_HOME"):
        resolve_model(MODEL)
