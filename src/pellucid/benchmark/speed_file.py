"""The file in which `pellucid bench` keeps what it measured on this machine, for plans."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pellucid.backends.base import Backend
from pellucid.benchmark.measured_speed import MeasuredRun, MeasuredSpeed
from pellucid.benchmark.measurement import Measurement
from pellucid.benchmark.step_work import KINDS, model_work, steps_of
from pellucid.facts import formulas
from pellucid.facts.machine import Machine
from pellucid.facts.model_config import ModelConfig
from pellucid.inputs.config import EngineConfig
from pellucid.loading.cache_file import cache_path, write_cache_file

if TYPE_CHECKING:  # a plan needs no tokenizer
    from pellucid.loaded_model import LoadedModel

VERSION = 1
MAX_RUNS = 256  # of a key; the newest


class SpeedKey(NamedTuple):
    """What speeds depend on besides a model's shape."""

    isa: str
    num_threads: int
    weights: str
    kv_cache_dtype: str


def speed_key(
    settings: EngineConfig, backend: Backend, model: ModelConfig, weight_bytes: float
) -> SpeedKey:
    """Weights that are kept as they are stored are told apart by their bits."""
    native, use = backend.native_threads, backend.thread_use
    isa = backend.name if native is None else native.kernels.isa
    # While other programs use the cores, a pool has fewer threads than it may.
    num_threads = use.most if use is not None else settings.num_threads or 1
    weights = settings.quantization
    if weights == "none":
        numbers = formulas.matrix_parameters(model) + formulas.embedding_parameters(model)
        weights = f"{round(8 * weight_bytes / numbers)} bits"
    return SpeedKey(isa, num_threads, weights, settings.kv_cache_dtype)


def speeds_path() -> Path:
    """In the user's folder for caches."""
    return cache_path("speeds.json")


def find_speed(key: SpeedKey) -> MeasuredSpeed | None:
    """What `bench` measured; None: nothing, or the file cannot be read."""
    return _read().get(key)


def keep_measurements(
    settings: EngineConfig,
    model: "LoadedModel",
    machine: Machine,
    measurements: Sequence[Measurement],
) -> None:
    """Adds what `bench` measured, in place of older runs of the same model and workload. Steps with drafts, and those
    that draw tokens, do other work than plans count.

    Raises:
        OSError: the file cannot be written.
    """
    measurements = [each for each in measurements if each.workload.temperature == 0]
    if not measurements or settings.speculation != "off":
        return
    work = model_work(settings, model.config, model.weight_bytes)
    runs = {
        (model.name, each.workload.test): MeasuredRun(
            model.name,
            each.workload.test,
            each.median_seconds,
            work.of(steps_of(each.workload, settings.max_num_batched_tokens)),
        )
        for each in measurements
    }
    key = speed_key(settings, model.backend, model.config, model.weight_bytes)
    speeds = _read()
    before = speeds[key].runs if key in speeds else ()
    older = [run for run in before if (run.model, run.test) not in runs]
    speeds[key] = MeasuredSpeed(
        machine.bandwidth_bytes_per_second,
        machine.peak(measurements[0].arithmetic),
        [*older, *runs.values()][-MAX_RUNS:],
    )
    _write(speeds)


def _read() -> dict[SpeedKey, MeasuredSpeed]:
    """The speeds in the file; none if it is missing, damaged or of another version."""
    try:
        stored = json.loads(speeds_path().read_bytes())
        if stored["version"] != VERSION:
            return {}
        return dict(map(_speed, stored["speeds"]))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def _speed(stored: dict[str, Any]) -> tuple[SpeedKey, MeasuredSpeed]:
    runs = [
        MeasuredRun(
            str(run["model"]),
            str(run["test"]),
            _positive(run["seconds"]),
            {kind: _positive(run["work"][kind]) for kind in KINDS if run["work"].get(kind)},
        )
        for run in stored["runs"]
    ]
    if not runs:
        raise ValueError("no runs")
    key = SpeedKey(*(stored["key"][name] for name in SpeedKey._fields))
    hash(key)
    return key, MeasuredSpeed(_positive(stored["bandwidth"]), _positive(stored["flops"]), runs)


def _positive(number: object) -> float:
    if not isinstance(number, int | float) or not 0 < number < math.inf:
        raise ValueError(f"{number!r}: must be above 0")
    return float(number)


def _write(speeds: dict[SpeedKey, MeasuredSpeed]) -> None:
    stored = [{"key": key._asdict(), **asdict(speed)} for key, speed in speeds.items()]
    write_cache_file(speeds_path(), {"version": VERSION, "speeds": stored})
