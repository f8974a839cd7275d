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
            _let_all_grow_old()
            gc.enable()


def _let_all_grow_old() -> None:
    """Moves all objects to the oldest generation, as collections would. The first of these would search them all."""
    if gc.get_freeze_count() == 0:  # else objects that somebody has frozen would move, too
        gc.freeze()
        gc.unfreeze()
