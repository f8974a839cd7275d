"""Runs all parts of the ablation, one after the other, on one model."""

from collections.abc import Callable
from dataclasses import dataclass

from pellucid.benchmark.ablation.batching import BatchingResult, Discipline, measure_batching
from pellucid.benchmark.ablation.capacity import CapacityResult, measure_capacity
from pellucid.benchmark.ablation.kv_formats import KVFormatResult, measure_kv_formats
from pellucid.benchmark.ablation.prefix import PrefixResult, measure_prefix
from pellucid.benchmark.ablation.requests import mixed_requests
from pellucid.facts.kv_groups import block_needs
from pellucid.facts.model_config import ModelConfig
from pellucid.inputs.config import EngineConfig
from pellucid.loaded_model import LoadedModel

OnPart = Callable[[str], None]


@dataclass(frozen=True)
class Ablation:
    """What was measured."""

    batching: tuple[BatchingResult, ...]
    capacity: CapacityResult
    prefix: PrefixResult
    kv_formats: tuple[KVFormatResult, ...]


def max_model_len(config: EngineConfig, model_config: ModelConfig) -> int:
    """Tokens of a whole context."""
    return min(config.max_model_len or model_config.context_length, model_config.context_length)


def ablate(
    model: LoadedModel, config: EngineConfig, num_requests: int, on_part: OnPart
) -> Ablation:
    """Measures everything.

    Args:
        config: the engine's settings, where no part sets them.
        num_requests: of mixed lengths, at least 2.
        on_part: told what comes next.

    Raises:
        ValueError: the context is too short, or there is too little memory.
    """
    longest = max_model_len(config, model.config)
    requests = mixed_requests(num_requests, model.config.vocab_size, longest)

    def on_discipline(discipline: Discipline) -> None:
        on_part(f"batching: {discipline.name}")

    batching = measure_batching(model, config, requests, on_discipline)
    bytes_per_block = model.backend.kv_bytes_per_block(
        model.config, config.block_size, config.kv_cache_dtype
    )
    needs = block_needs(model.config, config.block_size, config.max_num_batched_tokens)
    capacity = measure_capacity(requests, longest, needs, bytes_per_block)
    on_part("prefix sharing")
    prefix = measure_prefix(model, config, longest)
    on_part("formats of the KV cache")
    kv_formats = measure_kv_formats(model, config, longest)
    return Ablation(batching, capacity, prefix, kv_formats)
