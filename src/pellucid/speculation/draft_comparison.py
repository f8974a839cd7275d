"""Drafts compared with the model: their probabilities under both distributions, and Leviathan's acceptance rule.

Computed only if a subscriber watches: it takes a pass over the logits of each draft.
"""

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

import numpy as np
from msgspec import Struct

from pellucid.execution.candidates import Candidates


class DraftComparison(Struct, frozen=True):
    """N drafts of one request in one step, in order.

    Attributes:
        by_target: [N] probability of each draft by the model, given the drafts before it.
        by_proposer: [N] probability of each draft by its proposer.
        overlaps: [N] sum over all tokens of min(p, q), with p of the model and q of the proposer: the
            probability that rejection sampling accepts a token drawn from q (Leviathan et al. 2023).
    """

    by_target: tuple[float, ...]
    by_proposer: tuple[float, ...]
    overlaps: tuple[float, ...]

    @property
    def num_expected(self) -> float:
        """How many of these drafts rejection sampling accepts, in expectation: it stops at the first one that
        it rejects."""
        return float(sum(accumulate(self.overlaps, mul)))


def compare_drafts(
    draft_token_ids: Sequence[int],
    targets: Sequence[Candidates],
    proposed: Sequence[Candidates],
) -> DraftComparison:
    """Compares as many drafts as there are distributions of the model.

    Args:
        draft_token_ids: in order.
        targets: for each draft, the distribution that the model draws from there.
        proposed: for each draft, the distribution that it was drawn from; empty if the proposer has none,
            and gives each draft the probability 1.
    """
    by_target, by_proposer, overlaps = [], [], []
    for number, (token_id, target) in enumerate(zip(draft_token_ids, targets, strict=False)):
        p = _probability(target, token_id)
        by_target.append(p)
        by_proposer.append(_probability(proposed[number], token_id) if proposed else 1.0)
        overlaps.append(_overlap(target, proposed[number]) if proposed else p)
    return DraftComparison(tuple(by_target), tuple(by_proposer), tuple(overlaps))


def _probability(candidates: Candidates, token_id: int) -> float:
    return float(np.exp(candidates.logprob(token_id)))


def _overlap(target: Candidates, proposed: Candidates) -> float:
    _, own, others = np.intersect1d(
        target.token_ids, proposed.token_ids, assume_unique=True, return_indices=True
    )
    common = np.minimum(target.probabilities[own], proposed.probabilities[others])
    return min(1.0, float(common.sum()))
