"""`bench-serve` and `top` with a real server."""

import json
import socket
from collections.abc import Callable

import pytest

from pellucid.cli import main
from support.api_keys import ADMIN_KEY, KEYS, USER_KEY
from support.fake_model import fake_engine
from support.http_server import RunningServer, running_server

Run = Callable[..., tuple[int, str, str]]
FEW = ("--num-requests", "4", "--prompt-tokens", "20-40", "--output-tokens", "5")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Status, stdout and stderr of a command line."""
    monkeypatch.setenv("PELLUCID_CONFIG", "")

    def run_command(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = main(words)
        return status, *capsys.readouterr()

    return run_command


@pytest.mark.parametrize("how", [("--concurrency", "2"), ("--rate", "100")])
@pytest.mark.parametrize("api", ["chat", "completions"])
def test_a_load_is_measured(
    server: RunningServer, run: Run, api: str, how: tuple[str, str]
) -> None:
    words = ("bench-serve", f"{server.url}/v1", *FEW, *how, "--api", api, "--json")
    status, out, _ = run(*words, "--prefix-tokens", "64", "--ttft-slo", "60", "--itl-slo", "60")
    found = json.loads(out)
    assert (status, found["model"], found["failures"]) == (0, "tested", {})
    assert found["num_completed"] == found["num_good"] == len(found["requests"]) == 4
    assert found["num_output_tokens"] == 20
    for request in found["requests"]:
        assert request["num_output_tokens"] == 5
        assert 60 <= request["num_prompt_tokens"] <= 130  # about 64 and 20 to 40
        assert request["due"] <= request["sent"] <= request["chunk_times"][0] <= request["ended"]
    assert found["first_token_seconds"]["p50"] <= found["end_to_end_seconds"]["max"]
    assert found["goodput"] == found["requests_per_second"] > 0
    server.wait_until_idle()


def test_failed_requests_are_counted_and_named(server: RunningServer, run: Run) -> None:
    status, out, _ = run("bench-serve", server.url, *FEW[:2], "--prompt-tokens", "9000")
    assert status == 1
    assert "failed: 4 x HTTP 400 context_length_exceeded" in out
    assert "completed: 0 of 4 requests" in out


def test_what_cannot_be_measured_is_said_in_a_line(server: RunningServer, run: Run) -> None:
    status, _, err = run("bench-serve", server.url, "--model", "other")
    assert status == 2 and "HTTP 404: model='other'" in err
    with socket.socket() as silent:  # has a port, and does not listen on it
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        status, _, err = run("bench-serve", f"http://127.0.0.1:{port}")
    assert status == 2 and f"http://127.0.0.1:{port}: no server answers there" in err
    status, _, err = run("bench-serve", server.url, "--rate", "1", "--concurrency", "1")
    assert status == 2 and "only one" in err


def test_a_wrong_key_is_said_and_the_right_one_is_taken(run: Run) -> None:
    with running_server(fake_engine(), api_keys=KEYS) as server:
        for words in (("bench-serve", "--api-key", "wrong-key-0123456789"), ("top", "--once")):
            status, _, err = run(words[0], server.url, *words[1:])
            assert status == 2 and "HTTP 401, a key is missing" in err
        assert "wrong-key" not in err
        status, _, err = run("top", server.url, "--once", "--admin-key", USER_KEY)
        assert status == 2 and "HTTP 403" in err
        assert run("top", server.url, "--once", "--admin-key", ADMIN_KEY)[0] == 0


def test_top_shows_the_server_once(server: RunningServer, run: Run) -> None:
    status, out, err = run("top", server.url, "--once", "--json")
    found = json.loads(out)
    assert (status, err, found["model"], found["health"]) == (0, "", "tested", "ok")
    assert found["requests"] == [] and found["kv"]["num_blocks"] > 0
    status, out, _ = run("top", server.url, "--once")
    assert status == 0 and "No request is under way." in out
    status, _, err = run("top", server.url)
    assert status == 2 and "--once or --json" in err
