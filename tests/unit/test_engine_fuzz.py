"""Random traces on the fake model: the same completions, whatever else the engine computes."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from typing import Any

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
OPEN_KEYS = replace(SPACE, knobs={**SPACE.knobs, "kv_cache_dtype": ["int4"]})
COURSES = Courses("engine_courses")
OPEN_KEY_COURSES = Courses("open_key_courses")


def check(seeds: Iterable[int], space: TraceSpace = SPACE, **options: Any) -> Counter[str]:
    counts: Counter[str] = Counter()
    for seed in seeds:
        counts += check_trace(
            make_trace(seed, space),
            lambda knobs, clock, proposer: fake_engine(clock=clock, proposer=proposer, **knobs),
            **options,
        )
    print(dict(counts))
    return counts


def test_the_traces_are_worth_running() -> None:
    for what in ("cached", "preempted", "stop", "length", "abort", "error", "failed transfers"):
        assert COURSES.total(what) > 4, what
    for what in ("preempted", "right drafts", "copied"):
        assert OPEN_KEY_COURSES.total(what) > 4, what


@pytest.mark.traces(60)
@pytest.mark.parametrize("part", range(60))
def test_every_request_gets_what_it_gets_alone(trace_seeds: Iterable[int], part: int) -> None:
    check(islice(trace_seeds, part, None, 60), courses=COURSES)


@pytest.mark.traces(12)
@pytest.mark.parametrize("part", range(3))
def test_requests_that_other_engines_have_begun(trace_seeds: Iterable[int], part: int) -> None:
    counts = check(islice(trace_seeds, part, None, 3), resumes=True)
    assert counts["traces"] < 4 or counts["resumed"] > 2, counts


@pytest.mark.traces(15)
@pytest.mark.parametrize("part", range(15))
def test_keys_that_are_open_until_their_group_is_complete(
    trace_seeds: Iterable[int], part: int
) -> None:
    check(islice(trace_seeds, part, None, 15), OPEN_KEYS, courses=OPEN_KEY_COURSES)
