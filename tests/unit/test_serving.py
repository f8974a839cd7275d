"""benchmarks/serving.py: its requests, counts and tables."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
ENGINE = """\
from engines.traffic import Served
from engines.worker import serve

class Fake:
    settings = "as fast as it says"
    def __init__(self, task):
        pass
    def serve(self, requests):
        times = [[{step} * (index + 1) for index in range(each.num_output_tokens)] for each in requests]
        return Served(times, {step})

serve(Fake)
"""


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The script as a module."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import serving

    yield serving
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_the_same_requests_every_time(serving: ModuleType) -> None:
    from engines.traffic import OUTPUT_TOKENS, PROMPT_TOKENS, mixed_traffic

    few, many = mixed_traffic(4), mixed_traffic(32)
    assert few == many[:4]
    assert len({tuple(each.prompt_token_ids[:8]) for each in many}) == 32
    for request in many:
        assert PROMPT_TOKENS[0] <= len(request.prompt_token_ids) <= PROMPT_TOKENS[1]
        assert OUTPUT_TOKENS[0] <= request.num_output_tokens <= OUTPUT_TOKENS[1]


def test_percentiles_are_over_requests_and_over_gaps(serving: ModuleType) -> None:
    served = serving.Served([[1.0, 1.5, 3.0], [2.0, 2.5]], 0.6)
    assert (served.seconds, served.num_output_tokens) == (3.0, 5)
    assert served.inter_token_seconds == [0.5, 1.5, 0.5]
    waiting = serving.Waiting.of(served)
    assert waiting.first_token_p50 == 1.5
    assert waiting.inter_token_p50 == 0.5
    assert waiting.first_token_p95 == pytest.approx(1.95)
    assert waiting.inter_token_p95 == pytest.approx(1.4)


def test_a_row_for_each_engine_and_ratios_to_ours(
    serving: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engines.traffic import mixed_traffic

    entries = []
    for name, step in (("pellucid", 0.01), ("other", 0.04)):
        script = tmp_path / f"{name}.py"
        script.write_text(ENGINE.format(step=step))
        monkeypatch.setitem(sys.modules["contestant"].ENGINES, name, str(script))
        entries.append(serving.Entry(name, "int8"))
    test = serving.Test.parse("mix3")
    longest = max(each.num_output_tokens for each in mixed_traffic(3))
    results = serving.measure(tmp_path, entries, test, 2, 1, {})

    assert [result.rounds[0].seconds for result in results] == [
        pytest.approx(0.01 * longest),
        pytest.approx(0.04 * longest),
    ]
    ours, other = serving.markdown_table(results).splitlines()[2:]
    assert ours.startswith("| pellucid int8 |") and ours.endswith(f"| {1 / longest:.1%} |  |")
    assert "| 40 ms | 40 ms |" in other and other.endswith("| 4.00x |")
