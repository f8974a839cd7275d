"""The files that a model's name stands for: directories, GGUF files, and a hub on a local port."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from pellucid.loading.hub import BUNDLED_MODEL, find_model, find_tokenizer
from support.checkpoints import checkpoint_config
from support.fake_hub import FakeHub, serve, use_hub

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


def test_directory_has_no_revision(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"revision='v2': only a hub id has revisions"):
        find_model(str(tmp_path), "v2")


def test_bundled_model_has_no_revision() -> None:
    assert BUNDLED_MODEL.parent.name == "assets"
    with pytest.raises(ValueError, match=r"pellucid-5m"):
        find_model(None, "v2")


def test_file_is_not_a_model(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"")
    with pytest.raises(ValueError, match=r"model\.safetensors'.*must be a directory"):
        find_model(str(file))


@pytest.mark.parametrize(
    "model",
    [
        *("", "gpt9", "./missing", "/no/such/dir", "../owner", "a/b/c", "owner/", "owner/na me"),
        *("a\0b", "~no-such-user/model", "x" * 5000),
    ],
)
def test_neither_directory_nor_hub_id(model: str) -> None:
    with pytest.raises(
        ValueError, match="no such file or directory, and not the name of a model"
    ) as error:
        find_model(model)
    assert repr(model) in str(error.value)


def test_a_short_name_of_the_command_line() -> None:
    with pytest.raises(ValueError, match=r"short names are.*'unsloth/Qwen3-0\.6B-GGUF:Q4_K_M'"):
        find_model("qwen3:0.6b")


def test_hub_id_with_two_dashes() -> None:
    with pytest.raises(ValueError, match=r"model='owner/two--dashes': not a hub id"):
        find_model("owner/two--dashes")


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


@pytest.mark.parametrize("name", ["", "gpt2", "./missing", "owner/name:Q4_K_M", "a\0b", __file__])
def test_neither_a_directory_nor_a_hub_id_of_a_tokenizer(name: str) -> None:
    with pytest.raises(ValueError, match=r"^tokenizer=.*: must be a directory with tokenizer\.js"):
        find_tokenizer(name)


def test_an_unknown_tokenizer(hub: FakeHub) -> None:
    with pytest.raises(ValueError, match=r"^tokenizer='owner/other': no such file or directory"):
        find_tokenizer("owner/other")


def test_cached_model_needs_no_network(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, closed_port: str
) -> None:
    directory = find_model(MODEL, "v2").path
    monkeypatch.setattr(constants, "ENDPOINT", closed_port)
    assert find_model(MODEL, "v2").path == directory
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert find_model(MODEL, "v2").path == directory


def test_unknown_revision(hub: FakeHub) -> None:
    with pytest.raises(ValueError, match=r"revision='v3': .*no such branch, tag or commit"):
        find_model(MODEL, "v3")


def test_unknown_model(hub: FakeHub) -> None:
    hub.error = (401, "RepoNotFound")
    with pytest.raises(ValueError, match=rf"{MODEL}.*no such model at {hub.url}.*HF_TOKEN"):
        find_model(MODEL)


def test_gated_model(hub: FakeHub) -> None:
    hub.error = (403, "GatedRepo")
    with pytest.raises(ValueError, match=rf"agreement first: accept it at {hub.url}/{MODEL}"):
        find_model(MODEL)


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


@pytest.mark.parametrize(
    ("tag", "reason"),
    [("", "it has several GGUF files"), (":Q3_K", "0 files match 'Q3_K'"), (":Q4_K", "0 files")],
)
def test_gguf_without_its_quantization(hub: FakeHub, tag: str, reason: str) -> None:
    hub.files = GGUF_FILES
    listed = ", ".join(f"{MODEL}:{each}" for each in ("BF16", "Q4_K_M", "UD-Q4_K_XL", "Q8_0"))
    with pytest.raises(
        ValueError, match=rf"model='{MODEL}{tag}': {reason}.*: choose one of {listed}"
    ):
        find_model(MODEL + tag)
    assert set(hub.downloads) == {".gitattributes"}


def test_only_gguf_of_a_repository(hub: FakeHub) -> None:
    hub.files = {"README.md": b"", "config.json": FILES["config.json"], "tiny.gguf": b"GGUF"}
    assert find_model(MODEL).path.name == "tiny.gguf"


def test_no_gguf_in_the_repository(hub: FakeHub) -> None:
    with pytest.raises(ValueError, match=r"has no GGUF files: leave out ':Q4_K_M'"):
        find_model(f"{MODEL}:Q4_K_M")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"adapter_config.json": b"{}", "adapter_model.safetensors": b"x"}, "a LoRA adapter"),
        (
            {"params.json": b"{}", "consolidated.safetensors": b"x"},
            "Mistral's or Meta's own format",
        ),
        ({"config.json": FILES["config.json"], "pytorch_model.bin": b"x"}, "PyTorch files"),
        ({"README.md": b"# nothing"}, "neither config.json with model.safetensors nor GGUF"),
    ],
)
def test_other_formats_are_named(hub: FakeHub, files: dict[str, bytes], message: str) -> None:
    hub.files = files
    with pytest.raises(ValueError, match=rf"model='{MODEL}': it (holds|has) {message}"):
        find_model(MODEL)


@pytest.mark.parametrize(
    ("config", "beside", "message"),
    [
        ({"architectures": ["MambaForCausalLM"]}, {}, "Mamba.*what loads: Llama"),
        (
            {"quantization_config": {"quant_method": "hqq", "bits": 4}},
            {},
            "HQQ.*quantization='int4'",
        ),
        (
            {},
            {"hf_quant_config.json": {"quantization": {"quant_algo": "W4A8_AWQ"}}},
            r'hf_quant_config\.json: quantization\.quant_algo="W4A8_AWQ": supported',
        ),
        ({}, {"quantize_config.json": {"bits": 5}}, r"quantize_config\.json: bits=5: supported"),
        ({"quantization": {"bits": 4, "group_size": 16}}, {}, r"quantization\.group_size=16: sup"),
    ],
)
def test_weights_that_would_not_load_are_not_downloaded(
    hub: FakeHub, config: dict[str, object], beside: dict[str, object], message: str
) -> None:
    own = {name: json.dumps(settings).encode() for name, settings in beside.items()}
    own["config.json"] = json.dumps(checkpoint_config("llama") | config).encode()
    hub.files = FILES | own
    with pytest.raises(ValueError, match=message):
        find_model(MODEL)
    assert "model.safetensors" not in hub.downloads
