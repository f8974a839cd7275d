"""A known run: its events, outputs and deltas as golden lines, with the times of a clock that ticks."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import pytest

from pellucid.engine.engine_events import Ceilings
from pellucid.engine.inspection import AnswerSoFar
from pellucid.inputs.beam_search_params import BeamSearchParams
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.inputs.structured_outputs import StructuredOutputsParams
from pellucid.observing.events import EventRecord, Level
from pellucid.scheduling.request import Request
from pellucid.speculation.proposers.proposer import Proposer
from support.courses import plain
from support.fake_model import fake_engine
from support.golden_files import compare
from support.kept_names import names_in
from support.ticking_clock import TickingClock

GOLDEN = Path(__file__).parents[1] / "golden" / "engine_run.txt"


class Drafts(Proposer):
    """Two right tokens of one request, and a wrong one."""

    def __init__(self) -> None:
        self.forgotten: list[str] = []

    def forget(self, requests: Sequence[Request]) -> None:
        self.forgotten += [request.request_id for request in requests]

    def propose(
        self, requests: Sequence[Request], max_drafts: Mapping[str, int]
    ) -> dict[str, list[int]]:
        answer = (6, 10, 9, 11, 16, 1, 1, 28, 30, 23, 20, 22, 1, 3)
        return {
            each.request_id: [*answer[each.num_output_tokens :][:2], 0]
            for each in requests
            if each.request_id == "long/0"
        }


def test_the_events_of_a_known_run(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: 1e6)
    monkeypatch.setattr("time.perf_counter", TickingClock())
    monkeypatch.setattr("secrets.token_hex", lambda num_bytes: "a" * 2 * num_bytes)
    drafts = Drafts()
    engine = fake_engine(
        clock=TickingClock(),
        num_kv_blocks=6,
        block_size=16,
        max_model_len=80,
        max_num_seqs=3,
        max_num_batched_tokens=40,
        swap_space=2 * 16,
        proposer=drafts,
        num_threads=1,
        ceilings=Ceilings(1e6, 4e6),
    )
    records: list[EventRecord] = []
    engine.events.subscribe(records.append, Level.TOKEN)
    trunk = [1 + index % 30 for index in range(33)]
    words = StructuredOutputsParams(regex="[a-m]{2}")
    drawn = SamplingParams(
        temperature=0.8, top_k=5, seed=3, max_tokens=3, n=2, structured_outputs=words
    )
    greedy = SamplingParams(temperature=0, max_tokens=14, ignore_eos=True, logprobs=1)
    outputs = [
        engine.add_request(trunk, greedy, "long"),
        engine.add_request([2, 3], drawn, "pair"),
    ]
    deltas = engine.step()
    told = SamplingParams(temperature=0.5, seed=1, max_tokens=5, prompt_logprobs=1, stop=",")
    thinks = SamplingParams(temperature=0, max_tokens=6, thinking_token_budget=2, bad_words=["a"])
    outputs += [
        engine.add_request([*trunk, 7], SamplingParams(temperature=0, max_tokens=8), "again"),
        engine.add_request([9], BeamSearchParams(beam_width=2, max_tokens=3), "beams", priority=-1),
        engine.add_request([4] * 40, SamplingParams(max_tokens=30), "late", caller="a"),
        engine.add_request([5, 6] * 12, told, "told", cache_salt="s", priority=-2),
        engine.add_request([0, 31], thinks, "thinks", caller_weight=2.0),
        engine.add_prepared(
            engine.prepare([*trunk, 6, 9], thinks), "fork", continues=("long/0", len(trunk) + 1)
        ),
    ]
    for _ in range(9):
        deltas += engine.step()
    snapshots = [engine.snapshot(), engine.snapshot(with_tokens=True)]
    deltas += engine.abort("late")
    while engine.has_unfinished_requests:
        deltas += engine.step()
    engine.step()  # tells execution who has ended
    look = AnswerSoFar(engine.prepare(trunk, told), 1, 0, [6, 10], cache_salt=None)
    seen, tree = engine.inspector.logits(look), engine.inspector.prefix_tree()
    names = {*drafts.forgotten, *(output.request_id for output in outputs)}
    assert names_in(engine, names) <= {"DraftPolicy"}
    assert not caplog.records  # nothing has failed
    rows = [record.as_dict() for record in records]
    rows += [snapshot.fields_as_dict() for snapshot in snapshots]
    for row in rows:
        row.pop("engine", None)  # has the version
        if "device" in row:
            del row["device"]["name"]
    stages = [[it.name, it.kept_mass, it.candidates.token_ids.tolist()] for it in seen.stages()]
    look_at = {"drawn": seen.drawn, "cached": seen.cost.num_cached, "again": seen.cost.num_computed}
    look_at["seconds"] = seen.cost.seconds
    rows += [{"ended": drafts.forgotten}, {**look_at, "stages": stages}, *map(asdict, tree)]
    rows.append({"drafts": asdict(engine.speculation), "cache": asdict(engine.kv_cache_usage())})
    for output in outputs:
        output.ledger = None  # an event tells it
        own = [asdict(delta) for delta in deltas if delta.request_id == output.request_id]
        rows.append({"output": asdict(output), "deltas": own})
    compare(GOLDEN, [json.dumps(plain(row), separators=(",", ":")) for row in rows])
