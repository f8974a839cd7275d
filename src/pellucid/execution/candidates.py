"""The candidates of a draw: the tokens that may still be sampled, and their distribution."""

import math
from collections.abc import Iterable
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from pellucid.execution.odds import Odds

Logits: TypeAlias = npt.NDArray[np.floating[Any]]  # [V] as the model gave them
FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]


class NonFiniteLogitsError(ValueError):
    """The model gave a request logits that define no distribution."""


def check_finite(peak: float) -> None:
    """Checks the largest of a row's logits, in which NaN counts as larger than any number.

    Raises:
        NonFiniteLogitsError: a logit is NaN or +inf, or all of them are -inf.
    """
    if not math.isfinite(peak):
        raise NonFiniteLogitsError(
            f"the model's logits for this request define no distribution: the largest is {peak}"
        )


class Candidates(Struct, frozen=True, eq=False, dict=True):
    """N tokens with float64 logits; the softmax of these is their distribution.

    Each stage of sampling takes Candidates and returns new ones. Arrays are never written to.

    Attributes:
        token_ids: [N] ascending.
        logits: [N] finite; after the temperature, divided by it.
        scaled: the odds that the temperature gave; None before it, and where it is 1.
    """

    token_ids: IntArray
    logits: FloatArray
    scaled: Odds | None = None

    @staticmethod
    def of(logits: Logits) -> "Candidates":
        """The whole vocabulary [V], but for tokens that the model itself excludes with -inf.

        Raises:
            NonFiniteLogitsError: a logit is NaN or +inf, or all of them are -inf.
        """
        check_finite(logits.max())
        candidates = Candidates(np.arange(len(logits)), logits.astype(np.float64))
        excluded = logits.min() == -np.inf
        return candidates.keep(np.isfinite(candidates.logits)) if excluded else candidates

    def __len__(self) -> int:
        return len(self.token_ids)

    @cached_property
    def odds(self) -> Odds:
        """The odds that decide truncation and the draw; N >= 1."""
        return Odds.of(self.logits, 1.0) if self.scaled is None else self.scaled

    @property
    def probabilities(self) -> FloatArray:
        """[N], summing to 1; N >= 1."""
        return self._softmax[0]

    @property
    def logprobs(self) -> FloatArray:
        """[N], log of the probabilities, without their underflow; N >= 1."""
        logprobs: FloatArray = self.logits - self._peak
        logprobs -= self._softmax[1]
        return logprobs

    @property
    def entropy(self) -> float:
        """In nats, >= 0; N >= 1."""
        probabilities, log_sum = self._softmax
        # A sum of products, not a dot product: BLAS would wake its threads for it.
        return max(0.0, log_sum - float((probabilities * (self.logits - self._peak)).sum()))

    def logprob(self, token_id: int) -> float:
        """-inf if the token is not a candidate."""
        index = int(np.searchsorted(self.token_ids, token_id))
        found = index < len(self) and self.token_ids[index] == token_id
        return float(self.logits[index] - self._peak - self._softmax[1]) if found else -np.inf

    def mass(self, token_ids: IntArray) -> float:
        """Probability of some of the candidates together. All of `token_ids` must be candidates."""
        places = token_ids
        if self.token_ids[-1] != len(self) - 1:  # else each id is its own place
            places = np.searchsorted(self.token_ids, token_ids)
        return float(self.probabilities[places].sum())

    @cached_property
    def _peak(self) -> float:
        return float(self.logits.max())

    @cached_property
    def _softmax(self) -> tuple[FloatArray, float]:
        """Probabilities [N], and the log of the sum of exp(logit - peak)."""
        weights: FloatArray = self.logits - self._peak
        np.exp(weights, out=weights)
        total = weights.sum()
        weights /= total
        return weights, float(np.log(total))

    def keep(self, chosen: Mask | IntArray) -> "Candidates":
        """The candidates of a mask [N], or at ascending indices."""
        scaled = None if self.scaled is None else self.scaled.keep(chosen)
        return Candidates(self.token_ids[chosen], self.logits[chosen], scaled)

    def truncate(self, chosen: Mask) -> "Candidates":
        """The candidates of a mask [N]; their odds are those that they have among all candidates."""
        return Candidates(self.token_ids[chosen], self.logits[chosen], self.odds.keep(chosen))

    def indices(self, token_ids: Iterable[int]) -> IntArray:
        """Where `token_ids` are, ascending and each once; those that are no candidates are skipped."""
        wanted = np.array(sorted(set(token_ids)), dtype=np.int64)
        places: IntArray = np.searchsorted(self.token_ids, wanted)
        inside = places < len(self)
        places, wanted = places[inside], wanted[inside]
        found: IntArray = places[self.token_ids[places] == wanted]
        return found
