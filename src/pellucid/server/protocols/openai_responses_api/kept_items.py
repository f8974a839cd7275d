"""The items of recent responses, which later calls may name by their ids (`item_reference`)."""

import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import msgspec

MAX_BYTES = 16 << 20  # of all callers' items, as JSON


class KeptItems:
    """Items by caller and id; the oldest are dropped. Threads may share it: long calls are read on threads.

    Args:
        max_bytes: of the items as JSON.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._items: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        self._lock = threading.Lock()

    def keep(self, caller: str, items: Iterable[dict[str, Any]]) -> None:
        """Keeps the items of a reply for the caller that got it."""
        encoded = {(caller, item["id"]): msgspec.json.encode(item) for item in items}
        with self._lock:
            for key, item in encoded.items():
                self._num_bytes += len(item) - len(self._items.pop(key, b""))
                self._items[key] = item
            while self._num_bytes > self._max_bytes:
                _, dropped = self._items.popitem(last=False)
                self._num_bytes -= len(dropped)

    def find(self, caller: str, item_id: object) -> dict[str, Any] | None:
        """The item; None if it is another caller's, or is not kept."""
        with self._lock:
            item = self._items.get((caller, str(item_id)))
        return None if item is None else msgspec.json.decode(item, type=dict[str, Any])
