"""No input of under 10 MB takes more than 2 s or 500 MB to be refused. See `corpus.py`."""

import pytest

from hostile.corpus import CASES
from hostile.measure import Measurement, measure_apart

SECONDS, PEAK_BYTES = 2.0, 500_000_000
BUSY = 10  # times as long as on an idle machine; `python tests/hostile` prints what was measured
MAX_MESSAGE = 2000  # characters


@pytest.fixture(scope="module")
def measurements() -> dict[str, Measurement]:
    return {each.name: each for each in measure_apart(list(CASES))}


@pytest.mark.parametrize("name", CASES)
def test_is_refused_in_bounded_time_and_memory(
    name: str, measurements: dict[str, Measurement]
) -> None:
    measured = measurements[name]
    expected = ("refused", "accepted") if CASES[name].may_succeed else ("refused",)
    assert measured.outcome in expected, measured.message
    assert len(measured.message) <= MAX_MESSAGE
    assert measured.seconds <= SECONDS * BUSY
    assert measured.cpu_seconds <= SECONDS * 2  # processors share their caches and their power
    assert measured.peak_bytes <= PEAK_BYTES
