"""Times between tokens are those that a time for each request would give."""

import random

from pellucid.observing.token_gaps import TokenGaps


def test_gaps_are_those_between_the_tokens_of_each_request() -> None:
    rng, gaps, last = random.Random(1), TokenGaps(), dict[str, int]()
    ids, now = ("a", "b"), 0
    for _ in range(400):
        now += rng.randrange(1, 9)
        if rng.random() < 0.3:
            ids = tuple(rng.sample("abcd", rng.randrange(4)))
        known = [(now - last[each]) * 1_000_000 if each in last else None for each in ids]
        assert gaps.advance(ids, float(now)) == known
        last.update(dict.fromkeys(ids, now))
        if rng.random() < 0.2:
            ended = rng.choice("abcd")
            gaps.forget(ended)
            last.pop(ended, None)
    gaps.clear()
    assert gaps.advance(("a",), float(now)) == [None]
