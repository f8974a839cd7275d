"""The thread pool shrinks and grows with the cores that the process may use."""

import pytest

from pellucid.backends.native import ThreadPool
from pellucid.backends.thread_limiter import SECONDS_BETWEEN_LOOKS, ThreadLimiter


class Machine:
    """How many threads may be kept busy, and the time."""

    def __init__(self, num_usable: int) -> None:
        self.num_usable = num_usable
        self.now = 0.0
        self.num_looks = 0

    def limiter(self, pool: ThreadPool) -> ThreadLimiter:
        return ThreadLimiter(pool, self.count_usable, lambda: self.now)

    def count_usable(self) -> int:
        self.num_looks += 1
        return self.num_usable


def test_fewer_threads_while_the_limit_is_lower() -> None:
    pool, machine = ThreadPool(3), Machine(4)
    limiter = machine.limiter(pool)
    for num_usable, num_threads in ((2, 2), (1, 1), (4, 3), (3, 3), (1, 1), (8, 3)):
        machine.num_usable = num_usable
        machine.now += SECONDS_BETWEEN_LOOKS
        before = pool.num_threads
        if before == num_threads:
            limiter.update()  # without a warning, which would be an error
        else:
            with pytest.warns(RuntimeWarning, match=f"{num_threads} instead of {before}"):
                limiter.update()
        assert pool.num_threads == num_threads


def test_more_threads_than_may_run_were_asked_for() -> None:
    pool, machine = ThreadPool(2), Machine(1)
    limiter = machine.limiter(pool)
    machine.now += SECONDS_BETWEEN_LOOKS
    limiter.update()
    assert pool.num_threads == 2


def test_the_limits_are_read_every_few_seconds() -> None:
    machine = Machine(2)
    limiter = machine.limiter(ThreadPool(2))
    for _ in range(128):
        machine.now += SECONDS_BETWEEN_LOOKS / 64
        limiter.update()
    assert machine.num_looks == 1 + 2
