"""pellucid pull, list and rm, and short names, with a hub on a local port."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from pellucid.facts.model_names import MODEL_NAMES
from pellucid.loading.hub import find_model
from pellucid.model_store.cache import cached_models
from pellucid.model_store.choice import choose
from support.checkpoints import checkpoint_config, write_checkpoint
from support.command_line import CommandLine
from support.fake_hub import COMMIT, FakeHub, serve, use_hub
from support.gguf_files import write_gguf

SHORT, REPOSITORY = "qwen3:0.6b", "unsloth/Qwen3-0.6B-GGUF"
GGUF_FILES = {
    ".gitattributes": b"",
    "Qwen3-0.6B-Q4_K_M.gguf": b"GGUF" + bytes(1000),
    "Qwen3-0.6B-Q8_0.gguf": b"GGUF" + bytes(2000),
}
WHOLE = {
    "config.json": json.dumps(checkpoint_config("llama")).encode(),
    "model.safetensors": bytes(range(256)) * 40,
    "tokenizer.json": b"{}",
}


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, cache: Path) -> Iterator[FakeHub]:
    with serve(FakeHub(REPOSITORY, GGUF_FILES)) as hub:
        use_hub(monkeypatch, hub.url, cache)
        yield hub


def names() -> list[str]:
    return [model.name for model in cached_models()]


# -- downloads -------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [REPOSITORY, f"{REPOSITORY}:Q4_K_M"])
def test_a_download_that_broke_off_goes_on(hub: FakeHub, cache: Path, model: str) -> None:
    if ":" not in model:
        hub.files = WHOLE
    hub.breaks_off_after = 600
    with pytest.raises(ConnectionError, match=r"broke off.*goes on where it stopped"):
        find_model(model)
    (partial,) = cache.glob("*/blobs/*.incomplete")
    (weights,) = [each for each in hub.files if each.endswith(("Q4_K_M.gguf", ".safetensors"))]
    assert partial.read_bytes() == hub.files[weights][:600]
    hub.breaks_off_after = None
    hub.num_sent.clear()
    found = find_model(model).path
    file = found if found.is_file() else found / weights
    assert file.read_bytes() == hub.files[weights]
    assert hub.num_sent[weights] == len(hub.files[weights]) - 600
    assert not list(cache.glob("*/blobs/*.incomplete"))


def test_bytes_that_were_damaged_are_not_kept(hub: FakeHub, cache: Path) -> None:
    hub.breaks_off_after = 600
    with pytest.raises(ConnectionError):
        find_model(f"{REPOSITORY}:Q4_K_M")
    (partial,) = cache.glob("*/blobs/*.incomplete")
    partial.write_bytes(b"x" * 600)
    hub.breaks_off_after = None
    with pytest.raises(ConnectionError, match=r"Q4_K_M\.gguf was damaged on its way"):
        find_model(f"{REPOSITORY}:Q4_K_M")
    assert (
        find_model(f"{REPOSITORY}:Q4_K_M").path.read_bytes() == GGUF_FILES["Qwen3-0.6B-Q4_K_M.gguf"]
    )


def test_progress_is_that_of_all_missing_weights(hub: FakeHub) -> None:
    hub.files = {
        ".gitattributes": b"",
        "m-Q4_0-00001-of-00002.gguf": b"GGUF1",
        "m-Q4_0-00002-of-00002.gguf": b"GGUF22",
    }
    seen: list[tuple[int, int]] = []
    find_model(REPOSITORY, on_progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (11, 11)
    seen.clear()
    find_model(REPOSITORY, on_progress=lambda done, total: seen.append((done, total)))
    assert seen == []


def test_huggingface_hub_finds_what_was_downloaded(hub: FakeHub) -> None:
    from huggingface_hub import try_to_load_from_cache

    path = find_model(f"{REPOSITORY}:Q8_0").path
    assert try_to_load_from_cache(REPOSITORY, "Qwen3-0.6B-Q8_0.gguf") == str(path)


# -- short names -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def in_four_bits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Two files in four bits, of 8 and 4 MB of weights, and one in eight."""
    folder, files = tmp_path_factory.mktemp("files"), {}
    for tag, vocab_size in (("Q4_K_M", 32_000), ("Q4_K_S", 16_000), ("Q8_0", 100)):
        directory = write_checkpoint(
            folder / tag, "llama", config_overrides={"vocab_size": vocab_size}
        )
        path = write_gguf(folder / f"Qwen3-0.6B-{tag}.gguf", directory)
        files[path.name] = path.read_bytes()
    return files


@pytest.fixture
def four_bit_files(hub: FakeHub, in_four_bits: dict[str, bytes]) -> None:
    """The hub has them."""
    hub.files = {".gitattributes": b"", **in_four_bits}


GIB = 1 << 30
PLENTY, LITTLE = 8 * GIB, GIB // 8
LONG = 1 << 20  # tokens: a context that takes more than a little memory


def least_memory(tag: str) -> int:
    """Free memory with which a file is chosen, to a MiB."""
    least, enough = 0, LITTLE
    while enough - least > 1 << 20:
        middle = (least + enough) // 2
        try:
            is_chosen = choose(MODEL_NAMES[SHORT], None, middle).model.endswith(tag)
        except ValueError:
            is_chosen = False
        least, enough = (least, middle) if is_chosen else (middle, enough)
    return enough


def test_the_best_file_in_four_bits_that_fits(hub: FakeHub, four_bit_files: None) -> None:
    for memory in (None, PLENTY):
        chosen = choose(MODEL_NAMES[SHORT], None, memory)
        assert (chosen.model, chosen.max_model_len) == (f"{REPOSITORY}:Q4_K_M", None)
        assert chosen.reason.startswith("in four bits")
    less = choose(MODEL_NAMES[SHORT], None, least_memory("Q4_K_M") - (2 << 20))
    assert less.model == f"{REPOSITORY}:Q4_K_S"
    assert names() == [REPOSITORY]  # its small files: no weights were downloaded


def test_nothing_fits(hub: FakeHub, four_bit_files: None) -> None:
    with pytest.raises(ValueError, match=rf"^{SHORT}: does not fit: {REPOSITORY}:Q4_K_S takes"):
        choose(MODEL_NAMES[SHORT], None, 1000)


@pytest.mark.parametrize("memory", [1, PLENTY])
def test_what_was_downloaded_is_taken_without_the_hub(
    hub: FakeHub, four_bit_files: None, monkeypatch: pytest.MonkeyPatch, memory: int
) -> None:
    find_model(f"{REPOSITORY}:Q4_K_S")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    chosen = choose(MODEL_NAMES[SHORT], None, memory)
    assert (chosen.model, chosen.reason) == (f"{REPOSITORY}:Q4_K_S", "it is in the cache")


@pytest.mark.parametrize(("memory", "typed"), [(PLENTY, None), (LITTLE, None), (LITTLE, 5000)])
def test_a_context_that_fits(
    hub: FakeHub,
    tmp_path: Path,
    pellucid: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
    memory: int,
    typed: int | None,
) -> None:
    directory = write_checkpoint(
        tmp_path / "long", "llama", config_overrides={"max_position_embeddings": LONG}
    )
    path = write_gguf(tmp_path / "Qwen3-0.6B-Q4_K_M.gguf", directory)
    hub.files = {".gitattributes": b"", path.name: path.read_bytes()}
    pellucid.context_length = LONG
    monkeypatch.setattr("pellucid.facts.host_memory.available_memory", lambda: memory)
    ran = pellucid("run", SHORT, "aa", "-n", "1", *(["-c", str(typed)] if typed else []))
    assert ran.status == 0, ran.err
    chosen = pellucid.loaded[0].max_model_len
    if memory == LITTLE and typed is None:
        assert chosen is not None and 2048 < chosen < LONG
        assert f"a context of {chosen} tokens fits, of {LONG}\n" in ran.err
    else:
        assert chosen == typed and "a context of" not in ran.err


def test_other_bits_are_taken_when_they_are_asked_for(hub: FakeHub) -> None:
    assert choose(MODEL_NAMES[SHORT], "Q8_0", 1).model == f"{REPOSITORY}:Q8_0"


# -- commands --------------------------------------------------------------------------------------


def test_pull_a_short_name(hub: FakeHub, four_bit_files: None, pellucid: CommandLine) -> None:
    ran = pellucid("pull", SHORT)
    assert ran.status == 0, ran.err
    assert Path(ran.out.strip()).read_bytes() == hub.files["Qwen3-0.6B-Q4_K_M.gguf"]
    assert f"{SHORT} is {REPOSITORY}:Q4_K_M: in four bits it takes" in ran.err
    assert names() == [f"{REPOSITORY}:Q4_K_M"]


def test_run_takes_a_short_name(hub: FakeHub, four_bit_files: None, pellucid: CommandLine) -> None:
    find_model(f"{REPOSITORY}:Q4_K_M")
    ran = pellucid("run", "Qwen3-0.6B", "aa", "-n", "1")
    assert ran.status == 0, ran.err
    assert pellucid.loaded[0].model == f"{REPOSITORY}:Q4_K_M"
    assert ran.err.startswith(f"Qwen3-0.6B is {REPOSITORY}:Q4_K_M: it is in the cache\n")
    assert pellucid("run", "qwen3:0.6b", "aa", "-n", "1", "-q").err == ""


def test_pull_what_is_here(hub: FakeHub, tmp_path: Path, pellucid: CommandLine) -> None:
    (tmp_path / "here").mkdir()
    ran = pellucid("pull", str(tmp_path / "here"))
    assert ran.status == 2 and "is here already" in ran.err


def test_list(hub: FakeHub, cache: Path, pellucid: CommandLine) -> None:
    ran = pellucid("list")
    assert (ran.status, ran.out) == (0, "")
    assert f"no models in {cache}; pellucid pull" in ran.err
    for tag in ("Q4_K_M", "Q8_0"):
        find_model(f"{REPOSITORY}:{tag}")
    then = time.time() - 3 * 86400 - 60
    os.utime(find_model(f"{REPOSITORY}:Q8_0").path, (then, then))
    ran = pellucid("ls")
    assert [line.split() for line in ran.out.splitlines()[2:]] == [
        [f"{REPOSITORY}:Q4_K_M", "1004", "bytes", "GGUF", "now"],
        [f"{REPOSITORY}:Q8_0", "1.96", "KiB", "GGUF", "3", "days", "ago"],
    ]
    assert ran.err == f"2 models, 2.94 KiB, in {cache}\n"
    (first, second) = json.loads(pellucid("list", "--json").out)
    assert first["name"] == f"{REPOSITORY}:Q4_K_M"
    assert Path(first["path"]).read_bytes() == GGUF_FILES["Qwen3-0.6B-Q4_K_M.gguf"]
    assert second == {
        "name": f"{REPOSITORY}:Q8_0",
        "revision": None,
        "format": "GGUF",
        "num_bytes": 2004,
        "last_used": then,
        "path": str(find_model(f"{REPOSITORY}:Q8_0").path),
    }


def test_list_tells_a_part_from_a_whole(hub: FakeHub, pellucid: CommandLine) -> None:
    hub.files = WHOLE
    hub.breaks_off_after = 600
    with pytest.raises(ConnectionError):
        find_model(REPOSITORY)
    (part,) = json.loads(pellucid("list", "--json").out)
    assert (part["name"], part["format"], part["num_bytes"]) == (REPOSITORY, "partial", 600)
    hub.breaks_off_after = None
    find_model(REPOSITORY)
    (whole,) = json.loads(pellucid("list", "--json").out)
    assert whole["format"] == "safetensors"
    assert whole["num_bytes"] == sum(map(len, WHOLE.values()))


def test_rm_one_file_of_a_repository(hub: FakeHub, cache: Path, pellucid: CommandLine) -> None:
    for tag in ("Q4_K_M", "Q8_0"):
        find_model(f"{REPOSITORY}:{tag}")
    ran = pellucid("rm", f"{REPOSITORY}:Q8_0", "--yes")
    assert ran.status == 0, ran.err
    assert "deleted 1.96 KiB" in ran.err
    assert names() == [f"{REPOSITORY}:Q4_K_M"]
    assert sorted(path.stat().st_size for path in cache.glob("*/blobs/*")) == [0, 1004]


def test_rm_a_short_name_leaves_nothing(hub: FakeHub, cache: Path, pellucid: CommandLine) -> None:
    find_model(f"{REPOSITORY}:Q4_K_M")
    assert pellucid("rm", SHORT, "-y").status == 0
    assert not list(cache.glob("models--*")) and not list(cache.glob(".locks/*"))


@pytest.mark.parametrize(("answer", "is_kept"), [("y\n", False), ("n\n", True), ("", True)])
def test_rm_asks(
    hub: FakeHub,
    pellucid: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    is_kept: bool,
) -> None:
    find_model(f"{REPOSITORY}:Q4_K_M")
    monkeypatch.setattr("pellucid.cli.rm.can_ask", lambda: True)
    ran = pellucid("rm", REPOSITORY, stdin=answer.encode())
    assert "delete 1004 bytes? [y/N]" in ran.err
    assert (ran.status, bool(names())) == (int(is_kept), is_kept)


def test_rm_deletes_nothing_that_is_not_its_own(
    hub: FakeHub, cache: Path, tmp_path: Path, pellucid: CommandLine
) -> None:
    find_model(f"{REPOSITORY}:Q4_K_M")
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF")
    (cache / "models--owner--linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "snapshots" / COMMIT).mkdir(parents=True)
    (tmp_path / "elsewhere" / "snapshots" / COMMIT / "m.gguf").write_bytes(b"GGUF")
    for name, message in {
        str(model): "outside of which nothing is deleted",
        "pellucid-5m": "outside of which nothing is deleted",
        f"{REPOSITORY}:Q8_0": f"it has owner/linked:m.gguf, {REPOSITORY}:Q4_K_M",
        "owner/linked": "is a link to",
    }.items():
        ran = pellucid("rm", name, "--yes")
        assert ran.status == 2 and message in ran.err, ran.err
    assert model.exists() and (tmp_path / "elsewhere" / "snapshots" / COMMIT / "m.gguf").exists()
    assert pellucid("rm", REPOSITORY).err.endswith("--yes: is needed where nobody can be asked\n")
    assert f"{REPOSITORY}:Q4_K_M" in names()


def test_rm_follows_no_link_out_of_the_cache(
    hub: FakeHub, tmp_path: Path, pellucid: CommandLine
) -> None:
    mine = tmp_path / "mine.gguf"
    mine.write_bytes(b"GGUF")
    snapshot = find_model(f"{REPOSITORY}:Q4_K_M").path.parent
    (snapshot / "Qwen3-0.6B-Q4_K_S.gguf").symlink_to(mine)
    assert pellucid("rm", f"{REPOSITORY}:Q4_K_S", "--yes").status == 0
    assert mine.exists() and names() == [f"{REPOSITORY}:Q4_K_M"]
    (snapshot / "Qwen3-0.6B-Q4_K_S.gguf").symlink_to(mine)
    assert pellucid("rm", REPOSITORY, "--yes").status == 0
    assert mine.exists() and names() == []


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="files in use are shown by /proc")
def test_rm_leaves_a_model_that_is_in_use(hub: FakeHub, pellucid: CommandLine) -> None:
    path = find_model(f"{REPOSITORY}:Q4_K_M").path
    program = (
        "import mmap, sys; f = open(sys.argv[1], 'rb');"
        "m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ); f.close(); print(flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as user:
        assert user.stdout is not None and user.stdout.readline()
        ran = pellucid("rm", REPOSITORY, "--yes")
        user.communicate(b"\n")
    assert ran.status == 2 and f"in use by process {user.pid}; end it first" in ran.err
    assert path.exists()
