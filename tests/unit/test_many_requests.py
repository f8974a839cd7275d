"""Thousands of requests: memory stays constant, nothing is left behind, no step exceeds its budget.

`--requests 100000` makes them more.
"""

import gc
import random
import sys
import tracemalloc
from collections.abc import Iterator
from itertools import cycle, islice

import pytest

from pellucid.engine import LLMEngine
from pellucid.inputs.beam_search_params import BeamSearchParams
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.observing.events import Level
from support.fake_model import fake_engine
from support.kept_names import names_in

NUM_UNFINISHED = 150  # kept in the engine: more than can run
BUDGET = 256

PARAMS = [
    *[SamplingParams(max_tokens=1, temperature=0)] * 4,
    SamplingParams(max_tokens=2, temperature=0),
    SamplingParams(max_tokens=3, temperature=0, stop=["a"]),
    SamplingParams(max_tokens=2, temperature=0, stop_token_ids=[3], max_time=1e9),
]
LONG = SamplingParams(max_tokens=24, seed=1, n=3)  # grows: others have to make room for it


def arrivals(rng: random.Random) -> Iterator[tuple[list[int], SamplingParams]]:
    """Short requests, most of them with a beginning that others have too; never the same again."""
    trunks = [[rng.randrange(1, 32) for _ in range(48)] for _ in range(20)]
    while True:
        trunk = rng.choice(trunks)[: rng.choice([0, 14, 16, 30, 33])]
        tail = [rng.randrange(1, 32) for _ in range(rng.randrange(1, 6))]
        yield trunk + tail, rng.choice(PARAMS) if rng.random() < 0.99 else LONG


class Budgeted:
    """Counts, and looks at every step before it is computed."""

    def __init__(self, engine: LLMEngine) -> None:
        self.num_steps = self.num_preempted = 0
        schedule = engine.scheduler.schedule

        def watched(now):
            output = schedule(now)
            assert output.num_tokens <= BUDGET
            assert len(output.scheduled) <= engine.scheduler.max_num_seqs
            assert output.scheduled or not engine.scheduler.has_unfinished_requests
            self.num_steps += 1
            self.num_preempted += len(output.preempted)
            return output

        engine.scheduler.schedule = watched


def serve(
    engine: LLMEngine, requests: Iterator[tuple[list[int], SamplingParams]], count: int
) -> None:
    """Adds `count` requests as places become free; each 100th is aborted soon afterwards."""
    unfinished, num_added = 0, 0
    while num_added < count or unfinished:
        while num_added < count and unfinished < NUM_UNFINISHED:
            output = engine.add_request(*next(requests))
            num_added += 1
            unfinished += 1
            if num_added % 100 == 0:
                engine.abort(output.request_id)
                unfinished -= 1
        finished = {d.request_id for d in engine.step() if d.finish_reason is not None}
        unfinished -= sum(
            request_id not in engine.unfinished_request_ids for request_id in finished
        )


def num_objects() -> int:
    gc.collect()
    return sys.getallocatedblocks()


def test_many_requests(request: pytest.FixtureRequest) -> None:
    num_requests = request.config.getoption("requests")
    engine = fake_engine(
        num_kv_blocks=16, block_size=16, max_num_seqs=64, max_num_batched_tokens=BUDGET
    )
    watched = Budgeted(engine)
    requests = arrivals(random.Random(0))
    warm_up, traced = num_requests // 5, num_requests // 3

    serve(engine, requests, warm_up)
    before = num_objects()
    serve(engine, requests, num_requests - warm_up - traced)
    # One object kept per request would be thousands more.
    assert num_objects() - before < 1_000

    # Objects that are large: bytes, while they are few enough to trace each.
    tracemalloc.start()
    try:
        serve(engine, requests, traced // 2)
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        serve(engine, requests, traced // 2)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - before < 100_000
    finally:
        tracemalloc.stop()

    assert watched.num_steps > num_requests // engine.scheduler.max_num_seqs
    assert watched.num_preempted > num_requests // 10_000
    assert len(engine.last_steps) == 32
    assert not engine.has_unfinished_requests
    assert not engine.unfinished_request_ids and not engine._completions
    pool = engine.scheduler.kv_cache_manager.block_pool
    assert pool.num_free_blocks == pool.num_blocks
    engine.scheduler.kv_cache_manager.check_integrity()


@pytest.mark.parametrize("speculation", ["ngram", "draft"])
def test_nothing_is_kept_about_requests_that_have_ended(speculation: str) -> None:
    engine = fake_engine(
        num_kv_blocks=20, block_size=16, max_num_seqs=6, swap_space=200, speculation=speculation
    )
    engine.events.subscribe(lambda record: None, Level.TOKEN)
    beams = BeamSearchParams(beam_width=3, max_tokens=9)
    params = [*PARAMS, LONG, beams, SamplingParams(max_tokens=9, logprobs=1, best_of=2, seed=1)]
    prompts = [prompt for prompt, _ in islice(arrivals(random.Random(1)), 16)]
    outputs = [
        engine.add_request(prompt, own, caller="ab"[index % 2])
        for index, (prompt, own) in enumerate(zip(prompts, cycle(params), strict=False))
    ]
    engine.step()
    names = {output.request_id for output in outputs}
    names |= {f"{name}/{index}" for name in names for index in range(3)}
    assert len(names_in(engine, names)) > 8
    for output in outputs[::5]:
        engine.abort(output.request_id)
    while engine.has_unfinished_requests:
        engine.step()
    engine.step()  # tells execution who has ended
    assert names_in(engine, names) <= {"DraftPolicy"}  # how good drafts were, of some requests
