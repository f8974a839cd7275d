"""Beam search: which beams continue, which hypotheses are finished, and which request computes which beam.

`BeamSearch` is the algorithm and knows tokens and log-probabilities only. It agrees with
`GenerationMixin._beam_search` of transformers 5, for one prompt at a time.
"""

import heapq
from collections.abc import Iterator, Sequence
from itertools import islice

from msgspec import Struct

from pellucid.inputs.beam_search_params import BeamSearchParams
from pellucid.scheduling.request import EndRule, FinishReason, Request, RequestStatus
from pellucid.scheduling.scheduler_output import BeamCandidate


class Beam(Struct, frozen=True):
    """A text that the search continues.

    Attributes:
        token_ids: its output so far.
        cumulative_logprob: sum of the model's own log-probabilities of these.
        cumulative_score: sum of their processed log-probabilities.
        parent: index of the live beam that it extends.
    """

    token_ids: tuple[int, ...] = ()
    cumulative_logprob: float = 0.0
    cumulative_score: float = 0.0
    parent: int = 0

    def extended(self, candidate: BeamCandidate, parent: int) -> "Beam":
        """This beam, which has the index `parent`, extended by one token."""
        return Beam(
            (*self.token_ids, candidate.token_id),
            self.cumulative_logprob + candidate.logprob,
            self.cumulative_score + candidate.processed_logprob,
            parent,
        )


class Hypothesis(Struct, frozen=True):
    """A finished beam. `score` is the sum of its processed log-probabilities, divided by its length to
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
        end_rule: says which token ends a beam.
    """

    def __init__(self, params: BeamSearchParams, end_rule: EndRule) -> None:
        self.params = params
        self.end_rule = end_rule
        self.num_candidates = params.num_candidates(len(end_rule.stop_token_ids))
        self.live: tuple[Beam, ...] = (Beam(),)  # best first; after k steps all have k tokens
        self.finished: tuple[Hypothesis, ...] = ()  # best first, at most beam_width

    @property
    def done(self) -> bool:
        """Whether the search has ended: no further hypothesis can be finished."""
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
        # Among equals, the extension of the better beam comes first, then the better candidate.
        ranked = heapq.merge(
            *map(self._extensions, range(len(self.live)), candidates),
            key=lambda beam: -beam.cumulative_score,
        )
        live: list[Beam] = []
        finished = list(self.finished)
        for rank, beam in enumerate(islice(ranked, self.num_candidates)):
            end = self.end_rule.end_after(beam.token_ids[-1], len(beam.token_ids))
            if end is None:
                live.append(beam)
            elif rank < self.params.beam_width:
                # The others were looked at only so that enough beams go on.
                finished.append(self._hypothesis(beam, *end))
        self.live = tuple(live[: self.params.beam_width])
        finished.sort(key=lambda hypothesis: -hypothesis.score)
        self.finished = tuple(finished[: self.params.beam_width])

    def _extensions(self, parent: int, candidates: Sequence[BeamCandidate]) -> Iterator[Beam]:
        return (self.live[parent].extended(candidate, parent) for candidate in candidates)

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
            length = self.end_rule.max_tokens
        return self._score(best, length) > self.finished[-1].score


class Reassignment(Struct, frozen=True):
    """Arguments of `Scheduler.reassign`."""

    requests: tuple[Request, ...]
    parents: tuple[int, ...]
    token_ids: tuple[int, ...]


class BeamGroup:
    """A search and its requests, one for each beam that may be live.

    The first request computes the prompt. A beam with one extension stays with its request, so that no blocks
    change owners. Further extensions of a beam are forked to requests whose own beams have ended.

    Args:
        search: at its beginning.
        requests: beam_width requests with the same prompt, all of them beams.
    """

    def __init__(self, search: BeamSearch, requests: Sequence[Request]) -> None:
        self.search = search
        self.requests = tuple(requests)
        self._live = self.requests[:1]  # the request of each live beam
        self._candidates: dict[str, Sequence[BeamCandidate]] = {}  # by request id, of this step

    @staticmethod
    def starting(params: BeamSearchParams, requests: Sequence[Request]) -> "BeamGroup":
        """The group of a search that has not begun."""
        return BeamGroup(BeamSearch(params, requests[0].end_rule), requests)

    @property
    def has_ended(self) -> bool:
        """Whether its requests are finished: all end together, because one that fails ends the others."""
        return self.requests[0].status is RequestStatus.FINISHED

    @property
    def is_ready(self) -> bool:
        """Whether the candidates of every live beam are there."""
        return all(request.request_id in self._candidates for request in self._live)

    def deliver(self, request: Request, candidates: Sequence[BeamCandidate]) -> None:
        """Stores the candidates that may follow a request's beam."""
        self._candidates[request.request_id] = candidates

    def advance(self) -> Reassignment | None:
        """Extends all beams by one token. Returns None if this ends the search."""
        before = self._live
        self.search.advance([self._candidates[request.request_id] for request in before])
        self._candidates.clear()
        if self.search.done:
            return None

        parents = [before[beam.parent] for beam in self.search.live]
        ids = {parent.request_id for parent in parents}
        spare = iter([request for request in self.requests if request.request_id not in ids])
        live: list[Request] = []
        for parent in parents:
            live.append(parent if parent.request_id in ids else next(spare))
            ids.discard(parent.request_id)
        self._live = tuple(live)
        return Reassignment(
            self._live,
            tuple(live.index(parent) for parent in parents),
            tuple(beam.token_ids[-1] for beam in self.search.live),
        )
