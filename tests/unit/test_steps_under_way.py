"""Several steps under way at the same time, on machines that compute them in whatever order chance allows."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import count, islice
from typing import Any

import pytest

from pellucid.engine import LLMEngine
from pellucid.engine.shared_engine import SharedEngine
from pellucid.inputs.beam_search_params import BeamSearchParams
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.outputs import CompletionDelta
from pellucid.scheduling.scheduler_output import BeamCandidate
from pellucid.speculation.proposers.proposer import Proposer
from support.courses import Courses
from support.fake_machines import DecoderOnMachines
from support.fake_model import VOCAB_SIZE, FakeClock, FakeTokenizer, fake_engine, step_without_moves
from support.traces import TraceSpace, check_trace, make_trace

SPACE = TraceSpace(
    vocab_size=VOCAB_SIZE,
    stops=["a", "q", "xy", "b!", *FakeTokenizer.alphabet[20:]],
    block_bytes=32,
    knobs={"speculation": ["off", "auto", "ngram"], "kv_cache_dtype": ["bf16", "bf16", "int4"]},
)
COURSES = Courses("under_way_courses")
PARAMS = SamplingParams(temperature=1.0, seed=1, max_tokens=20, ignore_eos=True)


def engine_on(num_machines: int, seed: int = 0, **knobs: object) -> LLMEngine:
    decoder = DecoderOnMachines(num_machines, seed)
    return fake_engine(decoder=decoder, backend=decoder.backend, **knobs)


def alone(prompt: list[int]) -> list[int]:
    """What a request gets on an engine of its own, on one machine."""
    engine = fake_engine()
    output = engine.add_request(prompt, PARAMS)
    while not output.finished:
        engine.step()
    return output.outputs[0].token_ids


class Reader:
    """The caller of a request, and what it was given."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []

    def receive(self, delta: CompletionDelta) -> None:
        self.token_ids += delta.token_ids


def engine_of_trace(
    decoder: DecoderOnMachines,
    knobs: Mapping[str, object],
    clock: FakeClock,
    proposer: Proposer | None,
) -> LLMEngine:
    return fake_engine(
        clock=clock, proposer=proposer, decoder=decoder, backend=decoder.backend, **knobs
    )


@pytest.mark.traces(30)
@pytest.mark.parametrize("part", range(30))
def test_every_request_gets_what_it_gets_alone(trace_seeds: Iterable[int], part: int) -> None:
    for seed in islice(trace_seeds, part, None, 30):
        decoder = DecoderOnMachines(2 + seed // 2 % 2, seed)
        check_trace(make_trace(seed, SPACE), partial(engine_of_trace, decoder), COURSES)
        assert decoder.most_under_way <= decoder.num_machines


def test_the_traces_are_worth_running() -> None:
    for what in ("cached", "preempted", "abort", "right drafts"):
        assert COURSES.total(what) > 0, what


@pytest.mark.parametrize("num_machines", [2, 3])
def test_as_many_steps_as_machines_are_under_way(num_machines: int) -> None:
    engine = engine_on(num_machines)
    for token_id in range(1, 7):
        engine.add_request([token_id], PARAMS)
    for _ in range(9):
        engine.step()
    assert engine.model_runner.decoder.most_under_way == num_machines


def test_who_gives_up_takes_nothing_from_others() -> None:
    """An abort finishes the steps under way: their tokens go to their readers."""
    shared = SharedEngine(engine_on(2))
    readers = [Reader(), Reader()]
    with shared:
        prompt = shared.engine.encode([5])
        outputs = [shared.add(each, prompt, PARAMS) for each in readers]
        for _ in range(4):
            shared.step()
        read = [*readers[0].token_ids]
        shared.abort(outputs[0].request_id)
        assert readers[0].token_ids == read != []
        assert outputs[0].outputs[0].finish_reason == "abort"
        shared.engine.scheduler.check_integrity()
        while not outputs[1].finished:
            shared.step()
    assert readers[1].token_ids == outputs[1].outputs[0].token_ids == alone([5])


@pytest.mark.parametrize("failing", range(4, 12))
@pytest.mark.parametrize("knobs", [{"max_num_batched_tokens": 2}, {"max_num_seqs": 3}])
def test_beams_end_together_when_one_fails(
    knobs: dict[str, object], failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However they are divided among steps, none of them is under way then. Others go on."""
    engine = engine_on(2, **knobs)
    beam_candidates, calls = engine.model_runner.sampler.beam_candidates, count()

    def fail_once(*arguments: Any) -> tuple[BeamCandidate, ...]:
        if next(calls) == failing:
            raise ValueError("injected")
        return beam_candidates(*arguments)

    monkeypatch.setattr(engine.model_runner.sampler, "beam_candidates", fail_once)
    few = replace(PARAMS, max_tokens=6)
    others = [
        engine.add_request([token_id], params) for token_id, params in ((7, PARAMS), (5, few))
    ]
    search = BeamSearchParams(beam_width=4, max_tokens=9, ignore_eos=True)
    beams = engine.add_request([6], search)
    while engine.has_unfinished_requests:
        engine.step()
        engine.scheduler.check_integrity()
    assert {each.stop_reason for each in beams.outputs} == {"injected"}
    assert others[0].outputs[0].token_ids == alone([7])
    assert others[1].outputs[0].token_ids == alone([5])[:6]


def test_blocks_that_cannot_be_moved_behind_a_step_that_computes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody frees the blocks that the only request of that step needs."""
    engine = engine_on(2, context_length=48, num_kv_blocks=3, block_size=16)
    monkeypatch.setattr(engine.scheduler._preemption, "victims_to_admit", lambda *_: [])
    short = engine.add_request([1], replace(PARAMS, max_tokens=3))
    long = engine.add_request([2] * 30, PARAMS)
    while not short.finished:
        engine.step()
    refused = engine.add_request([3] * 30, PARAMS)
    engine.step()
    step_without_moves(engine)
    engine.scheduler.check_integrity()
    assert long.outputs[0].stop_reason == "RuntimeError: poisoned"
    assert "fewer blocks are free" in str(refused.outputs[0].stop_reason)
    again = engine.add_request([5], PARAMS)
    while engine.has_unfinished_requests:
        engine.step()
    assert again.outputs[0].token_ids == alone([5])


@pytest.mark.parametrize("make_engine", [fake_engine, lambda: engine_on(2)])
def test_an_interrupted_step_is_computed_again(
    make_engine: Callable[[], LLMEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    outputs = [engine.add_request([token_id], PARAMS) for token_id in (5, 6)]
    for _ in range(4):
        engine.step()
    with monkeypatch.context() as patched:
        patched.setattr(engine.model_runner, "execute", interrupt)
        with pytest.raises(KeyboardInterrupt):
            engine.step()
    while engine.has_unfinished_requests:
        engine.step()
    assert [each.outputs[0].token_ids for each in outputs] == [alone([5]), alone([6])]


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt
