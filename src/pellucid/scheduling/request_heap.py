"""Requests in order of a key, of which any may leave at any time."""

import heapq
from collections.abc import Iterator
from typing import TypeAlias

from pellucid.scheduling.request import Request

Key: TypeAlias = tuple[float, int]


class RequestHeap:
    """The smallest key first. Taking a request out of the middle costs O(1) on average.

    It only forgets that the entry is valid; entries like that are dropped when they come up, or all
    at once when they are the majority.
    """

    def __init__(self) -> None:
        # The number makes entries of one request different and keeps requests from being compared.
        self._entries: list[tuple[Key, int, Request]] = []
        self._valid: dict[str, int] = {}  # request_id -> number of its entry
        self._num_pushed = 0

    def __len__(self) -> int:
        return len(self._valid)

    def __contains__(self, request: Request) -> bool:
        return request.request_id in self._valid

    def __iter__(self) -> Iterator[Request]:
        """In order."""
        return (entry[2] for entry in sorted(self._entries) if self._is_valid(entry))

    @property
    def first(self) -> Request | None:
        while self._entries and not self._is_valid(self._entries[0]):
            heapq.heappop(self._entries)
        return self._entries[0][2] if self._entries else None

    def push(self, key: Key, request: Request) -> None:
        assert request not in self
        heapq.heappush(self._entries, (key, self._num_pushed, request))
        self._valid[request.request_id] = self._num_pushed
        self._num_pushed += 1

    def remove(self, request: Request) -> None:
        del self._valid[request.request_id]
        if len(self._entries) > 2 * len(self._valid) + 8:
            self._entries = [entry for entry in self._entries if self._is_valid(entry)]
            heapq.heapify(self._entries)

    def _is_valid(self, entry: tuple[Key, int, Request]) -> bool:
        return self._valid.get(entry[2].request_id) == entry[1]
