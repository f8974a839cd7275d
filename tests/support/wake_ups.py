"""How often threads wake up, as Linux counts it."""

import re
import time
from collections.abc import Sequence
from pathlib import Path


def idle_wake_ups(thread_ids: Sequence[int], seconds: float = 0.5) -> int:
    """Of some threads together in so many seconds, once they have done what they still had to do."""
    fewest = before = _switches(thread_ids)
    for _ in range(20):
        time.sleep(seconds)
        now = _switches(thread_ids)
        fewest, before = min(fewest, now - before), now
        if not fewest:
            break
    return fewest


def _switches(thread_ids: Sequence[int]) -> int:
    """How often the threads were given a core so far."""
    statuses = [Path(f"/proc/{thread_id}/status").read_text() for thread_id in thread_ids]
    return sum(int(n) for text in statuses for n in re.findall(r"ctxt_switches:\s+(\d+)", text))
