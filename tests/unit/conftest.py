"""The command line around the fake model, as a fixture of unit tests."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from support.command_line import CommandLine


@pytest.fixture
def pellucid(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> "CommandLine":
    """The command line around a fake model."""
    from support.command_line import CommandLine  # the whole stack, for those tests only

    return CommandLine(monkeypatch, capsys)
