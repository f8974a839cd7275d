"""Beam search as an algorithm: which sequences go on, which are finished, when it is over.

It knows tokens and log-probabilities only. Agrees with `GenerationMixin._beam_search` of
transformers 5, for one prompt at a time.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from pellucid.beam_search_params import BeamSearchParams
from pellucid.scheduling.request import FinishReason


@dataclass(frozen=True, slots=True)
class BeamCandidate:
    """A token that may follow a beam.

    Attributes:
        logprob: in the model's own distribution.
        processed_logprob: the same after the request's masks and penalties, which transformers
            applies to log-probabilities and does not normalise again. What the search adds up.
    """

    token_id: int
    logprob: float
    processed_logprob: float


@dataclass(frozen=True, slots=True)
class Beam:
    """A sequence that goes on.

    Attributes:
        token_ids: its output so far.
        cumulative_logprob: sum of the model's own log-probabilities of these.
        cumulative_score: sum of their processed log-probabilities.
        parent: which of the live beams before it extends.
    """

    token_ids: tuple[int, ...] = ()
    cumulative_logprob: float = 0.0
    cumulative_score: float = 0.0
    parent: int = 0

    def extended(self, candidate: BeamCandidate, parent: int) -> "Beam":
        """This beam, the `parent`-th one, and one token more."""
        return Beam(
            (*self.token_ids, candidate.token_id),
            self.cumulative_logprob + candidate.logprob,
            self.cumulative_score + candidate.processed_logprob,
            parent,
        )


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A finished sequence. `score` is the sum of its processed log-probabilities over its length to
    the power of the length penalty."""

    token_ids: tuple[int, ...]
    cumulative_logprob: float
    score: float
    finish_reason: FinishReason
    stop_reason: int | str


class BeamSearch:
    """One search.

    Args:
        params: width, penalty and when to stop.
        max_tokens: of params and of the context, the smaller.
        stop_token_ids: tokens that end a sequence.
    """

    def __init__(
        self, params: BeamSearchParams, max_tokens: int, stop_token_ids: frozenset[int]
    ) -> None:
        self.params = params
        self.max_tokens = max_tokens
        self.stop_token_ids = stop_token_ids
        self.num_candidates = params.num_candidates(len(stop_token_ids))
        self.live: tuple[Beam, ...] = (Beam(),)  # best first; after k steps all have k tokens
        self.finished: tuple[Hypothesis, ...] = ()  # best first, at most beam_width

    @property
    def done(self) -> bool:
        """Whether nothing may be finished any more."""
        if not self.live:
            return True
        if len(self.finished) < self.params.beam_width:
            return False
        return self.params.early_stopping is True or not self._may_improve()

    def advance(self, candidates: Sequence[Sequence[BeamCandidate]]) -> None:
        """Extends every live beam by one token.

        Args:
            candidates: for each live beam, in their order, its `num_candidates` best ones (or all
                there are) by processed log-probability, best first.
        """
        assert not self.done and len(candidates) == len(self.live)
        # Of equals the one of the better beam comes first, then the better candidate.
        ranked = heapq.merge(
            *map(self._extensions, range(len(self.live)), candidates),
            key=lambda beam: -beam.cumulative_score,
        )
        live: list[Beam] = []
        finished = list(self.finished)
        for rank, beam in enumerate(islice(ranked, self.num_candidates)):
            if (end := self._end(beam)) is None:
                live.append(beam)
            elif rank < self.params.beam_width:
                # The others were looked at only so that enough beams go on.
                finished.append(self._hypothesis(beam, *end))
        self.live = tuple(live[: self.params.beam_width])
        finished.sort(key=lambda hypothesis: -hypothesis.score)
        self.finished = tuple(finished[: self.params.beam_width])

    def _extensions(self, parent: int, candidates: Sequence[BeamCandidate]) -> Iterator[Beam]:
        return (self.live[parent].extended(candidate, parent) for candidate in candidates)

    def _end(self, beam: Beam) -> tuple[FinishReason, int | str] | None:
        """Why a beam ends with its last token, if it does."""
        if beam.token_ids[-1] in self.stop_token_ids:
            return FinishReason.STOP, beam.token_ids[-1]
        if len(beam.token_ids) < self.max_tokens:
            return None
        limit = "max_tokens" if self.max_tokens == self.params.max_tokens else "context_length"
        return FinishReason.LENGTH, limit

    def _hypothesis(
        self, beam: Beam, finish_reason: FinishReason, stop_reason: int | str
    ) -> Hypothesis:
        score = self._score(beam, len(beam.token_ids))
        return Hypothesis(
            beam.token_ids, beam.cumulative_logprob, score, finish_reason, stop_reason
        )

    def _score(self, beam: Beam, length: int) -> float:
        return float(beam.cumulative_score / length**self.params.length_penalty)

    def _may_improve(self) -> bool:
        """Whether the best live beam could still beat the worst finished one: estimated at its
        present length, or for "never" at the length that suits it best."""
        best = self.live[0]
        length = len(best.token_ids)
        if self.params.early_stopping == "never" and self.params.length_penalty > 0:
            length = self.max_tokens
        return self._score(best, length) > self.finished[-1].score
