"""A known run: every event of it, with the times of a clock that ticks at each reading, as golden lines."""

import json
from pathlib import Path

from pellucid.engine.engine_events import Ceilings
from pellucid.inputs.beam_search_params import BeamSearchParams
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.observing.events import EventRecord, Level
from support.courses import plain
from support.fake_model import fake_engine
from support.golden_files import compare
from support.ticking_clock import TickingClock

GOLDEN = Path(__file__).parents[1] / "golden" / "engine_run.txt"


def test_the_events_of_a_known_run() -> None:
    engine = fake_engine(
        clock=TickingClock(),
        num_kv_blocks=7,
        block_size=16,
        max_model_len=80,
        max_num_seqs=3,
        max_num_batched_tokens=40,
        swap_space=2 * 16,
        num_threads=1,
        ceilings=Ceilings(1e6, 4e6),
    )
    records: list[EventRecord] = []
    engine.events.subscribe(records.append, Level.TOKEN)
    trunk = [1 + index % 30 for index in range(33)]
    drawn = SamplingParams(temperature=0.8, top_k=5, seed=3, max_tokens=3, n=2)
    greedy = SamplingParams(temperature=0, max_tokens=14, ignore_eos=True, logprobs=1)
    engine.add_request(trunk, greedy, "long")
    engine.add_request([2, 3], drawn, "pair")
    engine.step()
    engine.add_request([*trunk, 7], SamplingParams(temperature=0, max_tokens=20), "again")
    engine.add_request([9], BeamSearchParams(beam_width=2, max_tokens=3), "beams", priority=-1)
    engine.add_request([4] * 40, SamplingParams(max_tokens=30), "late", caller="a")
    for _ in range(9):
        engine.step()
    snapshots = [engine.snapshot(), engine.snapshot(with_tokens=True)]
    engine.abort("late")
    while engine.has_unfinished_requests:
        engine.step()
    rows = [record.as_dict() for record in records]
    rows += [snapshot.fields_as_dict() for snapshot in snapshots]
    for row in rows:
        for field in ("obs_frac", "boot_id", "t0_unix_us", "engine"):  # other ones at each run
            row.pop(field, None)
        if "device" in row:
            del row["device"]["name"]
    compare(GOLDEN, [json.dumps(plain(row), separators=(",", ":")) for row in rows])
