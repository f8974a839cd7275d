"""The interface of proposers."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from pellucid.scheduling.request import Request


class Proposer(Protocol):
    """Proposes drafts. Right or wrong, they change no token of an answer, only the number of steps."""

    def propose(
        self, requests: Sequence[Request], max_drafts: Mapping[str, int]
    ) -> Mapping[str, Sequence[int]]:
        """Guesses the next output tokens of requests; called before each step that may have drafts.

        Args:
            requests: running, with output.
            max_drafts: by request id, the most drafts that are of use, at least 1.

        Returns:
            Draft token ids by request id. A request may be left out; drafts beyond `max_drafts` are dropped.
        """
        ...
