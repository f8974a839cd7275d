"""The CPU backend: native kernels; `compile` traces a decoder's forward once and replays it as one native
call per step."""

import hashlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pellucid.backends.base import Backend, NativeThreads, ThreadUse
from pellucid.backends.cpu.free_cores import FreeCores
from pellucid.backends.cpu.kv_cache import (
    CpuKVCache,
    TracedKVCache,
    make_cpu_kv_cache,
    native_kv_groups,
)
from pellucid.backends.cpu.ops import CpuOps
from pellucid.backends.cpu.program_decoder import ProgramDecoder
from pellucid.backends.cpu.thread_limiter import ThreadLimiter
from pellucid.backends.cpu.tracing import Trace, symbolic_batch
from pellucid.backends.cpu.weights import CpuWeights
from pellucid.backends.native import (
    EXTENSION_FILE,
    Program,
    RowSummarizer,
    ThreadPool,
    find_kernels,
    kv_bytes_per_block,
)
from pellucid.backends.ops import Decoder
from pellucid.facts.kv_groups import kv_shares, open_area_bytes, share_of_heads
from pellucid.facts.model_config import ModelConfig

if TYPE_CHECKING:  # most engines compute alone
    from pellucid.backends.cpu.ranks import Ranks

# Rows that a program computes at a time; a longer step is cut. This bounds the memory for activations
# between ops, keeps most of it in cache, and is enough to read the weights once for many rows.
MAX_ROWS = 512

# Waking threads, and their tens of barriers, take about as long as one thread takes to read a few
# megabytes of weights: smaller steps stay on the caller's thread.
SMALL_STEP_BYTES = 4 << 20

MAX_HEAD_DIM = 512

# Columns of a recurrent state that a kernel computes together.
STATE_COLUMNS = 16


class CpuBackend(Backend):
    """Native kernels on the threads of one pool.

    Args:
        num_threads: compute threads, the caller's own included.
        isa: level of the kernels, one of `kernel_levels()`; empty: the best.
        quantize_activations: whether rows are rounded where they meet weights of fewer bits (to int8
            for integer weights, to bf16 for bf16 ones); else those weights become f32.
        max_rows: rows that a compiled decoder computes at a time.
        small_step_bytes: weights below which a step of one row is not worth waking threads for.
        maps_experts: whether experts go to a temporary file, of which the system keeps in memory what steps
            read.
        yields_cores: whether steps have fewer threads while other programs use the cores.
        ranks: the processes that have a share of the weights each; None: there is one.

    Raises:
        ValueError: the machine does not run this level, or there is no place for the file.
    """

    name = "cpu"

    def __init__(
        self,
        num_threads: int = 1,
        isa: str = "",
        quantize_activations: bool = True,
        max_rows: int = MAX_ROWS,
        small_step_bytes: int = SMALL_STEP_BYTES,
        maps_experts: bool = False,
        yields_cores: bool = False,
        ranks: "Ranks | None" = None,
    ) -> None:
        self.kernels = find_kernels(isa)
        self.pool = ThreadPool(num_threads)
        free_cores = FreeCores.of_this_process() if yields_cores else None
        self._limiter = None  # of one thread there is nothing to limit
        if num_threads > 1:
            self._limiter = ThreadLimiter(self.pool, free_cores=free_cores)
        self._quantize_activations = quantize_activations
        self._max_rows = max_rows
        self._small_step_bytes = small_step_bytes
        self._ranks = ranks
        exchange = None if ranks is None else ranks.exchange
        self.weights: CpuWeights = CpuWeights(
            self.kernels, self.pool, quantize_activations, maps_experts, exchange
        )
        self.ops = CpuOps(self._new_program, exchange)

    @property
    def identity(self) -> str:
        return f"cpu {self.kernels.isa} {_extension_identity()}"

    @property
    def thread_use(self) -> ThreadUse:
        return ThreadUse(1, 1) if self._limiter is None else self._limiter.use

    @property
    def native_threads(self) -> NativeThreads:
        return NativeThreads(self.kernels, self.pool)

    def stop_waiting(self) -> None:
        if self._ranks is not None:
            self._ranks.exchange.fail()

    def available_memory(self) -> int | None:
        """As `Backend.available_memory`; of a machine with several ranks, a rank's share."""
        available = super().available_memory()
        if available is None or self._ranks is None:
            return available
        return available // self._ranks.num_on_machine

    def kv_shares(self, config: ModelConfig) -> int:
        return kv_shares(config, self.weights.num_ranks)

    def _own_heads(self, config: ModelConfig) -> ModelConfig:
        return share_of_heads(config, self.kv_shares(config))

    def kv_bytes_per_block(self, config: ModelConfig, block_size: int, dtype: str) -> int:
        return kv_bytes_per_block(dtype, native_kv_groups(self._own_heads(config)), block_size)

    def open_area_bytes(self, config: ModelConfig, dtype: str) -> int:
        return open_area_bytes(self._own_heads(config), dtype, self._max_rows)

    def make_kv_cache(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int,
        dtype: str,
        num_state_slots: int = 1,
    ) -> CpuKVCache:
        return make_cpu_kv_cache(
            self._own_heads(config), num_blocks, block_size, dtype, num_state_slots, self._max_rows
        )

    def compile(self, decoder: Decoder, config: ModelConfig) -> ProgramDecoder:
        """`decoder` as one native call per step. Allocates the memory between ops."""
        trace = Trace()
        handles: Any = TracedKVCache(self._own_heads(config))  # only as far as forward looks
        logits: Any = decoder.forward(symbolic_batch(trace), handles)
        self.weights.finish()
        return ProgramDecoder(
            trace,
            logits,
            self._new_program(self._max_rows),
            self._quantize_activations,
            before_step=None if self._limiter is None else self._limiter.update,
            summarizer=RowSummarizer(self.kernels, self.pool),
        )

    def _new_program(self, max_rows: int) -> Program:
        """An empty program for steps of at most `max_rows` tokens."""
        return Program(self.kernels, self.pool, max_rows, self._small_step_bytes)


def unsupported_shape(config: ModelConfig) -> str | None:
    """The property of a model that the native kernels do not support; None if they support the model."""
    for attention in config.attentions:
        if attention.head_dim % 8 != 0 or not 8 <= attention.head_dim <= MAX_HEAD_DIM:
            return (
                f"head_dim={attention.head_dim}: native kernels take multiples of 8,"
                f" at most {MAX_HEAD_DIM}"
            )
    for state in config.states:
        if state.value_dim % STATE_COLUMNS:
            return f"value_dim={state.value_dim}: native kernels take multiples of {STATE_COLUMNS}"
    return None


@cache
def _extension_identity() -> str:
    """SHA-256 of the file of the native extension."""
    return hashlib.sha256(Path(EXTENSION_FILE).read_bytes()).hexdigest()
