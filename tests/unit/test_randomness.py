"""The noise of tokens: the published vectors of Philox, and its distribution."""

import hashlib
import itertools
import math
import random

import numpy as np
import pytest

from pellucid.execution.odds import Odds
from pellucid.execution.randomness import exponential_noise, minus_log, philox

MASK = 2**32 - 1

# kat_vectors of Random123, the authors' own library: counter, key, words
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((MASK,) * 4, (MASK,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_philox_gives_the_published_vectors(counter: tuple, key: tuple, words: tuple) -> None:
    counters = np.array([counter, counter], np.uint64).T
    assert philox(key, counters).T.tolist() == [list(words)] * 2


def noise(seed: int, stream: int, position: int, token_id: int) -> float:
    """Of one token, as docs/sampling.md has it."""
    key = (seed & MASK, seed >> 32)

    def words(first: int, last: int) -> list[int]:
        counter = np.array([[first], [position], [stream], [last]], np.uint64)
        return [int(word) for (word,) in philox(key, counter)]

    shared = words(token_id // 128 * 16 + token_id % 16, 0)[token_id // 16 % 4]
    upper = shared >> 16 if token_id // 64 % 2 else shared & 0xFFFF
    own = words(token_id, 1)
    bits = upper << 36 | own[0] << 4 | own[1] >> 28
    return -math.log(1 - (bits + 0.5) / 2**52)


def test_noise_is_the_documented_one() -> None:
    rng = random.Random(0)
    places = list(itertools.product((0, 2**63 + 1, 2**64 - 1), (0, 5, MASK), (0, 1, MASK)))
    places += [(rng.getrandbits(64), rng.getrandbits(32), rng.getrandbits(32)) for _ in range(20)]
    for place in places:
        token_ids = np.array([0, 15, 16, 63, 64, 127, 128, rng.getrandbits(18)])
        wanted = [noise(*place, token_id) for token_id in token_ids.tolist()]
        assert exponential_noise(*place, token_ids).tolist() == pytest.approx(
            wanted, rel=1e-14, abs=0
        )


def test_seeds_keep_their_answers() -> None:
    """Noise, weights and masses have these bits, on every machine and in every version."""
    token_ids = np.arange(5000)
    numbers = exponential_noise(2**63 + 5, 3, 700, token_ids)
    odds = Odds.of(numbers, 0.7)
    bits = b"".join(each.tobytes() for each in (numbers, odds.weights, odds.masses))
    assert hashlib.sha256(bits).hexdigest().startswith("5271977171ed62cf")


def test_who_asks_for_other_tokens_or_positions_changes_nothing() -> None:
    token_ids = np.arange(300)
    whole = exponential_noise(7, 2, np.arange(9)[:, None], token_ids)
    assert (whole[4] == exponential_noise(7, 2, 4, token_ids)).all()
    chosen = np.array([299, 3, 128])
    assert (whole[4, chosen] == exponential_noise(7, 2, 4, chosen)).all()


def test_minus_log_is_accurate_and_strictly_decreasing() -> None:
    u = np.sort(np.concatenate((np.random.default_rng(0).random(50_000), 2.0 ** -np.arange(1, 54))))
    for given in (u, 1 - u):
        given = given[(given > 0) & (given < 1)]
        expected = -np.log(given)
        assert (np.abs(minus_log(given) - expected) <= 1e-15 * expected).all()
    assert (np.diff(minus_log(np.linspace(1e-9, 1 - 1e-9, 100_000))) < 0).all()
    assert minus_log(np.array([1 - 2.0**-53]))[0] == pytest.approx(2.0**-53, rel=1e-12, abs=0)
