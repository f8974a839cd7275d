"""Two keys: what one of them learns of the other's requests."""

import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from pellucid.server import request_records
from pellucid.server.config import Limits
from pellucid.server.visibility import OTHER
from support.api_keys import ADMIN_KEY, KEYS, OTHER_KEY, USER_KEY
from support.bundled import bundled_engine
from support.fake_model import fake_engine
from support.http_server import HttpReply, RunningServer, running_server
from support.replies import without
from support.step_gate import StepGate

PROMPT = "Once upon a time there was a small cat who lived in a big house near the sea. " * 6
MESSAGES = [{"role": "user", "content": PROMPT}]
BODY = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0, "seed": 1}
CLOCK = re.compile(r"_ms$|_us$|_seconds$|_per_second$|^created|_at$|_duration$|^date$")
RANDOM_ID = re.compile(r"[0-9a-f]{24}|\bc[0-9a-f]{8}\b")


def call(server: RunningServer, key: str, path: str, body: Any = None) -> HttpReply:
    method = "GET" if body is None else "POST"
    return server.call(method, path, body, {"x-api-key": key})


def without_clock(value: Any) -> Any:
    """A reply without what a clock or a die has made."""
    return json.loads(RANDOM_ID.sub("ID", json.dumps(without(value, CLOCK.search))))


def replies_of(server: RunningServer, key: str) -> list[Any]:
    """All that a key gets to see of some calls."""
    found: list[Any] = []
    for path, body in (
        ("/v1/completions", BODY),
        ("/v1/completions", {**BODY, "cache_salt": "own"}),
        ("/v1/completions", {**BODY, "stream": True, "return_progress": True}),
        ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 4, "temperature": 0}),
        ("/v1/responses", {"input": PROMPT, "max_output_tokens": 4, "temperature": 0}),
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 4, "temperature": 0}),
        ("/api/generate", {"prompt": PROMPT, "stream": False, "options": {"num_predict": 4}}),
        ("/v1/completions", {**BODY, "n": 300}),
    ):
        reply = call(server, key, path, body)
        content = reply.events if b"data:" in reply.body else reply.json
        if isinstance(content, list):  # a clock decides how many frames there are
            content = "".join(
                each["choices"][0]["text"]
                for each in content
                if each != "[DONE]" and each["choices"]
            )
        found.append((path, reply.status, content))
        explained = call(server, key, f"/v1/explain/{reply.headers['x-request-id']}")
        found.append(("explain", explained.status, explained.json))
    for path in ("/v1/requests", "/v1/events", "/v1/snapshot", "/v1/kv", "/metrics", "/v1/models"):
        reply = call(server, key, path)
        found.append((path, reply.status, json.loads(reply.body)))
    return without_clock(found)


@contextmanager
def guarded(isolates: bool) -> Iterator[RunningServer]:
    with running_server(bundled_engine(), api_keys=KEYS, isolate_keys=isolates) as server:
        yield server


def test_replies_of_one_key_do_not_depend_on_the_prompts_of_another() -> None:
    with guarded(isolates=True) as server:
        alone = replies_of(server, USER_KEY)
    with guarded(isolates=True) as server:
        theirs = replies_of(server, OTHER_KEY)
        beside = replies_of(server, USER_KEY)
    assert alone == theirs == beside
    assert ["/v1/events", 403] in [[path, status] for path, status, _ in alone]


def test_a_miss_does_not_tell_what_another_key_has_asked() -> None:
    """Without isolation too: `salt` told block by block how another key's prompt begins."""
    with guarded(isolates=False) as server:
        call(server, OTHER_KEY, "/v1/completions", BODY)
        reply = call(server, USER_KEY, "/v1/completions", BODY)
        explained = call(server, USER_KEY, f"/v1/explain/{reply.json['id']}").json
        (completion,) = explained["completions"].values()
        assert completion["prefix"]["miss_why"] == "never_seen"
        salted = call(server, USER_KEY, "/v1/completions", {**BODY, "cache_salt": "own"})
        explained = call(server, USER_KEY, f"/v1/explain/{salted.json['id']}").json
        (completion,) = explained["completions"].values()
        assert completion["prefix"]["miss_why"] == "salt"  # of its own prompt


def test_the_load_of_another_key_shows_in_times_alone() -> None:
    """The other key's request takes the blocks of this key's newest one, which is computed again."""
    alone, lost_alone = explanations_of_preempted_calls(beside=False)
    loaded, lost_beside = explanations_of_preempted_calls(beside=True)
    assert loaded == alone
    assert lost_alone == 0 < lost_beside  # as an admin sees it


def test_a_key_that_sees_others_hears_of_preemptions_by_them_without_their_names() -> None:
    (seen, _), _ = explanations_of_preempted_calls(beside=True, isolates=False)
    own = {name: completion for call in seen for name, completion in call["completions"].items()}
    causes = {each["cause_req"] for it in own.values() for each in it["preemptions"]}
    assert OTHER in causes and causes <= {OTHER, *own}


def explanations_of_preempted_calls(beside: bool, isolates: bool = True) -> tuple[list[Any], int]:
    """What a key gets to see of two calls that ran together, and how many positions they lost.

    Args:
        beside: another key sends a call that does not fit beside them.
    """
    engine = fake_engine(clock=time.monotonic, num_kv_blocks=16, block_size=16)
    body = {"prompt": [1, 2, 3], "max_tokens": 80, "ignore_eos": True, "stream": True, "seed": 1}
    with (
        running_server(engine, api_keys=KEYS, isolate_keys=isolates) as server,
        ExitStack() as stack,
    ):
        gate = StepGate(engine)
        own = [
            stack.enter_context(
                server.open_call("/v1/completions", body, **{"x-api-key": USER_KEY})
            )
            for _ in range(2)
        ]
        server.wait_until(lambda: engine.num_unfinished_sequences == 2, "both calls")
        gate.let(60)
        server.wait_until(lambda: engine.events.step == 60, "steps")
        if beside:
            theirs = {**body, "prompt": [4] * 90}
            stack.enter_context(
                server.open_call("/v1/completions", theirs, **{"x-api-key": OTHER_KEY})
            )
            server.wait_until(lambda: engine.num_unfinished_sequences == 3, "the other call")
        ids = list(server.service.under_way)[:2]
        gate.open()
        frames = [received_until(connection, b"[DONE]") for connection in own]
        server.wait_until_idle()
        seen = [call(server, USER_KEY, f"/v1/explain/{each}").json for each in ids]
        lost = sum(
            completion["ledger"]["lost_tok"]
            for each in ids
            for completion in call(server, ADMIN_KEY, f"/v1/explain/{each}")
            .json["completions"]
            .values()
        )
        return without_clock([seen, [texts_of(each) for each in frames]]), lost


def received_until(connection: socket.socket, end: bytes) -> bytes:
    received = b""
    while end not in received:
        received += connection.recv(65536)
    return received


def texts_of(frames: bytes) -> str:
    return "".join(re.findall(r'"text":"(.*?)"', frames.decode()))


@pytest.mark.parametrize(("limit", "most"), [("MAX_RECORDS", 2), ("MAX_TOKENS", 2 * 4 * 3)])
def test_calls_of_another_key_make_no_call_forgotten(
    monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    monkeypatch.setattr(request_records, limit, most)
    with running_server(fake_engine(), api_keys=KEYS) as server:
        body = {"prompt": [1, 2, 3], "max_tokens": 1}
        own = [call(server, USER_KEY, "/v1/completions", body).json["id"] for _ in range(3)]
        for _ in range(3):
            call(server, OTHER_KEY, "/v1/completions", body)
        statuses = [call(server, USER_KEY, f"/v1/explain/{each}").status for each in own]
        assert statuses == [404, 200, 200]


def test_a_refusal_does_not_tell_how_many_places_another_key_holds() -> None:
    limits = Limits(max_unfinished_completions=8)
    engine = fake_engine()
    with running_server(engine, api_keys=KEYS, isolate_keys=True, limits=limits) as server:
        gate = StepGate(engine)
        body = {"prompt": [1, 2, 3], "max_tokens": 5}
        alone = call(server, USER_KEY, "/v1/completions", {**body, "n": 8})
        with server.open_call("/v1/completions", body, **{"x-api-key": OTHER_KEY}) as connection:
            server.wait_until(lambda: server.service.under_way, "the other call")
            beside = call(server, USER_KEY, "/v1/completions", {**body, "n": 8})
            gate.open()
            received_until(connection, b"usage")
        server.wait_until_idle()
    assert (alone.status, alone.json) == (beside.status, beside.json)
    assert (alone.status, alone.headers["retry-after"]) == (429, "1")


@pytest.mark.parametrize("isolates", [False, True])
def test_ids_of_other_keys_are_not_shown(isolates: bool) -> None:
    engine = fake_engine(clock=time.monotonic, max_num_seqs=1)
    long = {"prompt": [1, 2, 3], "max_tokens": 50, "ignore_eos": True, "stream": True}
    with running_server(engine, api_keys=KEYS, isolate_keys=isolates) as server:
        gate = StepGate(engine)
        with (
            server.open_call("/v1/completions", long, **{"x-api-key": OTHER_KEY}) as theirs,
            server.open_call("/v1/completions", long, **{"x-api-key": USER_KEY}) as own,
        ):
            server.wait_until(lambda: server.engine.has_unfinished_requests, "a request")
            server.wait_until(lambda: len(server.service.under_way) == 2, "both")
            gate.open()
            for connection in (theirs, own):
                received_until(connection, b"[DONE]")
        server.wait_until_idle()
        ids = dict.fromkeys(server.service.records._records)
        seen = dict.fromkeys((USER_KEY, OTHER_KEY, ADMIN_KEY), "")
        for key in seen:
            for request_id in ids:
                seen[key] += call(server, key, f"/v1/explain/{request_id}").body.decode()
        for key in (USER_KEY, OTHER_KEY):
            others = [each for each in ids if f'"id":"{each}"' not in seen[key]]
            assert len(others) == 1
            shown = seen[key].replace(f"'{others[0]}'", "")  # what a 404 repeats
            assert others[0] not in shown
            assert ('"other"' in seen[USER_KEY] + seen[OTHER_KEY]) is not isolates
        assert all(each in seen[ADMIN_KEY] for each in ids)
