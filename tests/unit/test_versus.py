"""benchmarks/versus.py with engines that only say how long they took."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
ENGINE = """\
import os
from engines.worker import serve

class Fake:
    def __init__(self, task):
        self.settings = f"{{task.weight_format}}, {{task.num_threads}} threads"
        print("a library says hello")
        os.system("echo and so does its child")
    def note(self, words):
        with open({log!r}, "a") as log:
            log.write(f"{name} {{words}}\\n")
    def prefill(self, num_tokens):
        self.note(f"prefill {{num_tokens}}")
        return {seconds}
    def decode(self, num_tokens, depth, batch):
        self.note(f"decode {{num_tokens}} {{depth}} {{batch}}")
        return {seconds}

serve(Fake)
"""


@pytest.fixture
def versus(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The script as a module."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import versus

    yield versus
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_engines_run_in_turn_on_the_same_tests(
    versus: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    for name, seconds in (("pellucid", 0.5), ("other", 2.0)):
        script = tmp_path / f"{name}.py"
        script.write_text(ENGINE.format(name=name, seconds=seconds, log=str(log)))
        monkeypatch.setitem(sys.modules["contestant"].ENGINES, name, str(script))
    tests = [versus.Test.parse(name) for name in ("pp8", "tg2@4x3")]
    results = versus.compete(tmp_path, "int8", ["pellucid", "other"], tests, 2, 1, {})

    turns = [line.rsplit(" ")[0] for line in log.read_text().splitlines()]
    assert turns == ["pellucid", "other"] * 6  # a warm-up and two rounds of each test
    assert log.read_text().splitlines()[-1] == "other decode 2 4 3"
    assert [(result.engine, result.test, result.rates) for result in results] == [
        ("pellucid", "pp8", (16.0, 16.0)),
        ("other", "pp8", (4.0, 4.0)),
        ("pellucid", "tg2@4x3", (12.0, 12.0)),
        ("other", "tg2@4x3", (3.0, 3.0)),
    ]
    assert results[0].settings == "int8, 1 threads"
    assert versus.markdown_table(results).splitlines()[2:] == [
        "| int8 | pp8 | 16.0 ± 0% | 4.0 ± 0% | 4.00x |",
        "| int8 | tg2@4x3 | 12.0 ± 0% | 3.0 ± 0% | 4.00x |",
    ]


def test_an_engine_that_does_not_start_is_named(
    versus: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "broken.py"
    script.write_text("raise SystemExit(3)")
    monkeypatch.setitem(sys.modules["contestant"].ENGINES, "broken", str(script))
    with pytest.raises(RuntimeError, match="broken: ended with status 3"):
        versus.compete(tmp_path, "int8", ["broken"], [versus.Test.parse("pp8")], 1, 1, {})


def test_medians_and_spreads(versus: ModuleType) -> None:
    result = versus.Result("pp8", "int8", "x", "", (10.0, 8.0, 20.0))
    assert (result.median, result.spread) == (10.0, 1.2)


@pytest.mark.parametrize("name", ["pp", "tg8", "tg8@", "pp8@4", "tg8@4x", "pp8 ", "mix"])
def test_names_of_no_test_are_refused(versus: ModuleType, name: str) -> None:
    with pytest.raises(ValueError, match="must look like pp512, tg32@512, tg16@128x32 or mix32"):
        versus.Test.parse(name)
