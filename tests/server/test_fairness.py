"""Fair shares between keys, over HTTP: first tokens, places in the queue, and the cause of a wait."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from pellucid.observing.events import EventRecord, Level, RequestAdded, RequestStateChanged
from pellucid.server.api_keys import ApiKeys, Caller, Role
from pellucid.server.config import Limits
from support.fake_model import fake_engine
from support.http_server import TIMEOUT, RunningServer, running_server
from support.step_gate import StepGate

GREEDY, POLITE, ADMIN = "greedy-key-012345", "polite-key-012345", "admin-key-0123456"
KEYS = ApiKeys(
    [
        (GREEDY, Caller("greedy", Role.INFERENCE)),
        (POLITE, Caller("polite", Role.INFERENCE, weight=2.0)),
        (ADMIN, Caller("ops", Role.ADMIN)),
    ]
)
LONG = {"prompt": [1] * 40, "max_tokens": 200, "ignore_eos": True, "stream": True, "priority": -9}
NUM_SEATS, NUM_GREEDY = 4, 20


@pytest.fixture
def busy() -> Iterator[RunningServer]:
    """A server whose seats one key has taken, and most places of the queue as well."""
    engine = fake_engine(max_num_seqs=NUM_SEATS, max_num_batched_tokens=32)
    limits = Limits(max_unfinished_completions=24)
    with running_server(engine, api_keys=KEYS, limits=limits) as server, ExitStack() as held:
        server.gate = StepGate(engine)  # type: ignore[attr-defined]
        for _ in range(NUM_GREEDY):
            call = server.open_call("/v1/completions", LONG, authorization=f"Bearer {GREEDY}")
            held.enter_context(call)
        server.wait_until(
            lambda: (
                len(server.service.under_way) + server.service.admission.num_refused == NUM_GREEDY
            ),
            "all calls of the greedy key",
        )
        yield server
        held.close()
        server.wait_until_idle()


def test_a_greedy_key_delays_the_first_token_of_another_key_by_a_step(busy: RunningServer) -> None:
    steps: dict[str, int] = {}

    def note(record: EventRecord) -> None:
        event = record.event
        if isinstance(event, RequestAdded) and event.prompt_tok == 10:
            steps["added"] = busy.engine.events.step
            steps[event.req] = 0
        if isinstance(event, RequestStateChanged) and event.req in steps and event.to == "decode":
            steps["first token"] = busy.engine.events.step

    busy.engine.events.subscribe(note, Level.STAT)
    busy.gate.let(10)  # type: ignore[attr-defined]
    busy.wait_until(lambda: len(busy.engine.scheduler.running) == NUM_SEATS, "taken seats")
    busy.gate.open()  # type: ignore[attr-defined]
    body = {"prompt": [2] * 10, "max_tokens": 3}
    reply = busy.post("/v1/completions", body, authorization=f"Bearer {POLITE}")
    assert reply.status == 200
    assert (
        steps["first token"] - steps["added"] <= 2
    )  # the step that it arrives before, and one more


def test_a_greedy_key_cannot_take_the_places_kept_for_others(busy: RunningServer) -> None:
    """Of 24 places 12 are kept: 3 for the greedy key, 6 for the polite one, 3 for the admin's."""
    own = {"authorization": f"Bearer {GREEDY}"}
    refused = busy.post("/v1/completions", {**LONG, "max_tokens": 1}, **own)
    assert (refused.status, "retry-after" in refused.headers) == (429, True)
    message = refused.json["error"]["message"]
    assert (
        "15 of 24 completions are unfinished, 15 of them this key's, which can have 15" in message
    )
    accepted = threading.Thread(
        target=busy.post,
        args=("/v1/completions", {"prompt": [3], "max_tokens": 1}),
        kwargs={"authorization": f"Bearer {POLITE}"},
    )
    accepted.start()
    busy.wait_until(lambda: len(busy.service.under_way) == 16, "a call of another key")
    busy.gate.open()  # type: ignore[attr-defined]
    accepted.join(TIMEOUT)


def test_the_cause_of_a_wait_is_said(busy: RunningServer) -> None:
    body = {"prompt": [3], "max_tokens": 1, "stream": True}
    with busy.open_call("/v1/completions", body, authorization=f"Bearer {POLITE}"):
        busy.wait_until(lambda: len(busy.service.under_way) == 16, "a call of another key")
        own = busy.get("/v1/requests", authorization=f"Bearer {POLITE}").json["data"]
        assert [each["waits"] for each in own] == [
            {"own_ahead": 0, "others_ahead": 1, "cause": "behind about 1 of other keys, in turn"}
        ]
        everyone = busy.get("/v1/requests", authorization=f"Bearer {ADMIN}").json["data"]
        causes = {each["waits"]["cause"] for each in everyone if each["caller"] == "greedy"}
        assert "behind 14 requests of the same key and about 1 of other keys, in turn" in causes
