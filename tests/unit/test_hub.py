"""The files that a model's name stands for: directories, GGUF files, and a hub on a local port."""

import itertools
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from huggingface_hub import constants

from pellucid.loading.hub import BUNDLED_MODEL, find_model, find_tokenizer
from support.checkpoints import checkpoint_config
from support.fake_hub import FakeHub, serve, use_hub
from support.refusals import check_refusals

MODEL = "owner/tiny-model"
FILES = {
    "config.json": json.dumps(checkpoint_config("llama")).encode(),
    "model.safetensors": b"weights",
    "tokenizer.json": b"{}",
    "modeling_tiny.py": b"raise SystemExit",
    "pytorch_model.bin": b"pickle",
    "consolidated.safetensors": b"the weights again",
    "README.md": b"# tiny",
}

GGUF_FILES = {
    ".gitattributes": b"",
    "README.md": b"# tiny",
    "Tiny-Q4_K_M.gguf": b"GGUF q4",
    "Tiny-UD-Q4_K_XL.gguf": b"GGUF xl",
    "tiny.q8_0.gguf": b"GGUF q8",
    "BF16/Tiny-BF16-00001-of-00002.gguf": b"GGUF 1",
    "BF16/Tiny-BF16-00002-of-00002.gguf": b"GGUF 2",
    "mmproj-F16.gguf": b"GGUF of images",
}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    with serve(FakeHub(MODEL, FILES, revisions=("main", "v2"))) as hub:
        use_hub(monkeypatch, hub.url, tmp_path / "cache")
        yield hub


@pytest.fixture
def closed_port() -> Iterator[str]:
    """The address of a port that is taken, so that nobody else listens there, and not listened on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def test_directory_is_itself(tmp_path: Path) -> None:
    assert find_model(str(tmp_path)).path == tmp_path


def test_names_for_people(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_model(None).name == "pellucid-5m"
    assert find_model(MODEL).name == MODEL
    snapshot = find_model(MODEL).path  # whose own name is a commit's hash
    assert find_model(str(snapshot)).name == MODEL
    monkeypatch.chdir(snapshot.parent)
    assert find_model(snapshot.name).name == MODEL
    (tmp_path / "my-model").mkdir()
    monkeypatch.chdir(tmp_path / "my-model")
    assert find_model(".").name == "my-model"
    (tmp_path / "x.gguf").symlink_to("blob")
    (tmp_path / "blob").write_bytes(b"GGUF")
    assert find_model("../x.gguf").name == "x.gguf"
    assert find_model("../blob").name == "blob"  # as in Ollama's store


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    assert find_model("~/model").path == tmp_path / "model"


def test_directory_wins_over_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / MODEL).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert find_model(MODEL).path == Path(MODEL)


def test_bundled_model_has_no_revision() -> None:
    assert BUNDLED_MODEL.parent.name == "assets"
    with pytest.raises(ValueError, match=r"pellucid-5m"):
        find_model(None, "v2")


def test_a_short_name_of_the_command_line() -> None:
    with pytest.raises(ValueError, match=r"short names are.*'unsloth/Qwen3-0\.6B-GGUF:Q4_K_M'"):
        find_model("qwen3:0.6b")
    with pytest.raises(ValueError, match=r"model='owner/two--dashes': not a hub id"):
        find_model("owner/two--dashes")


class Asked(NamedTuple):
    """What is asked for, and a repository's files or a hub's error."""

    model: str = MODEL
    revision: str | None = None
    files: dict[str, bytes] = FILES
    error: tuple[int, str] | None = None


def with_settings(config: dict[str, object], **beside: dict[str, object]) -> Asked:
    """With other keys of config.json, and with other files."""
    own = {f"{name}.json": json.dumps(settings).encode() for name, settings in beside.items()}
    own["config.json"] = json.dumps(checkpoint_config("llama") | config).encode()
    return Asked(files=FILES | own)


ALGORITHM = {"quantization": {"quant_algo": "W4A8_AWQ"}}
REFUSED = [
    *map(Asked, ("", "gpt9", "./missing", "/no/such/dir", "../owner", "a/b/c", "owner/", "owner/na me")),
    *map(Asked, ("a\0b", "~no-such-user/model", "x" * 5000, "weights.safetensors")),
    Asked("there", "v2"),
    Asked(revision="v3"),
    Asked(error=(401, "RepoNotFound")),
    Asked(error=(403, "GatedRepo")),
    *(Asked(MODEL + tag, files=GGUF_FILES) for tag in ("", ":Q3_K", ":Q4_K")),
    Asked(f"{MODEL}:Q4_K_M"),
    Asked(files={"adapter_config.json": b"{}", "adapter_model.safetensors": b"x"}),
    Asked(files={"params.json": b"{}", "consolidated.safetensors": b"x"}),
    Asked(files={"config.json": FILES["config.json"], "pytorch_model.bin": b"x"}),
    Asked(files={"README.md": b"# nothing"}),
    with_settings({"architectures": ["MambaForCausalLM"]}),
    with_settings({"quantization_config": {"quant_method": "hqq", "bits": 4}}),
    with_settings({}, hf_quant_config=ALGORITHM),
    with_settings({}, quantize_config={"bits": 5}),
    with_settings({"quantization": {"bits": 4, "group_size": 16}}),
]  # fmt: skip


def test_what_is_refused_before_weights_are_downloaded(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "weights.safetensors").touch()
    monkeypatch.chdir(tmp_path)
    caches = (tmp_path / f"cache{number}" for number in itertools.count())

    def ask(asked: Asked) -> None:
        use_hub(monkeypatch, hub.url, next(caches))
        hub.files, hub.error = asked.files, asked.error
        find_model(asked.model, asked.revision)

    def named(asked: Asked) -> str:
        words = (repr(asked.model), asked.revision or "", *sorted(asked.files.keys() - FILES))
        return " ".join(filter(None, words))

    check_refusals("hub", REFUSED, ask, name=named, hidden=(hub.url, tmp_path))
    assert not {name for name in hub.downloads if name.endswith(("safetensors", "bin", ".gguf"))}


def test_tokenizers_that_are_refused(hub: FakeHub) -> None:
    names = ("", "gpt2", "./missing", "owner/name:Q4_K_M", "a\0b", "owner/other")
    check_refusals("hub_tokenizer", names, find_tokenizer, hidden=hub.url)


def test_transfer_that_breaks_off(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot_download(*_: object, **__: object) -> str:
        raise RuntimeError("connection reset by peer")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    with pytest.raises(ConnectionError, match=rf"{MODEL}.*broke off.*reset by peer"):
        find_model(MODEL)


def test_download_takes_data_only(hub: FakeHub) -> None:
    directory = find_model(MODEL).path
    wanted = {"config.json", "model.safetensors", "tokenizer.json"}
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == {
        name: FILES[name] for name in wanted
    }
    assert set(hub.downloads) == wanted


def test_a_tokenizer_is_downloaded_without_weights(hub: FakeHub) -> None:
    found = find_tokenizer(MODEL)
    assert found.name == MODEL
    assert {path.name for path in found.path.iterdir()} == {"config.json", "tokenizer.json"}


def test_a_directory_of_a_tokenizer_is_itself(tmp_path: Path) -> None:
    assert find_tokenizer(str(tmp_path)).path == tmp_path


def test_cached_model_needs_no_network(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, closed_port: str
) -> None:
    directory = find_model(MODEL, "v2").path
    monkeypatch.setattr(constants, "ENDPOINT", closed_port)
    assert find_model(MODEL, "v2").path == directory
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert find_model(MODEL, "v2").path == directory


def test_hub_error(hub: FakeHub) -> None:
    hub.error = (418, "")
    with pytest.raises(ConnectionError, match=rf"{MODEL}.*{hub.url} answered 418"):
        find_model(MODEL)


def test_no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, closed_port: str) -> None:
    use_hub(monkeypatch, closed_port, tmp_path)
    with pytest.raises(
        ConnectionError, match=rf"{MODEL}.*{closed_port} cannot be reached"
    ) as error:
        find_model(MODEL)
    assert "connect once to download it" in str(error.value)


def test_offline_mode_asks_nobody(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConnectionError, match=r"HF_HUB_OFFLINE is set"):
        find_model(MODEL)
    assert hub.downloads == []


def test_unwritable_cache(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    cache = tmp_path / "file" / "cache"  # a directory inside a file cannot be made, even by root
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    with pytest.raises(OSError, match=rf"cache directory {cache} cannot be written.*set HF_HOME"):
        find_model(MODEL)


# -- GGUF files and other formats on the hub -------------------------------------------------------


@pytest.mark.parametrize(
    ("tag", "files"),
    [
        ("Q4_K_M", ["Tiny-Q4_K_M.gguf"]),
        ("q4_k_m", ["Tiny-Q4_K_M.gguf"]),
        ("Q8_0", ["tiny.q8_0.gguf"]),
        ("Q4_K_XL", ["Tiny-UD-Q4_K_XL.gguf"]),
        ("UD-Q4_K_XL", ["Tiny-UD-Q4_K_XL.gguf"]),
        ("Tiny-Q4_K_M.gguf", ["Tiny-Q4_K_M.gguf"]),
        ("bf16", ["BF16/Tiny-BF16-00001-of-00002.gguf", "BF16/Tiny-BF16-00002-of-00002.gguf"]),
    ],
)
def test_gguf_by_its_quantization(hub: FakeHub, tag: str, files: list[str]) -> None:
    hub.files = GGUF_FILES
    found = find_model(f"{MODEL}:{tag}")
    assert found.name == f"{MODEL}:{tag}"
    assert found.path.read_bytes() == GGUF_FILES[files[0]]
    assert set(hub.downloads) == {".gitattributes", *files}
    assert {path.name for path in found.path.parent.glob("*.gguf")} == {
        Path(name).name for name in files
    }


def test_gguf_in_the_cache_needs_no_network(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, closed_port: str
) -> None:
    hub.files = GGUF_FILES
    path = find_model(f"{MODEL}:Q8_0").path
    monkeypatch.setattr(constants, "ENDPOINT", closed_port)
    assert find_model(f"{MODEL}:Q8_0").path == path
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert find_model(f"{MODEL}:Q8_0").path == path


def test_only_gguf_of_a_repository(hub: FakeHub) -> None:
    hub.files = {"README.md": b"", "config.json": FILES["config.json"], "tiny.gguf": b"GGUF"}
    assert find_model(MODEL).path.name == "tiny.gguf"
