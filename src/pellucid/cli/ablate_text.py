"""An ablation for people: a table for each part."""

from typing import TYPE_CHECKING

from pellucid.cli.bench_text import title
from pellucid.cli.terminal import print_table
from pellucid.cli.units import num_bytes, rate, seconds, times
from pellucid.config import EngineConfig

if TYPE_CHECKING:
    from pellucid.benchmark.ablation.ablation import Ablation
    from pellucid.benchmark.ablation.batching import BatchingResult
    from pellucid.benchmark.ablation.capacity import CapacityResult
    from pellucid.benchmark.ablation.kv_formats import KVFormatResult
    from pellucid.benchmark.ablation.prefix import PrefixResult


def print_ablation(name: str, ablation: "Ablation", config: EngineConfig) -> None:
    """Writes everything on stdout."""
    print(title(name, config))
    _print_batching(ablation.batching)
    _print_capacity(ablation.capacity)
    _print_prefix(ablation.prefix)
    _print_kv_formats(ablation.kv_formats)


def _print_batching(results: "tuple[BatchingResult, ...]") -> None:
    naive = results[0]
    few = naive.num_requests
    print(
        f"\nThe same requests of mixed lengths, all there at once; {few} of them for the naive loop\n"
    )
    print_table(
        ("", "requests", "output", "first token", "than naive"),
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
    print(f"\nRequests that fit together into {num_bytes(result.num_bytes)} of KV cache\n")
    print_table(
        ("", "requests", "of it in use"),
        [
            (capacity.name, str(capacity.num_requests), f"{capacity.used_share:.1%}")
            for capacity in result.capacities
        ],
    )


def _print_prefix(result: "PrefixResult") -> None:
    found = result.num_cached_tokens / result.num_prompt_tokens
    print(f"\nPrefix caching and prompts of {result.num_prompt_tokens} tokens\n")
    print_table(
        ("", "first token", "as fast"),
        [
            (name, seconds(first_token), times(result.off / first_token))
            for name, first_token in (
                ("off", result.off),
                ("on, never seen", result.unseen),
                (f"on, seen but for its end: {found:.1%} found", result.seen),
            )
        ],
    )


def _print_kv_formats(results: "tuple[KVFormatResult, ...]") -> None:
    first = results[0]
    print(f"\nKeys and values, and decoding one sequence at depth {first.depth}\n")
    print_table(
        ("", "a token", "capacity", "speed", "ratio"),
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
