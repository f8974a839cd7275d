"""Random traces on the fake model: the same completions, whatever else the engine computes."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pytest

from support.courses import Courses
from support.fake_model import VOCAB_SIZE, FakeTokenizer, fake_engine
from support.traces import TraceSpace, check_trace, make_trace

SPACE = TraceSpace(
    vocab_size=VOCAB_SIZE,
    stops=["a", "q", "xy", "b!", *FakeTokenizer.alphabet[20:]],
    block_bytes=32,
    knobs={"speculation": ["off", "auto", "ngram", "draft", "draft"]},  # alone: off
)


@pytest.mark.traces(60)
def test_every_request_gets_what_it_gets_alone(trace_seeds: Iterable[int]) -> None:
    counts: Counter[str] = Counter()
    courses = Courses("engine_courses")
    for seed in trace_seeds:
        counts += check_trace(
            make_trace(seed, SPACE),
            lambda knobs, clock, proposer: fake_engine(clock=clock, proposer=proposer, **knobs),
            courses,
        )
    print(dict(counts))
    if counts["traces"] >= 60:  # the traces are worth running
        for what in ("cached", "preempted", "stop", "length", "abort", "error", "failed transfers"):
            assert counts[what] > 5, counts


@pytest.mark.traces(12)
def test_requests_that_other_engines_have_begun(trace_seeds: Iterable[int]) -> None:
    counts: Counter[str] = Counter()
    for seed in trace_seeds:
        counts += check_trace(
            make_trace(seed, SPACE),
            lambda knobs, clock, proposer: fake_engine(clock=clock, proposer=proposer, **knobs),
            resumes=True,
        )
    print(dict(counts))
    if counts["traces"] >= 12:
        assert counts["resumed"] > 12 and counts["preempted"] > 5, counts


@pytest.mark.traces(15)
def test_keys_that_are_open_until_their_group_is_complete(trace_seeds: Iterable[int]) -> None:
    counts: Counter[str] = Counter()
    space = replace(SPACE, knobs={**SPACE.knobs, "kv_cache_dtype": ["int4"]})
    for seed in trace_seeds:
        counts += check_trace(
            make_trace(seed, space),
            lambda knobs, clock, proposer: fake_engine(clock=clock, proposer=proposer, **knobs),
        )
    print(dict(counts))
    if counts["traces"] >= 15:
        for what in ("cached", "preempted", "right drafts", "copied"):
            assert counts[what] > 3, counts
