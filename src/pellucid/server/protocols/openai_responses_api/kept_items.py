"""The items of recent responses, which later calls may name by their ids (`item_reference`)."""

import threading
from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

MAX_BYTES = 4 << 20  # of one caller's items, as JSON


@dataclass
class _ItemsOfCaller:
    """Items as JSON by their ids, the oldest first."""

    by_id: OrderedDict[str, bytes] = field(default_factory=OrderedDict)
    num_bytes: int = 0


class KeptItems:
    """Items by caller and id.

    The oldest ones of a caller are dropped for its newer ones, and never for those of others: that would tell one
    caller how much another one asks.

    Threads may share it: long calls are read on threads.

    Args:
        max_bytes: of one caller's items as JSON.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._callers: defaultdict[str, _ItemsOfCaller] = defaultdict(_ItemsOfCaller)
        self._lock = threading.Lock()

    def keep(self, caller: str, items: Iterable[dict[str, Any]]) -> None:
        """Keeps the items of a reply for the caller that got it."""
        encoded = {item["id"]: msgspec.json.encode(item) for item in items}
        with self._lock:
            own = self._callers[caller]
            for item_id, item in encoded.items():
                own.num_bytes += len(item) - len(own.by_id.pop(item_id, b""))
                own.by_id[item_id] = item
            while own.num_bytes > self._max_bytes:
                _, dropped = own.by_id.popitem(last=False)
                own.num_bytes -= len(dropped)

    def find(self, caller: str, item_id: object) -> dict[str, Any] | None:
        """The item; None if it is another caller's, or is not kept."""
        with self._lock:
            item = self._callers[caller].by_id.get(str(item_id))
        return None if item is None else msgspec.json.decode(item, type=dict[str, Any])
