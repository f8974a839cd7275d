"""The collector rests while objects are made that stay, and does not search them afterwards."""

import gc
from collections.abc import Iterator

import pytest

from pellucid.facts.garbage import paused_collector


@pytest.fixture(autouse=True)
def nothing_frozen() -> Iterator[None]:
    """tests/conftest.py freezes what was collected."""
    gc.unfreeze()
    yield
    gc.freeze()
    gc.enable()


def test_what_was_made_is_old_and_not_frozen() -> None:
    with paused_collector():
        assert not gc.isenabled()
        made: list[object] = [object()]
    assert gc.isenabled()
    assert not any(each is made for each in gc.get_objects(generation=0))
    assert gc.get_freeze_count() == 0


def test_what_somebody_froze_stays_frozen() -> None:
    gc.freeze()
    with paused_collector():
        pass
    assert gc.get_freeze_count() > 0


def test_a_collector_that_rests_is_not_woken() -> None:
    gc.disable()
    with paused_collector():
        pass
    assert not gc.isenabled()
