"""Random numbers that are a function of where they are used, not of what was drawn before."""

import numpy as np


def uniform(seed: int, stream: int, position: int) -> float:
    """One number in [0, 1), always the same for the same arguments.

    The first word of the block that Philox4x64-10 (Salmon et al. 2011, "Parallel random numbers: as
    easy as 1, 2, 3") makes of the counter `position` under the key (`seed`, `stream`). A bijection
    of counters for every key, so positions never share a block.

    Args:
        seed: the request's, 0 <= seed < 2**64.
        stream: which of the request's answers, 0 <= stream < 2**64.
        position: index in its sequence, prompt included, of the token being sampled.
    """
    assert 0 <= seed < 2**64
    assert 0 <= stream < 2**64
    assert 0 <= position < 2**64
    # numpy adds 1 to the counter before each block. Python integers, because it would take a list
    # of words through float64 and lose the low bits of a large seed.
    philox = np.random.Philox(key=seed | stream << 64, counter=(position - 1) % 2**256)
    return (philox.random_raw() >> 11) * 2.0**-53
