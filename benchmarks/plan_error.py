"""How far the times that a plan gives "as measured here" are from measured ones, over ten shapes.

Each shape runs in a process of its own, with random weights (the smallest is the bundled model), on one thread. Its
workloads take turns, and a time is the median of the turns in processor time: other programs may stop a thread, and
that does not count. A shape's times are then planned from the measurements of the nine others alone.

    python benchmarks/plan_error.py --directory DIR      measures the shapes that DIR lacks, then compares
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

BUNDLED = "pellucid-5m"
SHAPES = {  # and the turns of each
    BUNDLED: 6,
    "smollm2-135m": 5,
    "gpt2": 5,
    "gemma-3-270m": 4,
    "qwen2.5-0.5b": 4,
    "qwen3-0.6b": 4,
    "qwen3.5-0.8b": 3,
    "granite-3.1-1b-a400m": 3,
    "lfm2-1.2b": 3,
    "qwen3-1.7b": 3,
}
PROMPTS, BATCHES, DEPTHS = (128, 512), (1, 4, 8, 32), (0, 512, 2048, 8192)
NUM_STEPS = 4  # of a decode
MAX_KV_BYTES = 700 << 20
LARGE = 500_000_000  # parameters; larger shapes run the shorter prompt alone


def measure(shape: str, quantization: str, turns: int) -> dict[str, Any]:
    """The work and the seconds of each workload of a shape, and the ceilings of one thread."""
    from pellucid.backends.quantization.formats import BF16, FORMATS
    from pellucid.benchmark.random_model import random_model
    from pellucid.benchmark.session import Session
    from pellucid.benchmark.step_work import StepWork, steps_of
    from pellucid.benchmark.workloads import Decode, Prefill, Workload
    from pellucid.facts import formulas
    from pellucid.inputs.config import EngineConfig
    from pellucid.loaded_model import load_model
    from pellucid.shapes import find_shape

    config = EngineConfig(quantization=quantization, num_threads=1, speculation="off")
    bundled = load_model(config) if shape == BUNDLED else None
    model = find_shape(shape) if bundled is None else bundled.config
    position = formulas.kv_position_bytes(model, config.kv_cache_dtype)
    is_large = formulas.matrix_parameters(model) > LARGE
    workloads: list[Workload] = [Prefill(each) for each in PROMPTS[: 1 if is_large else 2]]
    for depth in DEPTHS:
        longest = depth + NUM_STEPS
        workloads += [
            Decode(NUM_STEPS, depth, batch)
            for batch in BATCHES
            if longest <= model.context_length and batch * longest * position <= MAX_KV_BYTES
        ]
    loaded = bundled or random_model(shape, config, workloads)
    session = Session(loaded, config, workloads, clock=time.thread_time)
    seconds: dict[str, list[float]] = {each.test: [] for each in workloads}
    machines = [loaded.backend.measure(config.num_threads)]
    for turn in range(turns):
        for each in workloads:
            if turn == 0 and not is_large:
                session.warm_up(each)
            seconds[each.test].append(session.run(each).seconds)
        machines.append(loaded.backend.measure(config.num_threads))
    step_work = StepWork(model, FORMATS.get(quantization, BF16).num_bytes, position)
    arithmetic = loaded.decoder.step_weights.arithmetic
    return {
        "bandwidth": max(each.bandwidth_bytes_per_second for each in machines),
        "flops": max(each.peak(arithmetic) for each in machines),
        "runs": [
            {
                "model": shape,
                "test": each.test,
                "seconds": median(seconds[each.test]),
                "work": step_work.of(steps_of(each, config.max_num_batched_tokens)),
            }
            for each in workloads
        ],
    }


def compare(measured: dict[str, dict[str, Any]]) -> None:
    """Prints the error of each shape's plan, and of all."""
    from pellucid.benchmark.measured_speed import MeasuredRun, MeasuredSpeed, predicted_seconds
    from pellucid.benchmark.step_work import BYTES, OPERATIONS

    bandwidth, flops = (
        median(each[name] for each in measured.values()) for name in ("bandwidth", "flops")
    )
    runs = {
        shape: [MeasuredRun(**each) for each in found["runs"]] for shape, found in measured.items()
    }
    errors: dict[str, list[float]] = {}
    for shape, own in runs.items():
        others = [each for other in runs if other != shape for each in runs[other]]
        speed = MeasuredSpeed(bandwidth, flops, others).seconds_by_kind()
        errors[shape] = [predicted_seconds(speed, each.work) / each.seconds - 1 for each in own]
        print(
            f"{shape:22} median {median(map(abs, errors[shape])):6.1%}, of"
            f" {', '.join(f'{each.test} {error:+.0%}' for each, error in zip(own, errors[shape], strict=True))}"
        )
    every = sorted(abs(error) for own in errors.values() for error in own)
    print(f"\nof {len(every)} times: median error {median(every):.1%}, nine of ten below", end=" ")
    print(f"{every[len(every) * 9 // 10]:.1%}")
    best = [
        abs(max(_sum(each, BYTES) / bandwidth, _sum(each, OPERATIONS) / flops) / each.seconds - 1)
        for own in runs.values()
        for each in own
    ]
    print(f"of the times at best, by bandwidth and peak alone: {median(best):.1%}")
    speed = MeasuredSpeed(bandwidth, flops, [each for own in runs.values() for each in own])
    for kind, seconds in speed.seconds_by_kind().items():
        print(f"  {kind:22} {seconds:.3g} s a unit")


def _sum(run: Any, kinds: Sequence[str]) -> float:
    return sum(run.work[kind] for kind in kinds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--directory", type=Path, default=Path("plan-error"))
    parser.add_argument("--quantization", default="int8")
    parser.add_argument("--shape", choices=SHAPES, help="measure this shape alone, into stdout")
    arguments = parser.parse_args()
    if arguments.shape is not None:
        found = measure(arguments.shape, arguments.quantization, SHAPES[arguments.shape])
        json.dump(found, sys.stdout)
        return
    arguments.directory.mkdir(exist_ok=True)
    measured = {}
    for shape in SHAPES:
        file = arguments.directory / f"{shape}-{arguments.quantization}.json"
        if not file.exists():
            command = [sys.executable, __file__, "--shape", shape]
            command += ["--quantization", arguments.quantization]
            text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            file.write_text(text)
        measured[shape] = json.loads(file.read_text())
    compare(measured)


if __name__ == "__main__":
    main()
