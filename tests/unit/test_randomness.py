import itertools
import random

import numpy as np
from scipy import stats

from pellucid.execution.randomness import uniform

MASK = 2**64 - 1
Words = tuple[int, ...]


def philox(counter: Words, key: Words) -> Words:
    """Philox4x64-10 as Salmon et al. 2011 write it, one 256-bit block."""
    for _ in range(10):
        first, second = 0xD2E7470EE14C6C93 * counter[0], 0xCA5A826395121157 * counter[2]
        counter = (
            (second >> 64) ^ counter[1] ^ key[0],
            second & MASK,
            (first >> 64) ^ counter[3] ^ key[1],
            first & MASK,
        )
        key = ((key[0] + 0x9E3779B97F4A7C15) & MASK, (key[1] + 0xBB67AE8584CAA73B) & MASK)
    return counter


def test_the_reference_gives_the_published_vectors() -> None:
    # kat_vectors of Random123, the authors' own library
    assert philox((0,) * 4, (0,) * 2) == (
        0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B,
    )  # fmt: skip
    assert philox((MASK,) * 4, (MASK,) * 2) == (
        0x87B092C3013FE90B, 0x438C3C67BE8D0224, 0x9CC7D7C69CD777B6, 0xA09CAEBF594F0BA0,
    )  # fmt: skip


def test_uniform_is_the_first_word_of_the_block() -> None:
    rng = random.Random(0)
    corners = list(itertools.product((0, 1, 2**63 + 1, MASK), repeat=3))
    drawn = [tuple(rng.getrandbits(64) for _ in range(3)) for _ in range(200)]
    for seed, stream, position in corners + drawn:
        word = philox((position, 0, 0, 0), (seed, stream))[0]
        assert uniform(seed, stream, position) == (word >> 11) / 2**53


def test_order_and_repetition_of_calls_change_nothing() -> None:
    places = list(itertools.product(range(5), range(3), range(40)))
    forwards = {place: uniform(*place) for place in places}
    random.Random(1).shuffle(places)
    assert {place: uniform(*place) for place in places} == forwards


def test_no_two_places_share_a_number() -> None:
    places = list(itertools.product(range(20), range(20), range(20)))
    assert len({uniform(*place) for place in places}) == len(places)


def test_numbers_are_uniform_along_seeds_streams_and_positions() -> None:
    for along in range(3):
        numbers = [uniform(*np.roll([i, 0, 0], along).tolist()) for i in range(10_000)]
        assert min(numbers) >= 0
        assert max(numbers) < 1
        assert stats.kstest(numbers, "uniform").pvalue > 1e-3


def test_neighbouring_positions_are_independent() -> None:
    numbers = np.array([uniform(7, 0, position) for position in range(10_001)])
    pairs, *_ = np.histogram2d(numbers[:-1], numbers[1:], bins=8, range=[[0, 1], [0, 1]])
    assert stats.chisquare(pairs.ravel()).pvalue > 1e-3
