"""Formats of the KV cache: bytes for each token, and decode speed of a long sequence."""

import statistics
from dataclasses import dataclass, replace

from pellucid.benchmark.session import Session
from pellucid.benchmark.workloads import Decode
from pellucid.inputs.config import EngineConfig, fitting_block_size
from pellucid.loaded_model import LoadedModel

KV_FORMATS = ("bf16", "int8", "int4")  # the first is what the others are compared with
DEPTH = 8192
NUM_OUTPUT_TOKENS = 16
NUM_ROUNDS = 3


@dataclass(frozen=True)
class KVFormatResult:
    """One format.

    Args:
        bytes_per_token: of all layers, scales included.
        tokens_per_second: of one sequence at `depth`, median.
    """

    kv_cache_dtype: str
    bytes_per_token: float
    depth: int
    tokens_per_second: float


def kv_format_workload(context_length: int) -> Decode:
    """At depth 8192, or as deep as the context goes."""
    return Decode(NUM_OUTPUT_TOKENS, min(DEPTH, context_length - NUM_OUTPUT_TOKENS))


def measure_kv_formats(
    model: LoadedModel, config: EngineConfig, max_model_len: int
) -> tuple[KVFormatResult, ...]:
    """Decodes with each format in turn.

    Args:
        config: `kv_cache_dtype` is set here.
        max_model_len: tokens of a whole context.
    """
    workload = kv_format_workload(max_model_len)
    sessions = {
        dtype: Session(model, _with_format(config, dtype), [workload]) for dtype in KV_FORMATS
    }
    seconds: dict[str, list[float]] = {dtype: [] for dtype in sessions}
    for session in sessions.values():
        session.warm_up(workload)
    for _ in range(NUM_ROUNDS):
        for dtype, session in sessions.items():
            seconds[dtype].append(session.run(workload).seconds)
    return tuple(
        KVFormatResult(
            dtype,
            session.memory_plan().bytes_per_position,
            workload.depth,
            workload.num_tokens / statistics.median(seconds[dtype]),
        )
        for dtype, session in sessions.items()
    )


def _with_format(config: EngineConfig, dtype: str) -> EngineConfig:
    block_size = fitting_block_size(config.block_size, dtype)
    return replace(config, kv_cache_dtype=dtype, block_size=block_size)
