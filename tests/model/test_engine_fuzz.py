"""Random traces on tiny models of the numpy backend: the same answers, to the last bit."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from support.family_traces import check_family_traces


@pytest.mark.traces(12)  # each family
def test_every_request_gets_what_it_gets_alone(
    trace_seeds: Iterable[int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    check_family_traces("numpy", "cpu", trace_seeds, tmp_path, caplog)
