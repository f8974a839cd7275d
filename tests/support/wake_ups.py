"""How often threads wake up, as Linux counts it."""

import re
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path


def idle_wake_ups(thread_ids: Sequence[int], seconds: float = 0.5) -> int:
    """Of some threads together in so many seconds, once they have done what they still had to do. Those that have ended
    do not wake up."""
    before = _switches(thread_ids)
    fewest = sum(before.values())
    for _ in range(20):
        time.sleep(seconds)
        now = _switches(thread_ids)
        fewest = min(fewest, sum(now[thread_id] - before[thread_id] for thread_id in now))
        before = now
        if not fewest:
            break
    return fewest


def _switches(thread_ids: Sequence[int]) -> dict[int, int]:
    """How often each of the threads that live was given a core so far."""
    switches = {}
    for thread_id in thread_ids:
        with suppress(FileNotFoundError, ProcessLookupError):
            status = Path(f"/proc/{thread_id}/status").read_text()
            switches[thread_id] = sum(map(int, re.findall(r"ctxt_switches:\s+(\d+)", status)))
    return switches
