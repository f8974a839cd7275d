import os

import pytest
from hypothesis import HealthCheck, settings

# The same examples in every run: a failure in CI is a failure at home. `explore` draws new ones.
settings.register_profile(
    "ci", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("explore", deadline=None, max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("random traces")
    group.addoption("--traces", type=int, metavar="N", help="traces that each fuzz test runs")
    group.addoption("--first-trace", type=int, default=0, metavar="SEED", help="seed of the first")


@pytest.fixture
def trace_seeds(request: pytest.FixtureRequest) -> range:
    """Seeds of the random traces that a test is to run: as many as its mark says, or --traces."""
    count = request.config.getoption("traces")
    if count is None:
        (count,) = request.node.get_closest_marker("traces").args
    first = request.config.getoption("first_trace")
    return range(first, first + count)
