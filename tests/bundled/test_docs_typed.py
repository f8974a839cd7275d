"""Every command in a block of README.md and docs/ is typed, page by page and in order, in a new folder. What needs more
than the bundled model is listed with the reason."""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from pellucid.cli import main
from pellucid.loading.hub import BUNDLED_MODEL
from support.gguf_files import write_gguf

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SERVE = re.compile(r"\bpellucid serve\b(?:.* --port (?P<port>\d+))?")
PORT = re.compile(r"127\.0\.0\.1:(800\d)")
TYPED = re.compile(r"(\$ )?(pellucid|python|curl|make|pip|podman|source|cd|[A-Z_]+=\S+) ")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?:^    \S.*\n)+", re.MULTILINE)
NOT_TYPED = {
    "make ": "sets up an environment: CI runs it",
    "pip install": "asks a package index",
    "podman": "builds and runs an image",
    "pellucid run Qwen/": "asks the hub",
    "pellucid chat Qwen/": "asks the hub",
    "pellucid chat model.gguf --tokenizer owner/name": "asks the hub",
    "pellucid check model.gguf path/to/model Qwen/": "asks the hub",
    "pellucid pull qwen3:0.6b": "asks the hub",
    "pellucid rm qwen3:0.6b": "deletes what the command before has downloaded",
    "ANTHROPIC_BASE_URL=": "runs Claude Code",
    "pellucid bench-serve": "takes a minute",
    "pellucid serve --prefix-store redis": "needs redis-server: make test-cluster",
    "pellucid serve --prefix-store mooncake": "needs Mooncake: make test-cluster",
    "pellucid stage MODEL": "needs another machine: make test-cluster",
    "pellucid serve MODEL --stages": "needs another machine: make test-cluster",
    "python benchmarks/": "takes minutes",
    "python tools/fetch_models.py": "asks a package index",
    'pellucid run MODEL "a prompt" --device cuda': "needs that device",
    "pellucid serve MODEL --device mps": "needs that device",
    'pellucid run MODEL "a prompt" --backend torch': "needs PyTorch: make test-device",
}

# What takes a minute is typed with less work.
SHORTENED = {"bench --shape smollm2-135m": "bench --prompt 8 --gen 2 --batch 1 --repetitions 1"}


@dataclass(frozen=True)
class Command:
    """What a page tells its readers to type.

    Attributes:
        line: one line, without the prompt and without comments.
        printed: what the page says that it prints, in words separated by spaces; None: it does not say.
    """

    line: str
    printed: str | None = None

    @property
    def why_not(self) -> str | None:
        return next((why for start, why in NOT_TYPED.items() if self.line.startswith(start)), None)


def blocks(page: Path) -> Iterator[str]:
    """Code without a language: between fences, or indented."""
    text = page.read_text(encoding="utf-8")
    for language, block in FENCE.findall(text):
        if language in ("", "sh"):
            yield block
    yield from INDENTED.findall(FENCE.sub("", text))


def commands(page: Path) -> Iterator[Command]:
    for block in blocks(page):
        lines = [line.strip() for line in block.replace("\\\n", " ").splitlines()]
        typed = [index for index, line in enumerate(lines) if TYPED.match(f"{line} ")]
        for index, end in zip(typed, [*typed, len(lines)][1:], strict=False):
            line = re.sub(r"\s+# .*", "", lines[index])
            if "[OPTIONS]" in line:  # the form of a command
                continue
            is_shown = line.startswith("$ ")
            printed = " ".join(" ".join(lines[index + 1 : end]).split())
            yield Command(line.removeprefix("$ "), printed if is_shown and printed else None)


ON_PAGE = {page.name: list(dict.fromkeys(commands(page))) for page in PAGES}
TO_TYPE = {
    name: typed
    for name, found in ON_PAGE.items()
    if (typed := [command for command in found if command.why_not is None])
}


def test_what_is_not_typed_is_still_there() -> None:
    lines = [command.line for found in ON_PAGE.values() for command in found]
    for start in NOT_TYPED:
        assert any(line.startswith(start) for line in lines), start
    assert sum(map(len, TO_TYPE.values())) >= 15


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new folder, with what pages take for granted: a model of the reader's, and a prompt."""
    shutil.copytree(BUNDLED_MODEL, tmp_path / "path/to/model")
    write_gguf(tmp_path / "model.gguf", BUNDLED_MODEL)
    (tmp_path / "prompt.txt").write_text("What is a KV cache?\n")
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/pellucid"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m pellucid "$@"\n')
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PELLUCID_CONFIG", "")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("pellucid.progress.FIRST_LINE", 3600.0)  # however slow the machine
    return tmp_path


@pytest.mark.parametrize("page", TO_TYPE)
def test_commands_of_a_page_work_as_printed(
    page: str, desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    servers: dict[str, int] = {}  # the port of each server, by the page's
    with ExitStack() as ended:
        for command in TO_TYPE[page]:
            if (serve := SERVE.search(command.line)) is not None:
                port = serve["port"] or "8000"
                if port in servers:  # the page means one or the other
                    port = command.line
                servers[port] = ended.enter_context(running(command.line))
                continue
            for port in PORT.findall(command.line):
                wait_for(servers[port])
            line = PORT.sub(lambda match: f"127.0.0.1:{servers[match[1]]}", command.line)
            for words_of_page, fewer in SHORTENED.items():
                line = line.replace(words_of_page, fewer)
            words = shlex.split(line)
            if words[0] == "pellucid" and not set("<>|&") & set(line):
                status = main(words[1:])
                check(command, status, *capsys.readouterr())
            else:
                ran = subprocess.run(
                    ["sh", "-c", line], capture_output=True, text=True, timeout=300, check=False
                )
                check(command, ran.returncode, ran.stdout, ran.stderr)
        for port in servers.values():
            wait_for(port)


def check(command: Command, status: int, out: str, err: str) -> None:
    shown = f"{command.line}\n{out}\n--- stderr\n{err}"
    if command.printed is not None:
        assert " ".join((out + err).split()) == command.printed, shown
    else:
        assert status == 0, shown
        assert len(out) > 20 or ">" in command.line or "list" in command.line, shown
    if command.line.startswith("curl"):
        assert json.loads(out)["choices"][0]["message"]["content"]


@contextmanager
def running(line: str) -> Iterator[int]:
    """A server on a free port instead of the page's."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    line = re.sub(r" --port \d+", "", line)
    with subprocess.Popen(
        ["sh", "-c", f"{line} --port {port}"], stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            yield port
        finally:
            os.killpg(process.pid, signal.SIGTERM)


def wait_for(port: int) -> None:
    """Returns when the server listens."""
    deadline = time.monotonic() + 60
    with socket.socket() as client:
        while client.connect_ex(("127.0.0.1", port)) != 0:
            assert time.monotonic() < deadline
            time.sleep(0.05)
