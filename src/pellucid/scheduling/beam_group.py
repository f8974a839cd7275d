"""The requests of one beam search: which of them computes which beam."""

from collections.abc import Sequence
from dataclasses import dataclass

from pellucid.beam_search_params import BeamSearchParams
from pellucid.scheduling.beam_search import BeamCandidate, BeamSearch
from pellucid.scheduling.request import Request, RequestStatus


@dataclass(frozen=True, slots=True)
class Reassignment:
    """Arguments of `Scheduler.reassign`."""

    members: tuple[Request, ...]
    parents: tuple[int, ...]
    token_ids: tuple[int, ...]


class BeamGroup:
    """A search and its requests, one for each beam that may be live.

    The first of them computes the prompt. A beam that goes on in one way only stays with its request,
    so that no blocks change hands; what it goes on with besides is forked to requests whose own beams
    have come to an end.

    Args:
        search: at its beginning.
        members: beam_width requests with the same prompt, that `waits_for_group`.
    """

    def __init__(self, search: BeamSearch, members: Sequence[Request]) -> None:
        self.search = search
        self.members = tuple(members)
        self._live = self.members[:1]  # the request of each live beam
        self._candidates: dict[str, Sequence[BeamCandidate]] = {}  # by request id, of this step

    @staticmethod
    def starting(params: BeamSearchParams, members: Sequence[Request]) -> "BeamGroup":
        """The group of a search that has not begun."""
        first = members[0]
        return BeamGroup(BeamSearch(params, first.max_tokens, first.stop_token_ids), members)

    @property
    def has_ended(self) -> bool:
        """Whether its requests are finished: all at once, for one that fails takes the others along."""
        return self.members[0].status is RequestStatus.FINISHED

    @property
    def is_ready(self) -> bool:
        """Whether the candidates of every live beam are there."""
        return all(member.request_id in self._candidates for member in self._live)

    def deliver(self, member: Request, candidates: Sequence[BeamCandidate]) -> None:
        """Takes what may follow a member's beam."""
        self._candidates[member.request_id] = candidates

    def advance(self) -> Reassignment | None:
        """Takes the search one token further; None if it is done by that."""
        before = self._live
        self.search.advance([self._candidates[member.request_id] for member in before])
        self._candidates.clear()
        if self.search.done:
            return None

        parents = [before[beam.parent] for beam in self.search.live]
        ids = {parent.request_id for parent in parents}
        spare = iter([member for member in self.members if member.request_id not in ids])
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
