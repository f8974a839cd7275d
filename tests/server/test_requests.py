"""/v1/requests and /metrics: which requests wait and why, where their time went, why a cache missed."""

import json
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pellucid.observing.events import Level, Token
from pellucid.outputs import CompletionOutput, RequestMetrics, RequestOutput
from pellucid.server.config import Limits
from pellucid.server.metrics import Metrics
from pellucid.server.request_routes import RequestRoutes
from pellucid.server.waiting_line import RequestsAhead, Waiting, WaitingLine
from support.api_keys import ADMIN_KEY, KEYS, OTHER_KEY, USER_KEY
from support.bundled import bundled_engine
from support.fake_model import fake_engine
from support.http_server import TIMEOUT, RunningServer, running_server
from support.step_gate import StepGate

USER, OTHER, ADMIN = ({"x-api-key": key} for key in (USER_KEY, OTHER_KEY, ADMIN_KEY))
LONG = {"prompt": [1, 2, 3], "max_tokens": 200, "ignore_eos": True, "seed": 1}


@pytest.fixture
def guarded() -> Iterator[RunningServer]:
    with running_server(fake_engine(clock=time.monotonic, max_num_seqs=1), api_keys=KEYS) as server:
        yield server


def wait_for_queued(server: RunningServer, count: int) -> None:
    def are_queued() -> bool:
        return sum(bool(each.prompts) for each in server.service.under_way.values()) == count

    server.wait_until(are_queued, f"{count} queued requests")


def post_in_thread(server: RunningServer, body: Any, headers: dict[str, str]) -> threading.Thread:
    thread = threading.Thread(target=server.call, args=("POST", "/v1/completions", body, headers))
    thread.start()
    return thread


def test_who_waits_sees_its_place_and_the_cause_and_only_its_own(guarded: RunningServer) -> None:
    gate = StepGate(guarded.engine)
    threads = []
    for number, headers in enumerate((USER, USER, OTHER), 1):
        threads.append(post_in_thread(guarded, LONG, headers))
        wait_for_queued(guarded, number)

    def listed(headers: dict[str, str]) -> list[Any]:
        return guarded.call("GET", "/v1/requests", None, headers).json["data"]

    assert [line["queue_position"] for line in listed(ADMIN)] == [0, 2, 1]  # keys take turns
    assert [line["caller"] for line in listed(USER)] == ["user", "user"]
    (own,) = listed(OTHER)
    assert (own["state"], own["queue_position"], own["prompt_tokens"]) == ("waiting", 1, 3)
    theirs = listed(USER)[1]
    for line, headers, status in ((own, USER, 404), (own, OTHER, 200), (theirs, ADMIN, 200)):
        path = f"/v1/requests/cmpl-{line['id']}/cancel"
        assert guarded.call("POST", path, None, headers).status == status
    assert guarded.call("POST", "/v1/requests/nobody/cancel", None, ADMIN).status == 404
    gate.open()
    for thread in threads:
        thread.join(TIMEOUT)
    guarded.wait_until_idle()
    assert listed(ADMIN) == []


def test_the_line_is_sorted_once_for_all_that_ask(
    guarded: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 1,000 waiting requests, one call stopped the server for 25 s: it sorted all of them for each, twice."""
    gate = StepGate(guarded.engine)
    streams = [
        guarded.open_call(
            "/v1/completions", {**LONG, "stream": True, "return_progress": True}, **USER
        )
        for _ in range(20)
    ]
    wait_for_queued(guarded, 20)
    num_sorted: list[int] = []

    class CountedLine(WaitingLine):
        def __init__(self, waiting: Iterable[Waiting]) -> None:
            entries = list(waiting)
            num_sorted.append(len(entries))
            super().__init__(entries)

    num_calls: list[int] = []
    line_of = RequestRoutes._line

    def counted_line(*args: Any) -> dict[str, Any]:
        num_calls.append(0)

        def count(frame: object, event: str, given: object) -> None:
            num_calls[-1] += event == "call"

        before = sys.getprofile()
        sys.setprofile(count)
        try:
            return line_of(*args)
        finally:
            sys.setprofile(before)

    begun = time.monotonic()
    monkeypatch.setattr("pellucid.server.generation.WaitingLine", CountedLine)
    monkeypatch.setattr(RequestRoutes, "_line", counted_line)
    lines = guarded.call("GET", "/v1/requests", None, ADMIN).json["data"]
    assert [line["queue_position"] for line in lines] == list(range(20))
    assert sorted(num_calls)[10] <= 19, "calls of Python functions to describe one request"
    guarded.wait_until(lambda: len(num_sorted) >= 3, "progress of the streams")
    # The call, and the progress of all streams, four times a second.
    assert len(num_sorted) <= 4 + 4 * (time.monotonic() - begun)
    monkeypatch.undo()
    gate.open()
    for stream in streams:
        stream.close()


@pytest.mark.parametrize(
    ("lacking", "cause"),
    [
        ({"max_num_seqs": 1}, "next: no seat is free"),
        ({"num_kv_blocks": 3}, "next: lacks 1 block"),
    ],
)
def test_the_first_in_the_queue_waits_for_what_it_lacks(
    lacking: dict[str, int], cause: str
) -> None:
    engine = bundled_engine(block_size=16, max_model_len=48, **lacking)
    with running_server(engine) as server, ThreadPoolExecutor(2) as threads:
        body = {"model": "tested", "max_tokens": 12, "ignore_eos": True}
        gate = StepGate(engine, num_steps=1)
        for count in (1, 2):
            threads.submit(server.post, "/v1/completions", {**body, "prompt": [count] * 20})
            server.wait_until(
                lambda count=count: len(engine.unfinished_request_ids) == count, "the request"
            )
            server.wait_until(lambda: gate.num_left == 0, "a step")
            gate.let(1)
        server.wait_until(lambda: gate.num_left == 0, "a step that cannot admit it")
        requests: dict[str, Any] = {}

        def has_tokens() -> bool:
            requests.update(
                (each["state"], each) for each in server.get("/v1/requests").json["data"]
            )
            return bool(requests["running"]["output_tokens"])

        server.wait_until(has_tokens, "a token of the first request")
        waiting = requests["waiting"]
        gate.open()
    assert waiting["output_tokens"] == 0
    assert (waiting["queue_position"], waiting["waits"]["cause"]) == (0, cause)


def test_a_request_that_comes_after_a_line_is_behind_it() -> None:
    line = WaitingLine([Waiting(2.0, "b", "x"), Waiting(1.0, "a", "x"), Waiting(9.0, "c", "y")])
    places = [line.ahead_of(name, caller) for name, caller in (("a", "x"), ("c", "y"), ("b", "x"))]
    assert places == [RequestsAhead(0, 0), RequestsAhead(0, 1), RequestsAhead(1, 1)]
    assert line.ahead_of("new", "y") == RequestsAhead(1, 2)


def test_a_request_is_explained_to_its_owner(guarded: RunningServer) -> None:
    body = {**LONG, "max_tokens": 3, "n": 2}
    reply = guarded.call("POST", "/v1/completions", body, USER)
    name = reply.json["id"]
    for headers, status in ((USER, 200), (ADMIN, 200), (OTHER, 404)):
        assert guarded.call("GET", f"/v1/explain/{name}", None, headers).status == status
    found = guarded.call("GET", f"/v1/explain/{name}", None, USER).json
    assert (found["path"], found["prompt_tokens"], len(found["completions"])) == (
        "/v1/completions",
        3,
        2,
    )
    first = next(iter(found["completions"].values()))
    assert (first["state"], first["reason"]) == ("done", "max_tokens")
    ledger = first["ledger"]
    parts = [value for key, value in ledger.items() if key.endswith("_us") and key != "total_us"]
    assert sum(parts) == ledger["total_us"] > 0


def test_why_a_cache_missed_is_said_exactly() -> None:
    """Where the prompts part, the tokens around it, and how many were computed again."""
    with running_server(bundled_engine(), api_keys=KEYS) as server:
        prompt = list(range(100, 200))
        changed = [*prompt[:70], 7, *prompt[71:]]
        body = {"prompt": prompt, "max_tokens": 1}
        first = server.call("POST", "/v1/completions", body, USER).json["id"]
        second = server.call("POST", "/v1/completions", {**body, "prompt": changed}, USER).json
        explained = server.call("GET", f"/v1/explain/{second['id']}", None, USER).json
        (answer,) = explained["completions"].values()
        assert answer["prefix"]["hit_tok"] == 64
        assert answer["prefix"]["miss_why"] == "differs"
        cache = answer["cache"]
        assert (cache["parts_at_token"], cache["missed_tokens"]) == (70, 36)
        assert cache["other"] == first.removeprefix("cmpl-")
        text = server.engine.tokenizer.token_text
        assert cache["tokens"] == [text(token_id) for token_id in changed[62:78]]
        assert cache["other_tokens"] == [text(token_id) for token_id in prompt[62:78]]
        kv = server.call("GET", "/v1/kv", None, ADMIN).json
        assert kv["num_used_blocks"] == 0 and kv["num_cached_blocks"] >= 3
        assert server.call("GET", "/v1/kv", None, USER).status == 403


def metrics_of(server: RunningServer) -> dict[str, float]:
    """Each sample by its name and the labels that are not the model's."""
    reply = server.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain")
    return {
        sample.name
        + "".join(
            f"{{{value}}}"
            for key, value in sample.labels.items()
            if key not in ("model_name", "engine")
        ): sample.value
        for family in text_string_to_metric_families(reply.body.decode())
        for sample in family.samples
    }


def test_what_a_request_adds_to_each_metric() -> None:
    metrics, lived = Metrics(), RequestMetrics(1.0, 1.5, [1.75, 2.0, 2.75], 3.0)
    lived.num_preemptions = 2
    ended = CompletionOutput(0, "abc", [7, 8, 9], finish_reason="stop")
    waited = RequestOutput("b", None, [1] * 4, 0, [CompletionOutput(0, "", [])], RequestMetrics(1))
    output = RequestOutput("a", None, [1] * 5, 0, [ended], lived, num_cached_tokens=3)
    metrics.count([output, waited])
    assert {name.partition(":")[2]: count for name, count in metrics.counters.items()} == {
        "prompt_tokens": 5,
        "generation_tokens": 3,
        "num_preemptions": 2,
        "prefix_cache_queries": 5,
        "prefix_cache_hits": 3,
        "prompt_tokens_cached": 3,
    }
    assert metrics.finished == {"stop": 1, "abort": 1}
    found = {}
    for name, histogram in metrics.histograms.items():
        buckets = histogram.buckets()
        first = next(bound for bound, count in buckets if count)
        found[name.partition(":")[2]] = (histogram.sum, buckets[-1][1], first)
    assert found == {
        "time_to_first_token_seconds": (0.75, 1, "0.75"),
        "inter_token_latency_seconds": (1.0, 2, "0.3"),
        "e2e_request_latency_seconds": (2.0, 1, "2"),
        "request_queue_time_seconds": (0.5, 1, "0.5"),
        "request_prefill_time_seconds": (0.25, 1, "0.3"),
        "request_decode_time_seconds": (1.0, 1, "1"),
        "request_prompt_tokens": (5, 1, "5"),
        "request_generation_tokens": (3, 2, "1"),
    }


def test_metrics_of_drafts() -> None:
    engine = bundled_engine(speculation="ngram")
    with running_server(engine) as server:
        body = {"prompt": list(range(100, 200)), "max_tokens": 20, "ignore_eos": True}
        assert server.post("/v1/completions", {**body, "allowed_token_ids": [107]}).status == 200
        server.wait_until_idle()
        found, counters = metrics_of(server), engine.speculation
        assert counters is not None and counters.num_right > 0
        drafts = "vllm:spec_decode_num"
        assert found[f"{drafts}_drafts_total"] == counters.num_rounds
        assert found[f"{drafts}_draft_tokens_total"] == counters.num_drafts
        assert found[f"{drafts}_accepted_tokens_total"] == counters.num_right
        for place, count in enumerate(counters.right_by_position):
            assert found[f"{drafts}_accepted_tokens_per_pos_total{{{place}}}"] == count
        assert found["pellucid:speculation_speedup"] == counters.speedup


def test_metrics_see_requests_that_run_and_wait() -> None:
    limits = Limits(max_unfinished_completions=2)
    engine = fake_engine(max_num_seqs=1)
    with running_server(engine, limits=limits) as server, ExitStack() as connections:
        gate = StepGate(engine, num_steps=3)
        for _ in range(2):
            connections.enter_context(server.open_call("/v1/completions", LONG))
        server.wait_until(
            lambda: (
                sum(g.has_started for g in server.service.under_way.values()) == 1
                and len(server.service.under_way) == 2
            ),
            "one that runs and one that waits",
        )
        assert server.post("/v1/completions", LONG).status == 429
        gate.open()
        found = metrics_of(server)
        assert found["vllm:num_requests_running"] + found["vllm:num_requests_waiting"] <= 2
        reasons = (f"vllm:num_requests_waiting_by_reason{{{r}}}" for r in ("capacity", "deferred"))
        assert sum(map(found.__getitem__, reasons)) == found["vllm:num_requests_waiting"]
        assert found["vllm:admission_rejections_total{queue_full}"] == 1
        connections.close()
        server.wait_until_idle()


def read_events(
    server: RunningServer, path: str, until: str, num_ends: int = 1, **headers: object
) -> list[dict[str, Any]]:
    """The data of events until `num_ends` of the kind `until` have come."""
    named = {
        "host": "localhost",
        **{key.replace("_", "-"): value for key, value in headers.items()},
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in named.items())
    found: list[dict[str, Any]] = []
    with socket.create_connection((server.host, server.port), TIMEOUT) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\n{head}\r\n".encode())
        if "last_event_id" not in headers:
            server.wait_until(lambda: server.service.feed._readers, "a reader")
            assert server.post("/v1/completions", {**LONG, "max_tokens": 2}).status == 200
        received = b""
        while sum(event["ev"] == until for event in found) < num_ends:
            received += connection.recv(65536)
            lines = received.split(b"\n")[:-1]
            told = [json.loads(line[6:]) for line in lines if line.startswith(b"data: ")]
            found = [event for each in told for event in events_of(each)]
    others = 1 if "last_event_id" in headers else 0
    server.wait_until(lambda: len(server.service.feed._readers) == others, "its end")
    return found


def events_of(told: Any) -> list[dict[str, Any]]:
    """The events of a frame, which has one or a batch."""
    if isinstance(told, dict):
        return [told]
    return [{"v": 1, **record.pop("event"), **record} for record in told]


def test_a_batch_has_what_single_frames_have() -> None:
    with running_server(fake_engine(clock=time.monotonic)) as server:
        kept = server.service.feed.read(Level.TEXT)  # while nobody reads, nothing is kept
        assert server.post("/v1/completions", {**LONG, "max_tokens": 5}).status == 200
        server.wait_until_idle()
        first = kept.take()[0].seq
        single, batched = (
            read_events(server, f"/v1/events?level=text{more}", "req.ledger", last_event_id=first)
            for more in ("", "&batch=true")
        )
        end = [event["ev"] for event in single].index("req.ledger") + 1
        assert {"req.add", "kv", "step"} < {event["ev"] for event in single[:end]}
        assert batched[:end] == single[:end]
        assert server.get("/v1/events?batch=yes").status == 400
        kept.close()


def test_events_are_streamed_and_go_on_where_a_reader_left_off() -> None:
    with running_server(fake_engine(clock=time.monotonic)) as server:
        first, *events = read_events(server, "/v1/events?level=step", "req.ledger")
        assert first["ev"] == "snapshot" and first["requests"] == []
        assert {"req.add", "req.state", "step", "kv"} <= {event["ev"] for event in events}
        numbers = [event["seq"] for event in events]
        assert numbers == sorted(numbers)
        states = read_events(server, "/v1/events?ev=req.state,req.ledger", "req.ledger")
        assert {event["ev"] for event in states[1:]} == {"req.state", "req.ledger"}
        assert server.get("/v1/snapshot").json["free"] > 0
        other = server.service.feed.read(Level.STEP)  # while nobody reads, nothing is kept
        assert server.post("/v1/completions", {**LONG, "max_tokens": 2}).status == 200
        server.wait_until_idle()
        left_off = other.take()[2].seq
        path = "/v1/events?level=step"
        events = read_events(server, path, "req.ledger", last_event_id=str(left_off))
        assert events[0]["seq"] == left_off + 1
        other.close()
        for path, headers in (
            ("?level=all", {}),
            ("?ev=req.stat", {}),
            ("", {"last_event_id": "x"}),
        ):
            assert server.get(f"/v1/events{path}", **headers).status == 400
        server.wait_until_idle()


def test_a_late_reader_gets_what_is_kept_and_then_the_state() -> None:
    with running_server(fake_engine(clock=time.monotonic)) as server:
        earlier = read_events(server, "/v1/events?level=step", "req.ledger")[1:]
        events = read_events(server, "/v1/events?level=step&history=true", "req.ledger", 2)
        assert events[0]["ev"] == "hello" and "seq" not in events[0]
        [at] = [index for index, event in enumerate(events) if event["ev"] == "snapshot"]
        known = {event["seq"]: event for event in events[1:at]}
        for event in earlier:
            assert known[event["seq"]] == event
        last = max(known)
        assert events[at]["as_of_seq"] >= last
        assert all(event["seq"] > last for event in events[at + 1 :])
        assert server.get("/v1/events?history=1").status == 400
        server.wait_until_idle()


def test_a_caller_hears_of_its_own_requests(guarded: RunningServer) -> None:
    everything = guarded.service.feed.read(Level.TOKEN)  # while nobody reads, nothing is kept
    body = {**LONG, "max_tokens": 2}
    for headers in (OTHER, USER):
        name = guarded.call("POST", "/v1/completions", body, headers).json["id"]
    own = name.removeprefix("cmpl-")
    guarded.wait_until_idle()
    heard: dict[str, set[str]] = {}
    callers: dict[str, list[str]] = {}
    path = "/v1/events?level=token"
    for key, user, num_requests in ((USER_KEY, "user", 1), (ADMIN_KEY, "ops", 2)):
        events = read_events(
            guarded, path, "req.ledger", num_requests, last_event_id="0", x_api_key=key
        )
        heard[user] = {event["req"].partition("/")[0] for event in events if "req" in event}
        callers[user] = [event["caller"] for event in events if event["ev"] == "req.add"]
        named = {event["ev"] for event in events}
        assert ("kv" in named) == ("step" in named) == (user == "ops")
        assert "req.add" in named
    assert heard["user"] == {own} < heard["ops"]
    assert callers == {"user": ["user"], "ops": ["other", "user"]}
    everything.close()
    snapshot = guarded.call("GET", "/v1/snapshot?level=token", None, USER).json
    assert snapshot["requests"] == snapshot["blocks"] == []
    assert guarded.call("GET", "/v1/events?req=nobody", None, USER).status == 400
    assert guarded.call("GET", "/metrics", None, USER).status == 403
    for path in ("/v1/events", "/v1/snapshot", "/metrics"):
        assert guarded.call("GET", path, None, {}).status == 401


def test_tokens_of_one_request_are_watched_and_no_others() -> None:
    with running_server(fake_engine(clock=time.monotonic)) as server:
        gate = StepGate(server.engine)
        threads = [post_in_thread(server, LONG, {}) for _ in range(2)]
        wait_for_queued(server, 2)
        watched = next(iter(server.service.under_way))
        reader = server.service.feed.read(Level.TOKEN, tokens_of=[watched])
        gate.open()
        for thread in threads:
            thread.join(TIMEOUT)
        server.wait_until_idle()
        tokens = [record.event for record in reader.take() if isinstance(record.event, Token)]
        assert {token.req for token in tokens} == {f"{watched}/0"}
        reader.close()
