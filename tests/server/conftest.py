"""Fixtures of the server's tests: servers on the bundled model, and clients."""

from collections.abc import Iterator

import pytest

from support.bundled import bundled_engine
from support.http_server import RunningServer, running_server


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """The bundled model behind a socket, without keys."""
    with running_server(bundled_engine()) as running:
        yield running
        running.wait_until_idle()
