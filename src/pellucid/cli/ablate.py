"""`pellucid ablate`: what each idea of the engine is worth on this machine."""

from dataclasses import asdict
from typing import Annotated

import typer

from pellucid.cli.bench_model import (
    WORKLOAD,
    Shape,
    check_count,
    check_shape_alone,
    load_bench_model,
)
from pellucid.cli.model_and_prompt import ModelName
from pellucid.cli.options import Json, ModelOptions
from pellucid.cli.terminal import note
from pellucid.config import EngineConfig

DEFAULT_REQUESTS = 32


def ablate(
    model_name: ModelName,
    *,
    shape: Shape = None,
    requests: Annotated[
        int,
        typer.Option(
            metavar="N", rich_help_panel=WORKLOAD, help="Requests of mixed lengths, at least 2."
        ),
    ] = DEFAULT_REQUESTS,
    model_options: ModelOptions,
    json: Json = False,
) -> None:
    """Measure the engine without one idea after the other: KV cache, batching, paging, prefix sharing, KV formats.

    All in one run on the same weights and requests. Takes a few minutes with a model of half a billion parameters.
    """
    model = model_name.name()
    check_shape_alone(shape, model, model_options)
    check_count("--requests", requests, least=2)
    config = EngineConfig(model=model, **model_options.knobs())

    from pellucid.benchmark.ablation.ablation import ablate as measure
    from pellucid.benchmark.ablation.ablation import max_model_len
    from pellucid.benchmark.ablation.kv_formats import kv_format_workload
    from pellucid.cli.ablate_text import print_ablation
    from pellucid.cli.json_output import print_json
    from pellucid.shapes import find_shape

    workloads = []
    if shape is not None:  # the deepest says how much memory random weights must leave
        workloads.append(kv_format_workload(max_model_len(config, find_shape(shape))))
    bench_model = load_bench_model(shape, config, workloads)
    ablation = measure(bench_model, config, requests, lambda part: note(f"measuring {part}"))
    if json:
        print_json(asdict(ablation))
    else:
        print_ablation(bench_model.name, ablation, config)
