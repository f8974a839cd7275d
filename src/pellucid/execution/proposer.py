"""Proposers: what guesses tokens ahead of the model, for speculative decoding."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from pellucid.scheduling.request import Request


class Proposer(Protocol):
    """Proposes drafts. Right or wrong, they change no token of an answer, only the number of steps."""

    def propose(self, requests: Sequence[Request]) -> Mapping[str, Sequence[int]]:
        """Guesses the next output tokens of requests; called before each step.

        Args:
            requests: running, with output.

        Returns:
            Draft token ids by request id. A request may be left out. The scheduler drops drafts that the
            step has no room for.
        """
        ...
