"""Times between the tokens of each request."""

from typing import final

from pellucid.observing.events import Tokens, to_us


@final
class TokenGaps:
    """Remembers when each request got its latest token.

    In most steps the same requests get a token as in the step before: then one subtraction gives the gap of all.
    """

    def __init__(self) -> None:
        self._times: dict[str, float] = {}  # seconds; of requests that are not among the latest
        self._latest: tuple[str, ...] = ()  # who got a token in the latest step
        self._now = 0.0  # of that step

    def advance(self, request_ids: tuple[str, ...], now: float) -> list[int | None]:
        """Microseconds since the token before, of each of the requests that a step has given tokens at `now`, in
        seconds; None: it is the first."""
        if request_ids == self._latest:
            gap_us = round((now - self._now) * 1e6)
            self._now = now
            return [gap_us] * len(request_ids)
        self._merge()
        times = [self._times.pop(request_id, None) for request_id in request_ids]
        self._latest, self._now = request_ids, now
        return [None if before is None else to_us(now - before) for before in times]

    def follow(self, tokens: Tokens | None) -> None:
        """The latest tokens, if others have told them."""
        if tokens is not None:
            self.advance(*tokens)

    def forget(self, request_id: str) -> None:
        """A request has ended; another one may have its id."""
        self._merge()
        self._times.pop(request_id, None)

    def clear(self) -> None:
        self._times.clear()
        self._latest = ()

    def _merge(self) -> None:
        self._times.update(dict.fromkeys(self._latest, self._now))
        self._latest = ()
