"""`pellucid bench`: a model's speed, and its share of the machine's bandwidth and peak."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from pellucid.cli.bench_model import Shape, check_shape_alone, load_bench_model
from pellucid.cli.output.image_path import Plot, check_image_path
from pellucid.cli.output.summary import backend_facts, memory_facts
from pellucid.cli.output.terminal import EXIT_INTERRUPTED, note, note_facts
from pellucid.cli.output.units import describe_count
from pellucid.cli.parsing.model_and_prompt import ModelName
from pellucid.cli.parsing.option_types import check_count, parse_counts
from pellucid.cli.parsing.options import BenchSpeculationOptions, ModelOptions
from pellucid.cli.parsing.panels import OUTPUT, WORKLOAD
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.progress import progress

if TYPE_CHECKING:
    from pellucid.benchmark.measurement import Measurement
    from pellucid.benchmark.workloads import Workload
    from pellucid.loaded_model import LoadedModel

NOTEWORTHY_CHANGE = 0.1


def bench(
    model_name: ModelName,
    *,
    shape: Shape = None,
    prompt: str = WORKLOAD.option("N,...", "Lengths of the prompts, in tokens.", default="512"),
    gen: int = WORKLOAD.option("N", "Tokens to decode for each sequence.", default=64),
    batch: str = WORKLOAD.option("N,...", "Sequences that decode together.", default="1,8,32"),
    depth: str = WORKLOAD.option(
        "N,...", "Tokens in the KV cache of each sequence before it decodes.", default="128"
    ),
    temperature: float = WORKLOAD.option(
        "T", "Temperature of sampling; 0 takes the likeliest token.", default=0.0
    ),
    top_p: float = WORKLOAD.option(
        "P", "Draw from the likeliest tokens that together have this probability.", default=1.0
    ),
    repetitions: int = WORKLOAD.option("N", "Runs of each test; the median counts.", default=5),
    model_options: ModelOptions,
    speculation_options: BenchSpeculationOptions,
    plot: Plot = None,
    json: bool = OUTPUT.flag(
        "Write a JSON list instead of a table: an object for each test, and one for the machine.",
        "--json",
    ),
) -> None:
    """Measure the speed of prefill and decode.

    Shows speeds, and their share of this machine's memory bandwidth and peak arithmetic. Both are measured
    before and after; the faster measurement counts.
    """
    check_image_path(plot)
    model = model_name.name(is_needed=shape is None)
    check_shape_alone(shape, model, model_options)
    check_count("--repetitions", repetitions, least=1)
    check_count("--gen", gen, least=1)
    prompts = parse_counts("--prompt", prompt, least=1)
    batches = parse_counts("--batch", batch, least=1)
    depths = parse_counts("--depth", depth, least=0)
    SamplingParams(temperature=temperature, top_p=top_p)  # checks both
    config = EngineConfig(model=model, **model_options.settings(), **speculation_options.settings())

    from pellucid.benchmark.speed_file import keep_measurements
    from pellucid.benchmark.workloads import Decode, Prefill
    from pellucid.cli.bench_report import bench_objects, print_bench, write_bench_image
    from pellucid.cli.output.json_output import print_json

    workloads: list[Prefill | Decode] = [Prefill(num_tokens) for num_tokens in prompts]
    workloads += [
        Decode(gen, each, size, temperature, top_p) for each in depths for size in batches
    ]
    bench_model = load_bench_model(shape, config, workloads)
    before = bench_model.backend.measure(config.num_threads)
    measurements, interrupted = _measure(bench_model, config, workloads, repetitions)
    after = bench_model.backend.measure(config.num_threads)
    machine = before.at_best(after)
    if (change := before.largest_change(after)) > NOTEWORTHY_CHANGE:
        note(
            f"the machine's bandwidth or peak changed by {change:.0%} meanwhile: other programs run, so speeds"
            " and shares are rough"
        )

    try:
        keep_measurements(config, bench_model, machine, measurements)
    except OSError as error:
        note(f"pellucid plan will not know these speeds: {error}")

    if json:
        print_json(bench_objects(measurements, config, machine))
    else:
        print_bench(bench_model.name, measurements, config, machine)
    for fact in backend_facts(bench_model):
        note(fact)
    if plot is not None and measurements:
        write_bench_image(bench_model.name, measurements, config, machine, plot)
        note(f"plot: {plot}")
    raise typer.Exit(EXIT_INTERRUPTED if interrupted else 0)


def _measure(
    model: "LoadedModel", config: EngineConfig, workloads: "Sequence[Workload]", repetitions: int
) -> "tuple[list[Measurement], bool]":
    """What was measured, and whether Ctrl-C ended it."""
    from pellucid.benchmark.session import Session

    session = Session(model, config, workloads)
    note_facts("memory", memory_facts(session.memory_plan()))
    measurements: list[Measurement] = []
    try:
        for workload in workloads:
            with progress(workload.test, describe_count("runs")) as show:
                measurements.append(session.measure(workload, repetitions, show))
    except KeyboardInterrupt:
        return measurements, True
    return measurements, False
