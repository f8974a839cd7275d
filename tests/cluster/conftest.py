"""Fixtures of the tests of replicas: pools of processes on the bundled model."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from support.replicas import RunningPool, is_running


@contextmanager
def running_pool(num_replicas: int = 2, **knobs: object) -> Iterator[RunningPool]:
    pool = RunningPool.of_processes(num_replicas, **knobs)
    try:
        yield pool
    finally:
        pids = [replica.pid for replica in pool.pool.replicas]
        pool.close()
        assert not any(map(is_running, pids))


@pytest.fixture
def make_pool() -> Iterator[Callable[..., RunningPool]]:
    """Makes pools that end with the test."""
    with ExitStack() as stack:
        yield lambda *args, **knobs: stack.enter_context(running_pool(*args, **knobs))
