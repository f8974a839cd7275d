"""A plugin of pytest: writes the seconds of each test, with what it sets up, to $TEST_SECONDS."""

import json
import os
from collections import Counter
from pathlib import Path

import pytest

_seconds: Counter[str] = Counter()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds[report.nodeid] += report.duration


def pytest_sessionfinish() -> None:
    Path(os.environ["TEST_SECONDS"]).write_text(json.dumps(_seconds))
