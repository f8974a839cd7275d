"""Row invariance, op by op: a row has the same bits in any batch."""

import numpy as np


def same_in_any_step(op, x, rng):
    """Whether op(x) [T, ...] equals what op makes of the rows in random order and random steps."""
    whole = op(x)
    assert whole.flags.c_contiguous  # or sums over it would depend on the step's shape
    order = rng.permutation(len(x))
    cuts = np.sort(rng.integers(0, len(x) + 1, size=rng.integers(0, 6)))
    pieces = [op(x[rows]) for rows in np.split(order, cuts)]
    return (np.concatenate(pieces) == whole[order]).all()
