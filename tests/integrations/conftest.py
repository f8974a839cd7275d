"""Fixtures of the tests of other libraries: servers on the bundled model and on scripted answers."""

import os
from collections.abc import Iterator

import pytest

from support.bundled import bundled_engine
from support.http_server import RunningServer, running_server
from support.scripted_model import scripted_engine
from support.weather import ANSWER_WITH_CALL

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # otherwise its import asks GitHub for prices


@pytest.fixture(scope="session")
def server() -> Iterator[RunningServer]:
    """The bundled model behind a socket, without keys."""
    with running_server(bundled_engine()) as running:
        yield running
        running.wait_until_idle()


@pytest.fixture(scope="session")
def scripted() -> Iterator[RunningServer]:
    """A model that reasons, and then calls a tool."""
    with running_server(scripted_engine(ANSWER_WITH_CALL)) as running:
        yield running
        running.wait_until_idle()
