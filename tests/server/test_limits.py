"""What one client can take of the server: work is refused before it is done, and places are bounded."""

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from pellucid.server.body_memory import SMALL
from pellucid.server.config import Limits
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
    assert sum(num_encoded_chars) < 200_000


def test_token_ids_beyond_the_context_are_not_decoded(server: RunningServer) -> None:
    num_tokens = server.service.engine.max_model_len + 1
    reply = server.post("/detokenize", {"tokens": [5] * num_tokens})
    assert reply.status == 400
    assert f"tokens: has {num_tokens} tokens" in reply.json["error"]["message"]


def test_a_server_that_drains_works_on_no_text() -> None:
    with running_server(bundled_engine()) as server:
        server.service.is_draining = True
        for route in TEXT_ROUTES:
            assert server.post(route, {}).status == 503, route


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
        slow.sendall(b"POST")  # sent once the rest was taken from the socket
        refused = server.call("POST", "/v1/completions", large)
        assert refused.status == 429, refused.body
        assert "bodies that are being read" in refused.json["error"]["message"]
        body = {"prompt": [5, 2], "max_tokens": 1}
        assert server.post("/v1/completions", body).status == 200
        assert SMALL > 1000
        slow.close()
        again = server.call("POST", "/v1/completions", large)
        assert again.status == 400, again.body  # the fake model has no tokenizer


def test_the_head_of_a_stream_ends() -> None:
    with running_server(fake_engine()) as server:
        reply = server.call("HEAD", "/v1/events?level=token")
        assert (reply.status, reply.body) == (200, b"")
        assert reply.headers["content-type"] == "text/event-stream"
        server.wait_until(lambda: not server.service.feed._readers, "the reader's end")
