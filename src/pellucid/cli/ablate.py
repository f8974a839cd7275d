"""`pellucid ablate`: the gain of each technique of the engine on this machine."""

from dataclasses import asdict
from typing import TYPE_CHECKING

from pellucid.cli.bench_model import Shape, check_shape_alone, load_bench_model
from pellucid.cli.output.summary import formats
from pellucid.cli.output.terminal import note, print_table, wrapped
from pellucid.cli.output.units import num_bytes, rate, seconds, times
from pellucid.cli.parsing.model_and_prompt import ModelName
from pellucid.cli.parsing.option_types import check_count
from pellucid.cli.parsing.options import Json, ModelOptions
from pellucid.cli.parsing.panels import WORKLOAD
from pellucid.inputs.config import EngineConfig

if TYPE_CHECKING:
    from pellucid.benchmark.ablation.ablation import Ablation
    from pellucid.benchmark.ablation.batching import BatchingResult
    from pellucid.benchmark.ablation.capacity import CapacityResult
    from pellucid.benchmark.ablation.kv_formats import KVFormatResult
    from pellucid.benchmark.ablation.prefix import PrefixResult

DEFAULT_REQUESTS = 32


def ablate(
    model_name: ModelName,
    *,
    shape: Shape = None,
    requests: int = WORKLOAD.option(
        "N", "Requests of mixed lengths, at least 2.", default=DEFAULT_REQUESTS
    ),
    model_options: ModelOptions,
    json: Json = False,
) -> None:
    """Measure what each technique of the engine is worth.

    Runs the same work with and without the KV cache, batching, paging, prefix caching and small KV formats.
    Takes some minutes with a model of half a billion parameters.
    """
    model = model_name.name(is_needed=shape is None)
    check_shape_alone(shape, model, model_options)
    check_count("--requests", requests, least=2)
    config = EngineConfig(model=model, speculation="off", **model_options.settings())

    from pellucid.benchmark.ablation.ablation import ablate as measure
    from pellucid.benchmark.ablation.ablation import max_model_len
    from pellucid.benchmark.ablation.kv_formats import kv_format_workload
    from pellucid.cli.output.json_output import print_json
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


def print_ablation(name: str, ablation: "Ablation", config: EngineConfig) -> None:
    """Writes everything on stdout."""
    print(wrapped(formats(name, config)))
    _print_batching(ablation.batching)
    _print_capacity(ablation.capacity)
    _print_prefix(ablation.prefix)
    _print_kv_formats(ablation.kv_formats)


def _print_batching(results: "tuple[BatchingResult, ...]") -> None:
    naive = results[0]
    few = naive.num_requests
    print(f"\nThe same requests of mixed lengths, all at once; {few} of them for the naive loop\n")
    print_table(
        ("", "requests", "output", "time to first token", "vs naive"),
        [
            (
                result.discipline.name,
                str(result.num_requests),
                rate(result.num_output_tokens, result.times.total),
                seconds(result.times.median_first_token),
                times(result.tokens_per_second / naive.tokens_per_second),
            )
            for result in results
        ],
    )


def _print_capacity(result: "CapacityResult") -> None:
    print(f"\nRequests that fit into {num_bytes(result.num_bytes)} of KV cache at the same time\n")
    print_table(
        ("", "requests", "share of memory in use"),
        [
            (capacity.name, str(capacity.num_requests), f"{capacity.used_share:.1%}")
            for capacity in result.capacities
        ],
    )


def _print_prefix(result: "PrefixResult") -> None:
    found = result.num_cached_tokens / result.num_prompt_tokens
    print(f"\nPrefix caching and prompts of {result.num_prompt_tokens} tokens\n")
    print_table(
        ("", "time to first token", "speedup"),
        [
            (name, seconds(first_token), times(result.off / first_token))
            for name, first_token in (
                ("off", result.off),
                ("on, prompt never seen", result.unseen),
                (f"on, {found:.1%} of the prompt seen", result.seen),
            )
        ],
    )


def _print_kv_formats(results: "tuple[KVFormatResult, ...]") -> None:
    first = results[0]
    print(f"\nFormats of the KV cache; decode of one sequence with {first.depth} tokens in it\n")
    print_table(
        ("", "per token", "capacity", "speed", f"vs {first.kv_cache_dtype}"),
        [
            (
                result.kv_cache_dtype,
                num_bytes(result.bytes_per_token),
                times(first.bytes_per_token / result.bytes_per_token),
                f"{result.tokens_per_second:.1f} tok/s",
                times(result.tokens_per_second / first.tokens_per_second),
            )
            for result in results
        ],
    )
