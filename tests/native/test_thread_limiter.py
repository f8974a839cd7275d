"""The thread pool shrinks and grows with the cores that the process may use."""

import os
from pathlib import Path

import pytest

from pellucid.backends.choice import make_backend
from pellucid.backends.cpu import free_cores
from pellucid.backends.cpu.backend import CpuBackend
from pellucid.backends.cpu.free_cores import FreeCores
from pellucid.backends.cpu.thread_limiter import (
    SECONDS_BETWEEN_LOOKS,
    SECONDS_BETWEEN_MEASUREMENTS,
    ThreadLimiter,
)
from pellucid.backends.native import ThreadPool
from pellucid.inputs.config import EngineConfig
from support.batches import Share, forward_batch
from support.checkpoints import write_checkpoint
from support.decoders import load_decoder


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
            with pytest.warns(RuntimeWarning, match=f"{num_threads} instead of {before}") as seen:
                limiter.update()
            assert seen[0].filename == __file__
        assert pool.num_threads == num_threads


def test_more_threads_than_may_run_were_asked_for() -> None:
    pool, machine = ThreadPool(2), Machine(1)
    limiter = machine.limiter(pool)
    machine.now += SECONDS_BETWEEN_LOOKS
    limiter.update()
    assert pool.num_threads == 2


def test_the_limits_are_read_every_few_seconds() -> None:
    machine, measured = Machine(2), []
    limiter = ThreadLimiter(
        ThreadPool(2), machine.count_usable, lambda: machine.now, lambda: measured.append(0)
    )
    for _ in range(128):
        machine.now += SECONDS_BETWEEN_LOOKS / 64
        limiter.update()
    assert machine.num_looks == 1 + 2
    assert len(measured) == 19  # of 128 times, every seventh: after half a second


class SharedMachine:
    """Four cores, other programs, and the engine's threads, which share what the others leave."""

    def __init__(self) -> None:
        self.now = self.busy = self.own = 0.0

    def limiter(self, pool: ThreadPool) -> ThreadLimiter:
        free_cores = FreeCores(lambda: self.busy, lambda: self.own, lambda: self.now, 4)
        free_cores()
        return ThreadLimiter(pool, lambda: 4, lambda: self.now, free_cores)

    def run(self, seconds: float, others: float, own: float) -> None:
        """Others and this process use so many cores each."""
        self.now += seconds
        self.busy += seconds * (others + own)
        self.own += seconds * own


def test_fewer_threads_while_other_programs_use_the_cores() -> None:
    """Without a warning: it happens again and again. The statistics tell it."""
    pool, machine = ThreadPool(3), SharedMachine()
    limiter = machine.limiter(pool)
    for others, own, num_threads in (
        (0.0, 3.0, 3),
        (1.3, 2.7, 3),
        (1.6, 2.4, 2),  # 1.6 of 4 in use: for a third thread there is less than half a core
        (2.4, 1.6, 2),
        (4.0, 0.9, 1),
        (2.0, 1.0, 2),
        (0.2, 2.0, 3),
    ):
        machine.run(SECONDS_BETWEEN_MEASUREMENTS, others, own)
        limiter.update()
        assert pool.num_threads == num_threads
        assert limiter.use == (3, num_threads)


def test_what_others_did_while_there_were_no_steps_says_nothing() -> None:
    pool, machine = ThreadPool(2), SharedMachine()
    limiter = machine.limiter(pool)
    machine.run(60.0, 4.0, 0.0)  # the model is loaded beside them
    limiter.update()
    assert pool.num_threads == 1
    machine.run(60.0, 0.0, 0.0)
    limiter.update()
    assert pool.num_threads == 1
    machine.run(SECONDS_BETWEEN_MEASUREMENTS, 0.0, 1.0)
    limiter.update()
    assert pool.num_threads == 2


def test_free_cores_are_those_since_the_last_call() -> None:
    times = iter(
        (
            (0.0, 0.0, 0.0, None),
            (60.0, 120.0, 60.0, 3.0),  # the first time may be long
            (65.0, 130.0, 65.0, 3.0),
            (70.1, 130.0, 65.0, None),  # too long ago
            (70.1, 130.0, 65.0, None),
            (71.1, 131.0, 67.0, 4.0),  # this process's clock may be ahead
            (72.1, 133.0, 67.0, 2.0),
        )
    )
    now = busy = own = 0.0
    measured = FreeCores(lambda: busy, lambda: own, lambda: now, 4)
    for now, busy, own, free in times:  # noqa: B007
        assert measured() == (None if free is None else pytest.approx(free))


@pytest.mark.parametrize("niceness", [0, 1])
def test_the_time_of_other_programs_is_read_from_the_system(
    niceness: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the CPUs that this process may use, without programs that give way, and without waiting for disks."""
    stat = tmp_path / "stat"
    monkeypatch.setattr(free_cores, "STAT_FILE", stat)
    monkeypatch.setattr(os, "nice", lambda increment: niceness + increment)
    assert free_cores._busy_seconds({0, 2}) is None
    stat.write_text(
        "cpu 9 9 9 9 9 9 9 9 9 9\ncpu0 100 7 20 900 50 3 4 10 0 0\n"
        "cpu1 9 9 9 9 9 9 9 9 9 9\ncpu2 200 0 0 0 0 0 0 0 0 0\nintr 5\n"
    )
    ticks = 100 + 20 + 3 + 4 + 10 + 200 + 7 * niceness
    assert free_cores._busy_seconds({0, 2}) == ticks / os.sysconf("SC_CLK_TCK")
    assert FreeCores.of_this_process()() == len(os.sched_getaffinity(0))  # nobody was busy since


def test_only_a_number_of_threads_that_nobody_asked_for_is_lowered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(FreeCores, "__call__", lambda self: 0.0)
    asked, found = (make_backend(EngineConfig(backend="cpu", num_threads=num)) for num in (2, None))
    for backend, num_threads in ((asked, 2), (found, 1), (CpuBackend(2), 2)):
        backend._limiter.update()
        assert backend.thread_use.num_threads == num_threads
    assert CpuBackend().thread_use == (1, 1)


def test_every_step_may_change_the_number_of_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, looks = CpuBackend(num_threads=2), []
    monkeypatch.setattr(backend._limiter, "update", lambda: looks.append("looked"))
    decoder, config = load_decoder(write_checkpoint(tmp_path, "llama"), backend)
    compiled = backend.compile(decoder, config)
    kv_cache = backend.make_kv_cache(config, 4, 16, "f32")
    for position in range(3):
        compiled.step(forward_batch([Share([5, 6, 7], position, position + 1, [0])], 16), kv_cache)
    assert len(looks) == 3
