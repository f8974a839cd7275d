"""Python's collector of garbage, paused while objects are made that stay."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_collector() -> Iterator[None]:
    """Lets the collector rest: modules and models stay, so it would search them in vain, for a tenth of the time from
    the start of a process to its first token."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
