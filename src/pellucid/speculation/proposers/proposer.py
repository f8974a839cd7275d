"""The interface of proposers."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from pellucid.execution.candidates import Candidates
from pellucid.scheduling.request import Request


class Proposer(ABC):
    """Proposes drafts. Right or wrong, they change no token of an answer, only the number of steps."""

    @abstractmethod
    def propose(
        self, requests: Sequence[Request], max_drafts: Mapping[str, int]
    ) -> Mapping[str, Sequence[int]]:
        """Guesses the next output tokens of requests.

        Args:
            requests: running, with output.
            max_drafts: by request id, the most drafts that can be used, at least 1.

        Returns:
            Draft token ids by request id. A request may be left out; drafts beyond `max_drafts` are dropped.
        """

    def distributions(self, request_id: str) -> Sequence[Candidates]:
        """The distribution from which each of a request's last drafts was drawn; empty: the proposer draws no
        tokens, or no subscriber watches the request."""
        return ()

    def forget(self, requests: Sequence[Request]) -> None:
        """Forgets requests that have ended. Among them are requests that `propose` was never called with."""
        return
