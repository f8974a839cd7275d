"""The command line as a process, with the bundled model: pipes, terminals, signals."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from pellucid.cli import main
from pellucid.inputs.sampling_params import SamplingParams
from support.bundled import bundled_engine

PROMPT = "Once upon a time"
COMMAND = (sys.executable, "-m", "pellucid")
TIMEOUT = 240  # seconds without any progress
GREEDY = ("--temperature", "0", "--ignore-eos")
COLOURED = {"FORCE_COLOR": "1", "CLICOLOR_FORCE": "1"}


def environment(**changes: str) -> dict[str, str]:
    """This process's, without what decides about colours."""
    kept = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "TERM")}
    return {**kept, "PELLUCID_CONFIG": "", **changes}


def run(*arguments: str, stdin: bytes = b"", **changes: str) -> subprocess.CompletedProcess[bytes]:
    """A command line between pipes."""
    return subprocess.run(
        [*COMMAND, *arguments],
        input=stdin,
        capture_output=True,
        check=False,
        timeout=TIMEOUT,
        env=environment(TERM="xterm-256color", **changes),
    )


def start(*arguments: str) -> subprocess.Popen[bytes]:
    """A command line whose pipes are read, unbuffered, while it runs."""
    return subprocess.Popen(
        [*COMMAND, *arguments],
        bufsize=0,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )


def greedy_text(max_tokens: int) -> str:
    engine = bundled_engine()
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    output = engine.add_request(PROMPT, params)
    while not output.finished:
        engine.step()
    return output.outputs[0].text


class Terminal:
    """A command line in a terminal of its own, typed into and read from. Ends with its `with` block."""

    def __init__(self, *arguments: str, env: Mapping[str, str]) -> None:
        self.screen = b""
        self._num_read = 0  # of `screen`, by `read_until`
        self.child, self.descriptor = pty.fork()
        if self.child == 0:
            os.execve(COMMAND[0], [*COMMAND, *arguments], dict(env))

    def __enter__(self) -> "Terminal":  # noqa: PYI034 (Self needs Python 3.11)
        return self

    def __exit__(self, *exc_info: object) -> None:
        os.kill(self.child, signal.SIGKILL)  # reaped below: not somebody else's yet
        os.waitpid(self.child, 0)
        os.close(self.descriptor)

    def read_until(self, expected: bytes) -> None:
        """Reads on until the screen shows `expected` after what was read for the last call."""
        while (found := self.screen.find(expected, self._num_read)) < 0:
            assert self._read(), f"ended before {expected!r}: {self.screen!r}"
        self._num_read = found + len(expected)

    def shows_more(self, within: float) -> bool:
        """Whether anything comes to the screen in the next seconds."""
        return bool(select.select([self.descriptor], [], [], within)[0])

    def type(self, keys: bytes) -> None:
        os.write(self.descriptor, keys)

    def read_to_end(self) -> int:
        """The exit status, after everything is on the screen."""
        while self._read():
            pass
        info = os.waitid(os.P_PID, self.child, os.WEXITED | os.WNOWAIT)
        assert info is not None
        return info.si_status

    def _read(self) -> bytes:
        ready, _, _ = select.select([self.descriptor], [], [], TIMEOUT)
        assert ready, f"nothing more in {TIMEOUT} s: {self.screen!r}"
        try:
            piece = os.read(self.descriptor, 1024)
        except OSError:  # EIO: the other side is closed
            return b""
        self.screen += piece
        return piece


# -- pipes -----------------------------------------------------------------------------------------


def test_a_pipe_gets_the_text_and_nothing_else() -> None:
    done = run("run", PROMPT, *GREEDY, "--max-tokens", "30", "-v", **COLOURED)
    assert done.returncode == 0
    assert b"\x1b" not in done.stdout + done.stderr
    assert done.stdout.decode() == greedy_text(30)
    *lines, line = done.stderr.decode().splitlines()
    # What takes long shows its progress before and after it.
    (memory,) = (each for each in lines if each.startswith("memory: "))
    assert memory.startswith("memory: weights 11.0 MiB · scratch ")
    assert "KV cache up to 6.00 MiB (64 blocks of 32 tokens, 1 x 2048 tokens)" in memory
    assert line.startswith("done: time to first token ")
    assert line.endswith("stop: max_tokens 30 · greedy")


def test_the_next_start_finds_its_prompt_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompt = " ".join(PROMPT for _ in range(20))
    options = (*GREEDY, "--max-tokens", "5", "-v", "--prefix-store", str(tmp_path))
    assert main(["run", prompt, *options]) == 0
    first = capsys.readouterr()
    second = run("run", prompt, *options)
    assert first.out == second.stdout.decode() != ""
    assert " cached)" not in first.err
    assert b" cached)" in second.stderr


def test_text_outside_the_locale_is_escaped_not_fatal() -> None:
    prompt = "Say: é 🦊 é 🦊 é 🦊 é"
    done = run("compare", prompt, "--max-tokens", "2", PYTHONIOENCODING="ascii", **COLOURED)
    assert done.returncode == 0
    assert b"\x1b" not in done.stdout + done.stderr
    assert b"\\xe9 \\U0001f98a" in done.stdout


LISTENING = ("--listen", "127.0.0.1:0", "--stages-key", "KEY")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("run", "/no/such/model", PROMPT), "/no/such/model"),
        (("stage", "/no/such/model", *LISTENING), "/no/such/model"),
        (("stage", "--num-threads", "4096", *LISTENING), "num_threads=4096"),
        (("run", PROMPT * 2000), "2048"),
        (("chat", "--max-model-len", "4096"), "max_model_len=4096"),
    ],
)
def test_errors_are_one_line(
    arguments: tuple[str, ...], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (key := tmp_path / "key").write_text("secret " * 8)
    key.chmod(0o600)
    arguments = tuple(str(key) if each == "KEY" else each for each in arguments)
    assert main([*arguments]) == 2
    out, err = capsys.readouterr()
    *_, line = err.splitlines()
    assert out == "" and line.startswith("error: ") and named in line


def test_a_reader_that_goes_away_is_not_an_error_to_talk_about() -> None:
    # Without the cache there is time to press Ctrl-C, and the text is the same.
    process = start("run", PROMPT, *GREEDY, "--max-tokens", "1500", "--no-kv-cache")
    assert process.stdout is not None and process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()
    assert process.wait(timeout=TIMEOUT) == 141
    with process.stderr as stderr:
        lines = stderr.read().splitlines()
    told = (b"memory: ", b"load", b"prefill")  # what takes long shows its progress
    assert [line for line in lines if not line.startswith(told)] == []


def test_ctrl_c_prints_what_was_made() -> None:
    # Without the cache there is time to press Ctrl-C, and the text is the same.
    process = start("run", PROMPT, *GREEDY, "--max-tokens", "1500", "--no-kv-cache", "-v")
    assert process.stdout is not None
    begun = b""
    while len(begun) < 20:
        begun += process.stdout.read(20)
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130
    text = (begun + rest).decode()
    num_tokens = int(err.decode().split("decode ")[1].split()[0]) + 1
    assert text == greedy_text(num_tokens)
    assert "stop: Ctrl-C" in err.decode()


# -- terminals -------------------------------------------------------------------------------------


def test_a_terminal_shows_a_bar_and_ends_with_a_newline() -> None:
    env = environment(TERM="xterm-256color", COLUMNS="300")
    # Slow enough for a bar: what is over at once draws none.
    slowly = ("--backend", "numpy", "--max-num-batched-tokens", "16")
    with Terminal("run", PROMPT * 400, *GREEDY, *slowly, "--max-tokens", "8", env=env) as terminal:
        assert terminal.read_to_end() == 0
    assert b"prefill" in terminal.screen and b"\x1b[2K" in terminal.screen
    *_, answer, done = re.sub(r"\x1b\[\d*m", "", terminal.screen.decode()).splitlines()
    assert done.startswith("done: ")
    assert not answer.startswith("done")


@pytest.mark.parametrize(
    ("verb", "changes"),
    [("run", {"TERM": "xterm-256color", "NO_COLOR": "1"}), ("compare", {"TERM": "dumb"})],
)
def test_a_plain_terminal_gets_plain_text(verb: str, changes: dict[str, str]) -> None:
    with Terminal(verb, PROMPT, "--max-tokens", "6", env=environment(**changes)) as terminal:
        assert terminal.read_to_end() == 0
    assert b"done: " in terminal.screen
    assert b"\x1b" not in terminal.screen


def test_a_chat_in_a_terminal() -> None:
    settings = ("-v", "--temperature", "0", "--block-size", "16", "--max-tokens", "20")
    with Terminal("chat", *settings, env=environment(TERM="dumb", COLUMNS="300")) as terminal:
        terminal.read_until(b"> ")
        terminal.type(b"/nonsense\n")
        terminal.read_until(b"error: /nonsense: no such command")
        terminal.type(b"/system You are a very patient helper who answers in a few short words.\n")
        terminal.read_until(b"system: You are")
        for question in (b"What is the capital of France?\n", b"And of Italy?\n"):
            terminal.type(question)
            terminal.read_until(b"done: ")
        terminal.read_until(b"> ")
        terminal.type(b"/stats\n")
        terminal.read_until(b"history: 2 turns")
        terminal.read_until(b"> ")
        terminal.type(b"\x04")  # Ctrl-D
        assert terminal.read_to_end() == 0
    second, in_stats = re.findall(rb"\((\d+) cached\)", terminal.screen)
    assert int(second) >= 16 and in_stats == second


def test_ctrl_c_in_a_chat_stops_the_answer_only() -> None:
    drawn = ("--temperature", "2", "--top-p", "1", "--seed", "3", "--ignore-eos")
    settings = ("-v", *drawn, "--backend", "numpy")
    with Terminal("chat", *settings, env=environment(TERM="dumb", COLUMNS="300")) as terminal:
        terminal.read_until(b"> ")
        terminal.type(b"Tell me a very long story\n")
        terminal.read_until(b"story\r\n")
        terminal.read_until(b" ")
        terminal.type(b"\x03")
        terminal.read_until(b"stop: Ctrl-C")
        terminal.read_until(b"> ")
        # With no answer under way: a new line. Readline does not see a signal that comes in the
        # instant between its prompt and its wait for input, so there may have to be a second one.
        for _ in range(20):
            terminal.type(b"\x03")
            if terminal.shows_more(within=0.5):
                break
        terminal.read_until(b"> ")
        terminal.type(b"/quit\n")
        assert terminal.read_to_end() == 0
