"""Fixtures of the server's tests: servers on the bundled model, and clients."""

from collections.abc import Iterator

import openai
import pytest

from support.bundled import bundled_engine
from support.http_server import RunningServer, running_server


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """The bundled model behind a socket, without keys."""
    with running_server(bundled_engine()) as running:
        yield running
        running.wait_until_idle()


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    """OpenAI's client for the server of the test file, which may have a `server` of its own."""
    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60
    ) as made:
        yield made
