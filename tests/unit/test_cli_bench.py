"""`pellucid bench` on a tiny shape and a fake machine: JSON keys, the table, options that are refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pellucid.backends.base import Backend
from pellucid.cli.parsing.option_types import parse_counts
from pellucid.facts.machine import Machine
from pellucid.shapes import SHAPES
from support.command_line import CommandLine, Ran
from support.refusals import check_refusals
from support.tiny_shape import TINY_SHAPE

MACHINE = Machine(
    isa="portable",
    num_threads=2,
    bandwidth_bytes_per_second=32e9,
    peak_int8_ops=900e9,
    peak_bf16_flops=450e9,
    peak_f32_flops=225e9,
)
SMALL = ("--prompt=9,40", "--gen=3", "--batch=1,4", "--depth=0,33", "--repetitions=2")
TESTS = ["pp9", "pp40", "tg3@0", "tg3@0x4", "tg3@33", "tg3@33x4"]
TEST_KEYS = (
    "test batch depth temperature top_p quantization kv_cache_dtype tokens_per_second spread"
    " bytes_per_step flops_per_step bandwidth_share peak_share"
)
MACHINE_KEYS = (
    "bandwidth_bytes_per_second peak_int8_ops peak_bf16_flops peak_f32_flops num_threads isa"
)


def use_machines(monkeypatch: pytest.MonkeyPatch, *machines: Machine) -> None:
    """What measuring the machine gives, one after the other."""
    measurements = iter(machines)
    monkeypatch.setattr(Backend, "measure", lambda backend, num_threads: next(measurements))


@pytest.fixture
def bench(pellucid: CommandLine, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs `pellucid bench --shape tiny` on NumPy; the machine is not measured."""
    use_machines(monkeypatch, MACHINE, MACHINE)
    monkeypatch.setattr("pellucid.cli.bench_report.machine_name", lambda: "Some CPU")
    monkeypatch.setitem(SHAPES, "tiny", TINY_SHAPE)  # type: ignore[arg-type]

    def run(*arguments: str) -> Ran:
        return pellucid("bench", "--backend", "numpy", "--shape", "tiny", *arguments)

    return run


def test_json_is_an_object_for_each_test_and_the_machine(bench: Any) -> None:
    ran = bench(*SMALL, "--json")
    assert ran.status == 0
    *tests, machine = json.loads(ran.out)
    assert [test["test"] for test in tests] == TESTS
    assert all(test.keys() == {*TEST_KEYS.split()} for test in tests)
    assert machine.keys() == {*MACHINE_KEYS.split()}
    assert machine["bandwidth_bytes_per_second"] == 32e9 and machine["isa"] == "portable"
    decodes = [(test["batch"], test["depth"]) for test in tests[2:]]
    assert decodes == [(1, 0), (4, 0), (1, 33), (4, 33)]
    for test in tests:
        assert test["tokens_per_second"] > 0 and test["spread"] >= 0
        per_second = test["tokens_per_second"] / test["batch"]  # steps, where a step is a token
        if test["test"].startswith("tg"):
            assert test["bandwidth_share"] == pytest.approx(
                test["bytes_per_step"] * per_second / 32e9, rel=1e-3
            )
            assert test["peak_share"] == pytest.approx(
                test["flops_per_step"] * per_second / 225e9, rel=1e-3
            )


def test_formats_stand_in_the_result(bench: Any) -> None:
    ran = bench("--prompt", "4", "--gen", "1", "--batch", "1", "--quantization", "int8", "--json")
    test = json.loads(ran.out)[0]
    assert (test["quantization"], test["kv_cache_dtype"]) == ("int8", "bf16")


def test_table_has_a_line_for_each_test(bench: Any) -> None:
    ran = bench(*SMALL)
    assert ran.status == 0
    assert " ".join(ran.out.splitlines()[1:3]) == (
        "Some CPU, portable, 2 threads: memory 32.0 GB/s; GOP/s: int8 900, bf16 450, f32 225"
    )
    lines = ran.out.splitlines()
    assert lines[0] == "tiny, weights as stored, KV cache bf16"
    assert [line.split()[0] for line in lines if line.startswith(("pp", "tg"))][
        : len(TESTS)
    ] == TESTS


def test_a_machine_that_was_busy_counts_at_its_best(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = replace(MACHINE, bandwidth_bytes_per_second=16e9)
    use_machines(monkeypatch, busy, replace(MACHINE, peak_int8_ops=890e9))
    ran = bench("--prompt", "4", "--gen", "1", "--json")
    machine = json.loads(ran.out)[-1]
    assert (machine["bandwidth_bytes_per_second"], machine["peak_int8_ops"]) == (32e9, 900e9)
    assert "the machine's bandwidth or peak changed by 50% meanwhile" in ran.err


def test_a_quiet_machine_needs_no_word(bench: Any) -> None:
    assert "meanwhile" not in bench("--prompt", "4", "--gen", "1", "--json").err


def test_plot(bench: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "shares.png"
    ran = bench("--prompt", "4", "--gen", "1", "--plot", str(path))
    assert ran.status == 0 and f"plot: {path}" in ran.err
    assert path.read_bytes().startswith(b"\x89PNG")


REFUSED: list[tuple[str, ...]] = [
    ("--gen", "0"),
    ("--repetitions", "0"),
    ("--batch", "1,x"),
    ("--batch", "0"),
    ("--depth", "-1"),
    ("--prompt", "8,8"),
    ("--depth", "999"),
    ("--temperature", "-1"),
    ("--revision", "main"),
    ("owner/model",),
    ("--plot", "x.gif"),
]


def test_what_cannot_be_measured_is_refused(bench: Any) -> None:
    def measure(arguments: tuple[str, ...]) -> None:
        ran = bench(*arguments)
        assert ran.status == 2 and ran.out == ""
        raise ValueError(ran.err.splitlines()[-1])

    check_refusals("bench", REFUSED, measure)


def test_an_unknown_shape_is_refused(bench: Any) -> None:
    ran = bench("--shape", "gpt-5")
    assert ran.status == 2 and "shape='gpt-5': known are" in ran.err


def test_lists_of_counts() -> None:
    assert parse_counts("--batch", "1, 8,32", least=1) == [1, 8, 32]
    for bad in ("", "1,", "1;2", "1.5", "²"):
        with pytest.raises(ValueError, match="--batch"):
            parse_counts("--batch", bad, least=1)


def test_ctrl_c_leaves_what_was_measured(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from pellucid.benchmark.session import Session

    measure = Session.measure

    def interrupted(self: Session, workload: Any, *rest: Any) -> Any:
        if workload.test == "tg3@0":
            raise KeyboardInterrupt
        return measure(self, workload, *rest)

    monkeypatch.setattr(Session, "measure", interrupted)
    ran = bench(*SMALL, "--json")
    assert ran.status == 130
    assert [entry["test"] for entry in json.loads(ran.out)[:-1]] == ["pp9", "pp40"]
