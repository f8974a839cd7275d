"""Calls that end early or are refused: disconnected clients, too many calls, a draining server."""

import asyncio
import json
import logging
import re
import signal
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pellucid.async_engine import AsyncLLMEngine, EngineStoppedError
from pellucid.engine.crash_report import write_crash_report
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.server.api_keys import ANYONE
from pellucid.server.config import Limits
from support.fake_model import fake_engine
from support.http_server import TIMEOUT, RunningServer, running_server, served_process
from support.scripted_model import scripted_engine
from support.step_gate import StepGate

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
LONG = {"prompt": [1, 2, 3], "max_tokens": 200, "ignore_eos": True, "seed": 1}


@pytest.fixture
def small() -> Iterator[RunningServer]:
    """A fake model, and places for four completions."""
    with running_server(fake_engine(), limits=Limits(max_unfinished_completions=4)) as server:
        yield server
        server.wait_until_idle()


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"stream": True, "n": 3}])
def test_who_goes_away_frees_blocks_within_one_step(
    small: RunningServer, fields: dict[str, object]
) -> None:
    """llama.cpp #13262, #24496: a request that does not stream ran on to its end."""
    StepGate(small.engine, num_steps=2)
    with small.open_call("/v1/completions", {**LONG, **fields}):
        small.wait_until(lambda: small.engine.has_unfinished_requests, "a request under way")
        (generation,) = small.service.under_way.values()
        small.wait_until(
            lambda: generation.outputs and generation.outputs[0].metrics.token_times,
            "a first token",
        )
    small.wait_until(lambda: not small.service.under_way, "its end at the server")
    small.wait_until(lambda: not small.engine.has_unfinished_requests, "its end at the engine")
    small.wait_until(lambda: generation.outputs[0].outputs[0].finish_reason, "the last output")
    assert generation.outputs[0].outputs[0].finish_reason == "abort"
    assert len(generation.outputs[0].outputs[0].token_ids) <= 2


def test_a_connection_has_one_call_under_way_however_many_it_sends(small: RunningServer) -> None:
    """So the limit of connections from one address limits its calls too."""
    gate = StepGate(small.engine)
    data = json.dumps({**LONG, "max_tokens": 1}).encode()
    call = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%b"
    with small.open_call("/v1/completions", LONG) as connection:
        small.wait_until(lambda: small.service.under_way, "the first call")
        connection.sendall(call % (len(data), data) * 8)  # more than there are places
        assert small.get("/health").status == 200
        gate.let(100)
        small.wait_until(lambda: small.engine.events.step == 100, "steps of the first call")
        assert len(small.service.under_way) == 1
        gate.open()
        received = b""
        while received.count(b"HTTP/1.1 200 OK") < 9:
            new = connection.recv(65536)
            assert new
            received += new
    assert b" 429 " not in received


def test_who_goes_away_while_waiting_leaves_the_queue(small: RunningServer) -> None:
    StepGate(small.engine)
    with small.open_call("/v1/completions", {**LONG, "n": 3}):
        small.wait_until(lambda: len(small.service.under_way) == 1, "the first request")
        with small.open_call("/v1/completions", LONG):
            small.wait_until(lambda: len(small.service.under_way) == 2, "the second request")
        small.wait_until(lambda: len(small.service.under_way) == 1, "the end of the second one")


def test_too_many_are_told_how_many_there_are_and_when_to_come_again(small: RunningServer) -> None:
    """vLLM #18826: an unbounded queue. A list of prompts counts with all of its completions."""
    gate = StepGate(small.engine)
    with small.open_call("/v1/completions", {**LONG, "n": 3}):
        small.wait_until(lambda: small.service.under_way, "a request under way")
        for body in ({**LONG, "n": 2}, {**LONG, "prompt": ["a", "b"]}):
            reply = small.post("/v1/completions", body)
            assert reply.status == 429
            error = reply.json["error"]
            assert error["code"] == "rate_limit_exceeded"
            assert (
                "3 of 4 completions are unfinished; this call needs 2; try again in"
                in error["message"]
            )
            assert int(reply.headers["retry-after"]) >= 1
        gate.open()
        assert small.post("/v1/completions", {**LONG, "max_tokens": 1}).status == 200


def test_cve_2026_73559_a_list_of_prompts_is_bounded_before_any_work() -> None:
    limits = Limits(max_prompts=8, max_completions=16, max_strings=2, max_string_chars=5)
    limits_of_bias = {"logit_bias": {str(number): 1 for number in range(2000)}}
    with running_server(fake_engine(), limits=limits) as server:
        for fields, message in (
            ({"prompt": ["a"] * 9}, "prompt: has 9 prompts; at most 8"),
            ({"prompt": ["a"] * 8, "n": 3}, "n: has 24 completions"),
            ({"prompt": [], "n": 3}, "prompt: must not be an empty list"),
            ({"n": 17}, "n: has 17 completions"),
            ({"best_of": 17}, "n: has 17 completions"),
            ({"n": 10**30}, "n"),
            ({"stop": ["a", "b", "c"]}, "stop: has 3 strings; at most 2"),
            ({"stop": "abcdef"}, "stop: has 6 characters in a string; at most 5"),
            ({"bad_words": ["a", "b", "c"]}, "bad_words: has 3 strings"),
            (limits_of_bias, "logit_bias: has 2000 entries"),
            ({"stop_token_ids": [1] * 2000}, "stop_token_ids: has 2000 entries"),
        ):
            reply = server.post("/v1/completions", {"prompt": "a", **fields})
            assert reply.status == 400
            assert message in reply.json["error"]["message"]
        assert not server.engine.events.step
        server.wait_until_idle()


def test_prompt_tokens_are_counted_too() -> None:
    limits = Limits(max_unfinished_tokens=100)
    with running_server(fake_engine(), limits=limits) as server:
        reply = server.post("/v1/completions", {"prompt": [[1] * 60, [2] * 60]})
        assert reply.status == 413
        assert "120 tokens; the server holds at most 100" in reply.json["error"]["message"]
        place = server.service.admission.admit(ANYONE, 1)
        place.add_tokens(50)
        reply = server.post("/v1/completions", {"prompt": [1] * 60})
        assert (reply.status, "retry-after" in reply.headers) == (429, True)
        place.leave()
        assert server.post("/v1/completions", {"prompt": [1] * 60}).status == 200
        server.wait_until_idle()


def test_a_request_that_fails_leaves_the_others_alone() -> None:
    with running_server(fake_engine()) as server:
        forward = server.engine.model.decoder.forward

        def failing(batch: object, kv_cache: object) -> object:
            logits = forward(batch, kv_cache)
            rows = batch.logits_indices
            logits[(batch.positions[rows] == 0) & (batch.token_ids[rows] == 5)] = float("nan")
            return logits

        server.engine.model.decoder.forward = failing
        alone = server.post("/v1/completions", LONG).json["choices"]
        replies = {}

        def post(name: str, body: object) -> None:
            replies[name] = server.post("/v1/completions", body)

        bad = {**LONG, "prompt": [5]}
        calls = {"good": LONG, "bad": bad, "streamed": {**bad, "stream": True}}
        threads = [threading.Thread(target=post, args=item) for item in calls.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT)
        assert replies["good"].json["choices"] == alone
        assert replies["bad"].status == 500
        assert replies["bad"].json["error"]["code"] == "generation_failed"
        *_, failure, done = replies["streamed"].events
        assert failure["error"]["type"] == "server_error" and done == "[DONE]"
        server.wait_until_idle()


def test_our_own_mistakes_are_logged_and_not_shown(
    small: RunningServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small.service, "start", None)
    reply = small.post("/v1/completions", LONG)
    assert reply.status == 500
    assert reply.json["error"]["code"] == "internal_error"
    assert "NoneType" not in reply.body.decode() and "NoneType" in caplog.text
    assert reply.headers["x-request-id"] in caplog.text


def test_a_call_is_a_line_of_json_in_the_log_without_its_text(
    small: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "pellucid.calls"):
        reply = small.post("/v1/completions?x=secret", {"prompt": "abc", "max_tokens": 1})
        small.get("/nowhere")
        small.wait_until(lambda: caplog.records, "a line")
    line = json.loads(caplog.records[0].message)
    assert line["request_id"] == reply.headers["x-request-id"]
    assert (line["method"], line["path"], line["status"]) == ("POST", "/v1/completions", 200)
    assert line["caller"] == "anyone" and line["seconds"] > 0 and line["body_bytes"] > 0
    assert "secret" not in caplog.text and "abc" not in caplog.text


def test_health_fails_when_requests_wait_and_no_step_ends() -> None:
    """mlx #1672, SGLang #6778: a dead loop behind a live port."""
    with running_server(fake_engine(), stall_seconds=0.05) as server:
        assert server.get("/health").status == 200
        go_on = threading.Event()
        original = server.engine.step

        def stuck() -> object:
            go_on.wait(TIMEOUT)
            return original()

        server.engine.step = stuck  # type: ignore[method-assign]
        with server.open_call("/v1/completions", LONG):
            server.wait_until(lambda: server.get("/health").status == 503, "a failing /health")
            assert server.get("/health").json["status"] == "stalled"
            go_on.set()
        server.wait_until_idle()  # a server without requests is never stalled
        assert server.get("/health").status == 200
        assert server.get("/ready").json == {"status": "ready"}


def test_an_engine_that_has_failed_is_no_longer_healthy() -> None:
    """vLLM CVE-2026-114051: a dead engine and a /health of 200."""
    with running_server(fake_engine()) as server:
        server.engine.step = None  # type: ignore[method-assign]
        assert server.post("/v1/completions", LONG).status == 503
        assert server.get("/health").json["status"] == "failed"
        assert server.get("/ready").status == 503
        assert server.post("/v1/completions", LONG).status == 503


def test_a_crash_leaves_the_last_steps_in_a_file_and_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With numbers and ids, and nothing of what was asked or answered."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    engine = fake_engine()
    gate = StepGate(engine, num_steps=5)

    def fail(*arguments: object) -> None:
        raise TypeError("long" * 100)

    async def crash() -> None:
        async with AsyncLLMEngine(engine, on_failure=write_crash_report) as served:
            params = SamplingParams(max_tokens=50_000, ignore_eos=True)
            stream = await served.add_request("secret", params, "r1")
            while len(stream.output.outputs[0].token_ids) < 5:
                await anext(stream)
            monkeypatch.setattr(engine.scheduler, "update", fail)
            gate.open()
            with pytest.raises(EngineStoppedError):
                await stream.complete()

    asyncio.run(crash())
    (path,) = tmp_path.iterdir()
    assert f"its last steps are in {path}" in caplog.text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text().startswith('{\n "report": 1,\n "time": ')
    report = json.loads(path.read_text())
    assert report["error"] == "TypeError" and "engine_core.py" in report["raised_at"][-2]
    assert report["message"] == "long" * 75
    first, *_, last = report["steps"]
    num_prompt_tokens = engine.tokenizer.encode("secret")
    assert first["requests"][0] == {
        "id": "r1/0",
        "start": 0,
        "end": len(num_prompt_tokens),
        "recomputed": 0,
        "logits": 1,
    }
    assert last["requests"][0]["end"] == last["requests"][0]["start"] + 1
    assert report["running"] == ["r1/0"] and report["blocks"]["used"] > 0
    assert "secret" not in path.read_text()


@pytest.mark.parametrize(
    ("path", "fields", "sign"),
    [
        ("/v1/completions", {"prompt": "Hi"}, rb": keepalive\n\n"),
        ("/v1/messages", CHAT, rb'event: ping\ndata: \{"type":"ping"\}\n\n'),
        ("/v1/responses", {"input": "Hi"}, rb"event: response.in_progress\ndata: \{"),
        ("/api/chat", CHAT, rb'\{"model":"tested",.*"content":""\},"done":false\}\n'),
    ],
)
def test_a_silent_stream_gets_signs_of_life(path: str, fields: dict[str, Any], sign: bytes) -> None:
    with running_server(scripted_engine("Yes."), keepalive_seconds=0.05) as server:
        gate = StepGate(server.engine)
        body = {"model": "tested", "max_tokens": 9, "stream": True, **fields}
        with server.open_call(path, body) as connection:
            received = b""
            while len(re.findall(sign, received)) < 3:
                received += (new := connection.recv(4096))
                assert new, received
            gate.open()
            while b"\r\n0\r\n\r\n" not in received:  # its end
                received += (new := connection.recv(65536))
                assert new, received


def test_sigterm_lets_requests_end_and_a_second_one_does_not() -> None:
    """The first signal: new requests get 503, streams go on. The second: everything ends, without a traceback."""
    with served_process("--max-num-seqs", "1") as (process, server):
        # One after another: they take many seconds, and the second signal ends them before.
        body = {**LONG, "n": 32, "stream": True, "max_tokens": 2000}
        with server.open_call("/v1/completions", body) as connection:
            received = connection.recv(1000)
            process.send_signal(signal.SIGTERM)
            server.wait_until(lambda: server.get("/ready").status == 503, "draining")
            assert server.post("/v1/completions", LONG).status == 503
            assert server.get("/health").status == 200
            process.send_signal(signal.SIGTERM)
            while data := connection.recv(65536):
                received += data
        assert b"[DONE]" not in received
        assert process.wait(TIMEOUT) == 0
        assert process.stderr is not None and "Traceback" not in process.stderr.read()
