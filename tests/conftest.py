"""Options of the random tests and of the tests under load: how many, which, for how long, on how many threads."""

import gc
import itertools
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings

# The same examples in every run: a failure in CI is a failure at home. `explore` draws new ones.
settings.register_profile(
    "ci", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
# An example that fails is enough, as it is: `make mutants`.
settings.register_profile(
    "any_failure", settings.get_profile("ci"), phases=[Phase.explicit, Phase.generate]
)
settings.register_profile("explore", deadline=None, max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def _seed(text: str) -> int:
    return random.SystemRandom().randrange(1 << 31) if text == "drawn" else int(text)


def _counts(text: str) -> list[int]:
    return [int(count) for count in text.split(",")]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("random traces")
    group.addoption("--traces", type=int, metavar="N", help="traces that each fuzz test runs")
    group.addoption("--minutes", type=float, metavar="M", help="runs traces for so long in all")
    group.addoption(
        "--first-trace", type=_seed, default=0, metavar="SEED", help="of the first; or 'drawn'"
    )
    group.addoption(
        "--trace-threads",
        type=_counts,
        default=[1, 2, 3],
        metavar="N,N",
        help="numbers of threads that native traces are drawn from (1,2,3)",
    )
    group.addoption(
        "--busy-processes",
        type=int,
        default=0,
        metavar="N",
        help="processes that compete for the cores meanwhile",
    )

    group = parser.getgroup("texts")
    group.addoption(
        "--texts", type=int, default=2_000, metavar="N", help="that each splitting cuts into words"
    )

    group = parser.getgroup("load on an engine or a server")
    for name, default, help_text in (
        ("--cluster-requests", 150, "that two replicas answer"),
        ("--cluster-streams", 40, "in the middle of which replicas are killed"),
        ("--requests", 2_500, "that an engine serves, one after another"),
        ("--clients", 12, "that stream at a time"),
        ("--load-seconds", 0, "that they go on; 0: two requests each"),
        ("--idle-streams", 40, "that are held"),
        ("--queued-calls", 200, "at a time, for 16 places"),
        ("--malformed", 400, "requests among good ones"),
    ):
        group.addoption(name, type=int, default=default, metavar="N", help=help_text)


def pytest_configure() -> None:
    # Where Ctrl-C is ignored, as in `make test &`, it would be ignored by the processes that tests start as well.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Half a million objects are made that last: no garbage is looked for among them, neither now nor in the tests."""
    gc.disable()
    collected = yield
    gc.collect()
    gc.freeze()
    gc.enable()
    return collected


def pytest_unconfigure() -> None:
    gc.unfreeze()  # or the extension would report what it cannot take back


def pytest_report_header(config: pytest.Config) -> str | None:
    first = config.getoption("first_trace")
    return f"first trace: {first}" if first else None


@pytest.fixture
def trace_seeds(request: pytest.FixtureRequest) -> Iterable[int]:
    """Seeds of the random traces that a test is to run: as many as its mark says, or the options."""
    first = request.config.getoption("first_trace")
    minutes = request.config.getoption("minutes")
    if minutes is not None:
        tests = sum(item.get_closest_marker("traces") is not None for item in request.session.items)
        end = time.monotonic() + 60 * minutes / tests
        return itertools.takewhile(lambda _: time.monotonic() < end, itertools.count(first))
    count = request.config.getoption("traces")
    if count is None:
        (count,) = request.node.get_closest_marker("traces").args
    return range(first, first + count)


@pytest.fixture
def trace_threads(request: pytest.FixtureRequest) -> list[int]:
    """Numbers of threads that traces are drawn from."""
    threads: list[int] = request.config.getoption("trace_threads")
    return threads


@pytest.fixture(autouse=True)
def repeatable_seeds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request without a seed gets the same one in every run; others with another first trace."""
    first = request.config.getoption("first_trace")
    seeds = random.Random(f"{first} {request.node.nodeid}")
    monkeypatch.setattr(secrets, "randbits", seeds.getrandbits)


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests measure does not go into the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def busy_processes(request: pytest.FixtureRequest) -> Iterator[None]:
    """As many as the option says, until the tests end."""
    count = request.config.getoption("busy_processes")
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    yield
    for process in processes:
        process.kill()
        process.wait()
