"""What one client can take of the server: work is refused before it is done, and places are bounded."""

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from pellucid.server.admission import Admission
from pellucid.server.api_keys import ANYONE, Caller, Role
from pellucid.server.body_memory import SMALL, BodyMemory, HeldBody
from pellucid.server.config import Limits
from pellucid.server.errors import ApiError
from pellucid.server.fields import FieldTable
from pellucid.server.generation import MAX_READ_IN_PLACE
from pellucid.text.text_encoder import TextEncoder
from support.api_keys import ADMIN_KEY, KEYS, OTHER_KEY, USER_KEY
from support.bundled import bundled_engine
from support.fake_model import fake_engine
from support.http_server import TIMEOUT, RunningServer, running_server

LONG = "The cat sat on the mat. " * 40_000  # a megabyte
LONG_MESSAGES = [{"role": "user", "content": LONG}]
TEXT_ROUTES: dict[str, dict[str, Any]] = {
    "/tokenize": {"prompt": LONG},
    "/apply-template": {"messages": LONG_MESSAGES},
    "/v1/messages/count_tokens": {"messages": LONG_MESSAGES},
    "/v1/responses/input_tokens": {"input": LONG},
    "/v1/completions": {"prompt": LONG},
}


@pytest.fixture
def num_encoded_chars(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of each text that is encoded."""
    counts: list[int] = []
    encode = TextEncoder.encode

    def counting(self: TextEncoder, text: str, *others: Any, **named: Any) -> Any:
        counts.append(len(text))
        return encode(self, text, *others, **named)

    monkeypatch.setattr(TextEncoder, "encode", counting)
    return counts


@pytest.mark.parametrize("route", TEXT_ROUTES)
def test_a_text_beyond_the_context_is_refused_before_it_is_encoded(
    server: RunningServer, num_encoded_chars: list[int], route: str
) -> None:
    reply = server.post(route, TEXT_ROUTES[route])
    assert reply.status == 400, reply.body
    assert b"context" in reply.body or b"prompt is too long" in reply.body
    assert not num_encoded_chars


def test_token_ids_beyond_the_context_are_not_decoded(server: RunningServer) -> None:
    num_tokens = server.service.engine.max_model_len + 1
    reply = server.post("/detokenize", {"tokens": [5] * num_tokens})
    assert reply.status == 400
    assert f"tokens: has {num_tokens} tokens" in reply.json["error"]["message"]


def test_no_route_decodes_a_large_body_on_the_event_loop(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decoding 16 MiB stops its thread for a tenth of a second."""
    threads: list[str] = []
    decode = FieldTable.decode

    def counting(self: FieldTable[Any], data: bytes, *others: Any) -> Any:
        threads.append(threading.current_thread().name)
        return decode(self, data, *others)

    monkeypatch.setattr(FieldTable, "decode", counting)
    paths = server.get("/openapi.json").json["paths"]
    routes = [path for path, methods in paths.items() if "requestBody" in methods.get("post", {})]
    assert {"/v1/completions", "/api/show", "/v1/compare", "/v1/load", "/v1/page/fork"} < {*routes}
    for number, route in enumerate(routes, 1):
        server.post(route, {"unknown": "a" * MAX_READ_IN_PLACE})
        assert len(threads) == number, route
        assert threads[-1].startswith("pellucid-text"), route


def test_a_server_that_drains_works_on_no_text() -> None:
    with running_server(bundled_engine()) as server:
        server.service.is_draining = True
        for route in TEXT_ROUTES:
            reply = server.post(route, {})
            assert (reply.status, reply.headers["retry-after"]) == (503, "5"), route


@pytest.fixture
def blocked_texts(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Encoding a text waits until this is set."""
    goes_on = threading.Event()
    encode = TextEncoder.encode

    def waiting(self: TextEncoder, text: str, *others: Any, **named: Any) -> Any:
        if text.startswith("wait"):
            assert goes_on.wait(TIMEOUT)
        return encode(self, text, *others, **named)

    monkeypatch.setattr(TextEncoder, "encode", waiting)
    yield goes_on
    goes_on.set()


def test_texts_that_wait_are_bounded_and_keys_have_places_of_their_own(
    blocked_texts: threading.Event,
) -> None:
    """Of six places one is reserved for each of three keys: one key can have four."""
    limits = Limits(max_waiting_texts=6, text_workers=2)
    with running_server(bundled_engine(), api_keys=KEYS, limits=limits) as server:
        quota = server.service.admission.texts
        most = quota.most("user")
        held = [
            server.open_call("/tokenize", {"prompt": "wait"}, **{"x-api-key": USER_KEY})
            for _ in range(most)
        ]
        assert most == 4
        server.wait_until(lambda: quota.used == most, "texts that wait")
        refused = server.post("/tokenize", {"prompt": "Hi"}, x_api_key=USER_KEY)
        assert refused.status == 429
        assert "texts wait to be read" in refused.json["error"]["message"]
        assert server.post("/tokenize", {"prompt": "Hi"}, x_api_key=OTHER_KEY).status == 200
        assert server.post("/tokenize", {"prompt": "Hi"}, x_api_key=ADMIN_KEY).status == 200
        blocked_texts.set()
        for connection in held:
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
            connection.close()
        server.wait_until(lambda: quota.used == 0, "free places")


def test_a_text_that_waits_is_left_out_when_its_client_leaves(
    blocked_texts: threading.Event, num_encoded_chars: list[int]
) -> None:
    with running_server(bundled_engine(), limits=Limits(text_workers=1)) as server:
        first = server.open_call("/tokenize", {"prompt": "wait"})
        quota = server.service.admission.texts
        server.wait_until(lambda: quota.used == 1, "the first text")
        left = server.open_call("/tokenize", {"prompt": "never encoded " * 100})
        server.wait_until(lambda: quota.used == 2, "the second text")
        left.close()
        server.wait_until(lambda: quota.used == 1, "the second text has gone")
        blocked_texts.set()
        assert first.recv(100).startswith(b"HTTP/1.1 200")
        first.close()
        assert server.post("/tokenize", {"prompt": "Hi"}).status == 200
    assert 1400 not in num_encoded_chars


def test_bodies_that_are_read_are_bounded_together_and_small_ones_get_in() -> None:
    limits = Limits(max_held_body_bytes=2 << 20)
    large = b'{"prompt": "' + b"a" * (900 << 10) + b'"}'
    with (
        running_server(fake_engine(), limits=limits) as server,
        socket.create_connection((server.host, server.port), TIMEOUT) as slow,
    ):
        head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n"
        slow.sendall(head % (2 << 20) + large)
        num_counted = len(large) - SMALL
        server.wait_until(lambda: server.bodies.used == num_counted, "all that was sent")
        refused = server.call("POST", "/v1/completions", large)
        assert (refused.status, refused.headers["retry-after"]) == (429, "1"), refused.body
        assert "bodies that are being read" in refused.json["error"]["message"]
        body = {"prompt": [5, 2], "max_tokens": 1}
        assert server.post("/v1/completions", body).status == 200
        assert server.bodies.used == num_counted
        slow.close()
        server.wait_until(lambda: server.bodies.used == 0, "the slow client has gone")
        again = server.call("POST", "/v1/completions", large)
        assert again.status == 400, again.body  # the fake model has no tokenizer


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata: has 17 keys"),
        ({"metadata": {"a" * 65: ""}}, "metadata: keys have at most 64"),
        ({"metadata": {"a": "b" * 513}}, "values 512"),
        ({"prompt_cache_key": "a" * (1 << 20)}, "at most 1048576 are allowed"),
    ],
)
def test_what_every_event_of_a_response_repeats_is_bounded(
    server: RunningServer, fields: dict[str, Any], message: str
) -> None:
    reply = server.post("/v1/responses", {"input": "Hi", "max_output_tokens": 1, **fields})
    assert reply.status == 400
    assert message in reply.json["error"]["message"]
    metadata = {f"{number:064}": "b" * 512 for number in range(16)}
    body = {"input": "Hi", "max_output_tokens": 1, "metadata": metadata}
    assert server.post("/v1/responses", body).json["metadata"] == metadata


def test_readers_of_events_and_looks_into_the_engine_have_places() -> None:
    limits = Limits(max_event_readers=1, max_waiting_looks=1)
    with running_server(fake_engine(), limits=limits) as server:
        admission = server.service.admission
        with socket.create_connection((server.host, server.port), TIMEOUT) as reader:
            reader.sendall(b"GET /v1/events HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert reader.recv(100).startswith(b"HTTP/1.1 200")
            refused = server.get("/v1/events")
            assert refused.status == 429
            assert "1 of 1 readers of events" in refused.json["error"]["message"]
        server.wait_until(lambda: admission.readers.used == 0, "the reader's end")
        with admission.hold(admission.looks, ANYONE):
            for path in ("logits", "attn"):
                assert server.get(f"/v1/{path}/{'0' * 24}/1").status == 429
        assert server.get(f"/v1/logits/{'0' * 24}/1").status == 404
        assert admission.looks.used == 0


def test_a_client_that_reads_nothing_holds_no_place_in_the_engine_and_stalls_nothing() -> None:
    """What it has not read waits in memory; others may begin."""
    limits = Limits(max_unfinished_completions=20)
    with running_server(bundled_engine(), limits=limits, stall_seconds=0.05) as server:
        body = {"prompt": "a", "n": 20, "stream": True, "ignore_eos": True, "logprobs": 20}
        with server.open_call("/v1/completions", {**body, "max_tokens": 20}, buffer=4096):
            server.wait_until(lambda: server.service.under_way, "the request")
            server.wait_until(lambda: server.service.engine.last_step_time, "a step")
            server.wait_until(lambda: server.service.admission.completions.used == 0, "its end")
            assert server.service.under_way, "the client had taken all of it: nothing is tested"
            time.sleep(0.1)
            assert server.get("/health").json == {"status": "ok"}
            assert server.post("/v1/completions", {"prompt": "a", "max_tokens": 1}).status == 200


def test_the_head_of_a_stream_ends() -> None:
    with running_server(fake_engine()) as server:
        reply = server.call("HEAD", "/v1/events?level=token")
        assert (reply.status, reply.body) == (200, b"")
        assert reply.headers["content-type"] == "text/event-stream"
        server.wait_until(lambda: not server.service.feed._readers, "the reader's end")


def test_who_is_refused_hears_when_calls_have_ended_lately_and_its_own_part() -> None:
    now = [0.0]
    keys = [Caller("a", Role.INFERENCE), Caller("b", Role.INFERENCE, 3.0)]
    for callers, part in (([], ""), (keys, ", 0 of them this key's, which can have 3 at most")):
        now[0] = 0.0
        limits = Limits(max_unfinished_completions=4, max_unfinished_tokens=8)
        admission = Admission(limits, lambda: now[0], callers, isolates=False)
        places = [admission.admit(Caller("b", Role.INFERENCE), 1) for _ in range(3)]
        # One call that has ended says nothing of a rate; of two, and long ago, it is bounded
        for ended_at, asked_at, seconds in ((0, 5, 1), (10, 20, 10), (20, 400, 60)):
            now[0] = ended_at
            places.pop().leave()
            now[0] = asked_at
            with pytest.raises(ApiError) as refused:
                admission.admit(Caller("a", Role.INFERENCE), 5)
            unfinished = f"{len(places)} of 4 completions are unfinished{part}"
            assert refused.value.message == (
                f"{unfinished}; this call needs 5; try again in {seconds}s"
            )
            assert refused.value.headers == {"retry-after": str(seconds)}
        place = admission.admit(Caller("a", Role.INFERENCE), 2)
        most = admission.tokens.most("a")
        with pytest.raises(ApiError, match=f"have {most + 1} tokens; the server holds at most"):
            place.add_tokens(most + 1)
        place.add_tokens(most)
        for _ in range(2):  # leaving twice gives back once
            place.leave()
        assert (admission.completions.used, admission.tokens.used) == (0, 0)
        assert admission.num_refused == 3


def test_a_body_is_released_once() -> None:
    memory = BodyMemory(4 * SMALL)
    others, own = HeldBody(memory, "other"), HeldBody(memory, "own")
    for each in (others, own):
        each.grow(2 * SMALL)
    for _ in range(2):
        own.release()
    assert memory.used == SMALL
