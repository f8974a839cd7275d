"""What `bench` measured: how it is kept, and the times that plans make of it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pellucid.backends.numpy.backend import NumpyBackend
from pellucid.benchmark.estimate import Number, Workload, estimate
from pellucid.benchmark.machine_facts import MachineFacts
from pellucid.benchmark.measured_speed import MeasuredRun, MeasuredSpeed, predicted_seconds
from pellucid.benchmark.measurement import Cost, Measurement
from pellucid.benchmark.planned_model import find_planned_model, speed_of_this_machine
from pellucid.benchmark.random_model import random_model
from pellucid.benchmark.speed_file import (
    MAX_RUNS,
    find_speed,
    keep_measurements,
    speed_key,
    speeds_path,
)
from pellucid.benchmark.step_work import BYTES, COUNTS, KINDS, StepWork, model_work, steps_of
from pellucid.benchmark.workloads import Decode, Prefill
from pellucid.benchmark.workloads import Workload as BenchWorkload
from pellucid.facts.machine import Machine
from pellucid.inputs.config import EngineConfig
from pellucid.shapes import SHAPES, find_shape
from support.tiny_shape import TINY_SHAPE

SETTINGS = EngineConfig(backend="numpy", quantization="int8", speculation="off")
MACHINE = Machine("portable", 1, 10e9, 400e9, 100e9, 50e9)
WORKLOADS: list[BenchWorkload] = [
    Prefill(256),
    *(Decode(4, depth, batch) for depth in (0, 500, 3000) for batch in (1, 4, 8, 32)),
]
LEARNT, PLANNED = ("smollm2-135m", "gemma-3-270m", "qwen3.5-0.8b"), "qwen2.5-0.5b"


def work_of(shape: str) -> StepWork:
    return model_work(SETTINGS, find_shape(shape), find_planned_model(shape, SETTINGS).weight_bytes)


def slow_machine(kind: str) -> float:
    """Seconds of a unit of each kind of work on a machine that stays behind its ceilings."""
    if kind in COUNTS:
        return 2 * COUNTS[kind]
    return 1.5 / 10e9 if kind in BYTES else 3 / 400e9


def test_times_of_another_shape_follow_from_the_runs_of_some() -> None:
    truth = {kind: slow_machine(kind) for kind in KINDS}
    runs = [
        MeasuredRun(shape, each.test, predicted_seconds(truth, work), work)
        for shape in LEARNT
        for each in WORKLOADS
        if (work := work_of(shape).of(steps_of(each, 2048)))
    ]
    speed = MeasuredSpeed(10e9, 400e9, runs).seconds_by_kind()
    for each in WORKLOADS:
        work = work_of(PLANNED).of(steps_of(each, 2048))
        assert predicted_seconds(speed, work) == pytest.approx(
            predicted_seconds(truth, work), rel=0.1
        )


def test_one_slow_run_among_many_changes_little() -> None:
    truth = {kind: slow_machine(kind) for kind in KINDS}
    work = [work_of(PLANNED).of(steps_of(each, 2048)) for each in WORKLOADS]
    seconds = [predicted_seconds(truth, each) for each in work]
    disturbed = [3 * seconds[0], *seconds[1:]]
    runs = [MeasuredRun("m", str(t), t, each) for t, each in zip(disturbed, work, strict=True)]
    speed = MeasuredSpeed(10e9, 400e9, runs).seconds_by_kind()
    for own, expected in zip(work[1:], seconds[1:], strict=True):
        assert predicted_seconds(speed, own) == pytest.approx(expected, rel=0.15)


# -- the file --------------------------------------------------------------------------------------


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    yield speeds_path()
    assert [each.name for each in tmp_path.glob("pellucid/*")] in ([], ["speeds.json"])


def keep(
    *seconds: float, first: int = 1, temperature: float = 0.0, settings: EngineConfig = SETTINGS
) -> None:
    """Decode runs of the tiny shape at depths from `first` on."""
    workloads = [Decode(1, first + index, temperature=temperature) for index in range(len(seconds))]
    model = random_model(PLANNED_TINY, settings, [Decode(1, 1)])
    measurements = [
        Measurement(each, (own,), Cost(1, 1, 1), "int8")
        for each, own in zip(workloads, seconds, strict=True)
    ]
    keep_measurements(settings, model, MACHINE, measurements)


PLANNED_TINY = "tiny"


@pytest.fixture(autouse=True)
def tiny_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SHAPES, PLANNED_TINY, TINY_SHAPE)  # type: ignore[call-overload]


def runs(settings: EngineConfig = SETTINGS) -> dict[str, float]:
    """The kept seconds by workload."""
    model = random_model(PLANNED_TINY, settings, [Decode(1, 1)])
    key = speed_key(settings, NumpyBackend(), model.config, model.weight_bytes)
    speed = find_speed(key)
    return {} if speed is None else {run.test: run.seconds for run in speed.runs}


def test_newer_runs_take_the_place_of_older_ones_and_others_stay(kept: Path) -> None:
    assert runs() == {}
    keep(0.5, 0.25)
    keep(0.125, first=2)
    assert runs() == {"tg1@1": 0.5, "tg1@2": 0.125}
    keep(1.0, settings=replace(SETTINGS, quantization="int4"))
    assert runs() == {"tg1@1": 0.5, "tg1@2": 0.125}
    keep(*[0.5] * 12)
    assert len(runs()) == 12 <= MAX_RUNS


def test_runs_that_plans_do_not_count_are_not_kept(kept: Path) -> None:
    keep(0.5, temperature=0.8)
    keep(0.5, settings=replace(SETTINGS, speculation="ngram"))
    assert not kept.exists()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"version": 1', '"version": 2'),
        ('"seconds": 0.5', '"seconds": -0.5'),
        ('"seconds": 0.5', '"seconds": NaN'),
        ('"seconds": 0.5', '"seconds": "0.5"'),
        ('"work": {', '"work": [], "other": {'),
        ('"key": {', '"key": [], "other": {'),
        ('"runs": [{', '"runs": [], "others": [{'),
        ("{", "["),
        ("}", ""),
    ],
)
def test_a_damaged_file_says_nothing_and_is_replaced(kept: Path, old: str, new: str) -> None:
    keep(0.5)
    text = kept.read_text()
    assert old in text
    kept.write_text(text.replace(old, new, 1))
    assert runs() == {}
    keep(0.25)
    assert runs() == {"tg1@1": 0.25}


def test_times_as_measured_stand_beside_the_best(kept: Path) -> None:
    model = find_planned_model(PLANNED_TINY, SETTINGS)
    assert speed_of_this_machine(model) is None
    keep(0.5, 0.5, 0.5)
    speed = speed_of_this_machine(model)
    assert speed is not None
    machine = MachineFacts("this machine", "M", 10e9, 400e9, 1e9)
    found: dict[str, Number] = {
        each.name: each
        for each in estimate(
            model, model.engine_plan(1e9), machine, Workload(2, 2, price_per_hour=1), speed
        )
    }
    decode = found["decode_seconds_measured"]
    assert decode.value == pytest.approx(0.5, rel=0.1)
    assert decode.value == pytest.approx(
        sum(speed[kind] * float(amount) for kind, amount in decode.inputs.items())
    )
    assert found["tokens_per_second_measured"].value == 1 / decode.value
    first = found["first_token_seconds_measured"].value
    assert found["request_seconds_measured"].value == first + decode.value
    assert found["price_per_million_tokens_measured"].value > 0
