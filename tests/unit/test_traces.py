"""Traces: redacted, applied to a state that equals a snapshot, and in the forms of other tools."""

import csv
import io
import json
import random
from pathlib import Path
from typing import Any

import pytest

from pellucid.engine import LLMEngine
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.observing import events as kinds
from pellucid.observing.event_recording import event_line, open_recording, read_recording, recording
from pellucid.observing.events import Level
from pellucid.observing.traces.perfetto import ENGINE, PARTS, REQUESTS, perfetto_trace, write_csv
from pellucid.observing.traces.redaction import Redactor
from pellucid.observing.traces.state import TraceState
from support.fake_model import fake_engine

Event = dict[str, Any]


def crowded_engine(**knobs: object) -> LLMEngine:
    return fake_engine(
        **{
            "block_size": 16,
            "num_kv_blocks": 16,
            "max_num_seqs": 6,
            "max_num_batched_tokens": 24,
            "speculation": "ngram",
            **knobs,
        }
    )


def add_many(engine: LLMEngine, count: int, rng: random.Random) -> None:
    shared = [rng.randrange(1, 6) for _ in range(40)]
    for _ in range(count):
        prompt = [*shared[: rng.randrange(1, 40)], rng.randrange(1, 6)]
        params = SamplingParams(
            max_tokens=rng.randrange(1, 60),
            n=rng.choice([1, 1, 2]),
            temperature=rng.choice([0, 1]),
            seed=rng.randrange(100),
        )
        engine.add_request(prompt, params, priority=rng.randrange(3))


def events_of(engine: LLMEngine, num_requests: int = 30) -> list[Event]:
    events: list[Event] = []
    engine.events.subscribe(lambda record: events.append(record.as_dict()), Level.TOKEN)
    add_many(engine, num_requests, random.Random(0))
    while engine.has_unfinished_requests:
        engine.clock.now += 0.01
        engine.step()
    return [json.loads(event_line(event)) for event in events]


@pytest.fixture(scope="module")
def crowded_events() -> list[Event]:
    return events_of(crowded_engine())


def state_after(events: list[Event]) -> TraceState:
    state = TraceState()
    for event in events:
        state.apply(event)
    return state


def assert_equal(state: TraceState, snapshot: Any) -> None:
    assert state.is_complete
    found = {(block, each.owners, each.hash) for block, each in state.blocks.items()}
    assert found == set(snapshot.blocks)
    assert {name: each.state for name, each in state.requests.items()} == {
        request.req: request.state for request in snapshot.requests
    }


@pytest.mark.parametrize("knobs", [{}, {"swap_space": 64}, {"enable_prefix_caching": False}])
def test_events_lead_to_the_state_that_a_snapshot_has(knobs: dict[str, object]) -> None:
    """From the beginning, and from a snapshot on: at every step."""
    engine, rng = crowded_engine(**knobs), random.Random(1)
    early, late = TraceState(), TraceState()
    engine.events.subscribe(lambda record: early.apply(record.as_dict()), Level.STEP)
    add_many(engine, 12, rng)
    num_steps = 0
    while engine.has_unfinished_requests:
        if num_steps == 30:  # somebody comes late
            snapshot = engine.snapshot()
            late.apply({"ev": snapshot.ev, **json.loads(json.dumps(snapshot.fields_as_dict()))})
            engine.events.subscribe(lambda record: late.apply(record.as_dict()), Level.STEP)
        engine.step()
        num_steps += 1
        if num_steps % 17 == 0:
            engine.abort(next(iter(engine.unfinished_request_ids), "nobody"))
            engine.scheduler.report_blocks()
        for state in (early, late) if num_steps > 30 else (early,):
            assert_equal(state, engine.snapshot())
    assert num_steps > 40 and not early.requests


def test_a_gap_is_told_and_a_snapshot_repairs_it(crowded_events: list[Event]) -> None:
    state = state_after(crowded_events[:201])
    assert state.seq == 200 and state.is_complete
    state.apply(
        {**crowded_events[201], "ev": "gap", "from_seq": 201, "to_seq": 300, "resync": True}
    )
    assert not state.is_complete
    engine = crowded_engine()
    state.apply({"ev": "snapshot", **engine.snapshot().fields_as_dict()})
    assert state.is_complete and not state.blocks and not state.requests


def test_a_compressed_recording_reads_like_a_plain_one(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("plain.ndjson", "small.jsonl.gz")]
    for file in files:
        engine = crowded_engine()
        with recording(engine.events, file):
            events_of(engine, 3)
    plain, small = ([event["ev"] for event in read_recording(file)] for file in files)
    assert plain == small and len(plain) > 50
    assert files[1].stat().st_size < files[0].stat().st_size / 3
    (tmp_path / "not.gz").write_text("{}")
    with pytest.raises(ValueError, match="is not a gzip file"):
        list(read_recording(tmp_path / "not.gz"))


def test_redaction_knows_every_event() -> None:
    assert Redactor()._rules.keys() == {kind.ev for kind in kinds.Event.__subclasses__()}


def test_redaction_keeps_every_number_and_no_text(tmp_path: Path) -> None:
    engine = crowded_engine()
    names = {"alice-1": "hello there", "bob-2": "hello there, bob"}
    events: list[Event] = []
    engine.events.subscribe(lambda record: events.append(record.as_dict()), Level.TOKEN)
    for name, text in names.items():
        params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
        engine.add_request(text * 3, params, name, caller=f"carol/{name[0]}")
    for _ in range(5):
        engine.step()
    snapshot = engine.snapshot(with_tokens=True)
    while engine.has_unfinished_requests:
        engine.step()
    events = json.loads(json.dumps([*events, {"ev": "snapshot", **snapshot.fields_as_dict()}]))
    redactor = Redactor()
    redacted = [event for event in map(redactor, events) if event is not None]
    assert len(redacted) == len(events)
    written = json.dumps(redacted)
    for secret in ("alice", "bob", "carol", "prompt_ids", "output_ids", "diff_ids"):
        assert secret not in written
    assert all(event["text"] == "" and event["id"] == 0 for event in redacted if "cand" in event)
    for before, after in zip(events, redacted, strict=True):
        numbers = {key: value for key, value in before.items() if isinstance(value, float)}
        assert numbers.items() <= after.items()
    callers = [
        {each["caller"] for each in (event, *event.get("requests", ())) if "caller" in each}
        for event in redacted
    ]
    assert len(set().union(*callers)) == 2
    # Equal ids stay equal, in this recording alone; and what is left is a recording still.
    states = [state_after(each[:-1]) for each in (events, redacted)]
    assert len(states[0].blocks) == len(states[1].blocks) > 0
    assert Redactor()(events[3]) != redactor(events[3])
    path = tmp_path / "redacted.jsonl.gz"
    with open_recording(path) as file:
        file.writelines(
            event_line({"v": 1, "seq": 0, "t_us": 0, "step": 0, **event}) for event in redacted
        )
    assert len(list(read_recording(path))) == len(redacted)
    assert redactor({"ev": "unheard.of", "text": "secret"}) is None


def test_perfetto_slices_nest_and_phases_open_and_close(crowded_events: list[Event]) -> None:
    rows = json.loads(json.dumps(perfetto_trace(crowded_events)))["traceEvents"]
    steps = [event for event in crowded_events if event["ev"] == "step"]
    slices = [row for row in rows if row["ph"] == "X"]
    assert len(slices) == len(steps) * (1 + len(PARTS))
    kinds_of_steps = [whole["args"]["kind"] for whole in slices[:: 1 + len(PARTS)]]
    assert kinds_of_steps == [step["kind"] for step in steps]
    for whole, *parts in zip(*[iter(slices)] * (1 + len(PARTS)), strict=True):
        assert [part["name"] for part in parts] == [name for name, _ in PARTS]
        assert sum(part["dur"] for part in parts) == whole["dur"]
        assert parts[0]["ts"] == whole["ts"]
    opened: dict[tuple[str, str], int] = {}
    for row in rows:
        if row["ph"] in "be":
            key = (row["id"], row["name"])
            opened[key] = opened.get(key, 0) + (1 if row["ph"] == "b" else -1)
            assert opened[key] in (0, 1) and row["pid"] == REQUESTS
    assert opened and not any(opened.values())
    preempted = [event for event in crowded_events if event["ev"] == "preempt"]
    assert preempted
    assert [row["ph"] for row in rows if row.get("cat") == "preempt"] == ["s", "f"] * len(preempted)
    assert {row["name"] for row in rows if row["ph"] == "C"} == {
        "KV blocks",
        "requests",
        "tokens/s",
    }
    assert all(row["pid"] == ENGINE for row in rows if row["ph"] == "C")


def test_steps_that_overlap_are_on_threads_of_their_own() -> None:
    """Three stages: a step ends each 10 us, and takes 30; a microsecond may be lost in rounding."""
    events = [
        {"ev": "step", "step": number, "t_us": end, "batch": [], "kind": "decode"}
        | {"sched_us": 2, "fwd_us": 25, "sample_us": 2, "emit_us": 1}
        for number, end in enumerate((40, 50, 60, 69, 80, 200))
    ]
    rows = perfetto_trace(events)["traceEvents"]
    steps = [row for row in rows if row["ph"] == "X" and row["name"].startswith("step")]
    assert [row["tid"] for row in steps] == [1, 2, 3, 1, 2, 1]
    names = [(row["tid"], row["args"]["name"]) for row in rows if row.get("name") == "thread_name"]
    assert names == [(1, "steps"), (2, "steps 2"), (3, "steps 3")]


def test_csv_has_a_line_for_each_step(crowded_events: list[Event]) -> None:
    file = io.StringIO()
    write_csv(crowded_events, file)
    steps = [event for event in crowded_events if event["ev"] == "step"]
    rows = list(csv.DictReader(io.StringIO(file.getvalue())))
    assert len(rows) == len(steps)
    assert [int(row["fwd_us"]) for row in rows] == [step["fwd_us"] for step in steps]
    assert int(rows[0]["tokens"]) == sum(count for _, count, _ in steps[0]["batch"])
