"""Runs hostile inputs in a child process, and measures the time and memory of each."""

import contextlib
import gc
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from hostile.case import Case
from pellucid.facts.host_memory import give_back_free_memory

KILLED_AFTER_SECONDS = 60
KILLED_ABOVE_BYTES = 4 << 30  # resident
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Measurement:
    """What one case took.

    Args:
        name: of the case.
        outcome: "refused", "accepted", or how it failed.
        message: of the error.
        seconds: by the clock.
        cpu_seconds: of all threads of the process, which other processes do not lengthen.
        peak_bytes: resident memory above what the process had before, its child processes included.
    """

    name: str
    outcome: str
    message: str
    seconds: float
    cpu_seconds: float
    peak_bytes: int


def measure_apart(
    names: Sequence[str], on_measurement: Callable[[Measurement], None] = lambda _: None
) -> list[Measurement]:
    """Measures the cases `names` in child processes: one for all, and a new one after each that dies."""
    measurements: list[Measurement] = []
    while len(measurements) < len(names):
        for measurement in _run_worker(names[len(measurements) :]):
            measurements.append(measurement)
            on_measurement(measurement)
    return measurements


def work(cases: Mapping[str, Case], names: Sequence[str], warm_up: Callable[[], object]) -> None:
    """What the child process does: on stdout "ready", and for each case "started" and a line of JSON."""
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what pellucid may print is no measurement
    warm_up()
    gc.collect()
    gc.freeze()  # what is imported is not looked through again for each case
    print("ready", file=lines)
    for name in names:
        print("started", file=lines)
        print(json.dumps(asdict(_measure(cases[name]))), file=lines)


def _run_worker(names: Sequence[str]) -> Iterator[Measurement]:
    """Measurements of `names` from one process, in order, up to the first case that ends the process."""
    command = [sys.executable, str(Path(__file__).parent), "--worker"]
    environment = os.environ | {"RUST_BACKTRACE": "0"}
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment
        ) as worker,
    ):
        assert worker.stdin is not None and worker.stdout is not None
        worker.stdin.write(json.dumps(list(names)).encode())
        worker.stdin.close()
        lines = _lines(worker, worker.stdout.fileno())
        if next(lines)[0] != "ready":  # no case is to blame
            worker.kill()
            errors.seek(0)
            raise RuntimeError(f"the good inputs failed:\n{errors.read().decode(errors='replace')}")
        for name in names:
            begin = time.perf_counter()
            line, peak_bytes = next(lines)
            if line == "started":
                begin = time.perf_counter()
                line, peak_bytes = next(lines)
            if not line:
                worker.kill()
                errors.seek(0)
                end = errors.read().decode(errors="replace").strip()[-500:]
                seconds = time.perf_counter() - begin
                outcome = "the process died"
                if seconds >= KILLED_AFTER_SECONDS or peak_bytes >= KILLED_ABOVE_BYTES:
                    outcome = "killed"
                yield Measurement(name, outcome, end, seconds, seconds, peak_bytes)
                return
            yield Measurement(**json.loads(line))


def _lines(worker: "subprocess.Popen[bytes]", descriptor: int) -> Iterator[tuple[str, int]]:
    """Lines of the worker, and its resident memory; "" once it ends or passes a limit."""
    pending = b""
    while True:
        begin, peak_bytes = time.perf_counter(), 0
        while b"\n" not in pending:
            peak_bytes = max(peak_bytes, _resident_bytes(worker.pid))
            slow = time.perf_counter() - begin > KILLED_AFTER_SECONDS
            if slow or peak_bytes > KILLED_ABOVE_BYTES:
                yield "", peak_bytes
                return
            if not select.select([descriptor], [], [], _POLL_SECONDS)[0]:
                continue
            if not (data := os.read(descriptor, 1 << 16)):
                yield "", peak_bytes
                return
            pending += data
        line, pending = pending.split(b"\n", 1)
        yield line.decode(), peak_bytes


def _measure(case: Case) -> Measurement:
    with tempfile.TemporaryDirectory(prefix="hostile-") as directory:
        given = case.make(Path(directory))
        gc.collect()
        give_back_free_memory()
        _reset_peak()
        before = _resident_bytes(os.getpid())
        cpu_begin, begin = time.process_time(), time.perf_counter()
        outcome, message = _outcome(case, given)
        seconds = time.perf_counter() - begin
        cpu_seconds = time.process_time() - cpu_begin
        peak_bytes = max(0, _peak_bytes() - before)
        del given
    return Measurement(case.name, outcome, message, seconds, cpu_seconds, peak_bytes)


def _outcome(case: Case, given: object) -> tuple[str, str]:
    try:
        case.enter(given)
    except ValueError as error:
        return "refused", str(error)
    except BaseException as error:
        return f"{type(error).__name__} instead of ValueError", str(error)[:500]
    return "accepted", ""


# -- memory, where /proc tells (Linux); else 0 -----------------------------------------------------


def _reset_peak() -> None:
    for process in (os.getpid(), *_children()):
        with contextlib.suppress(OSError):
            Path(f"/proc/{process}/clear_refs").write_text("5")


def _peak_bytes() -> int:
    """Of this process and what its children have taken at most."""
    return _status_bytes(os.getpid(), "VmHWM") + sum(
        _status_bytes(child, "VmHWM") for child in _children()
    )


def _resident_bytes(process: int) -> int:
    own = _status_bytes(process, "VmRSS")
    if process == os.getpid():
        own += sum(_status_bytes(child, "VmRSS") for child in _children())
    return own


def _children() -> list[int]:
    with contextlib.suppress(OSError):
        tasks = Path("/proc/self/task").iterdir()
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    return []


def _status_bytes(process: int, name: str) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return 0
