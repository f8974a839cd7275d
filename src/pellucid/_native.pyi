"""
pellucid's native kernels and what they need to know about the machine.
"""

from collections.abc import Callable, Iterable, Sequence
import enum
from typing import Annotated, Literal

import numpy
from numpy.typing import NDArray


class CacheLevel:
    """One data or unified cache of a CPU."""

    @property
    def level(self) -> int:
        """1 for L1d, 2 for L2, 3 for L3."""

    @property
    def size_bytes(self) -> int:
        """Bytes in one instance of this cache."""

    @property
    def num_sharing_cpus(self) -> int:
        """Logical CPUs that share one instance."""

    def __repr__(self) -> str: ...

class CpuInfo:
    """
    What this process may use of the processor, read when cpu_info() is called.
    """

    @property
    def features(self) -> frozenset[str]:
        """
        Instruction set extensions that processor and operating system both support, by Linux's names on x86 ("avx2", "avx512_vnni") and as "neon", "dotprod", "i8mm", "bf16", "fp16", "sve" on Arm.
        """

    @property
    def caches(self) -> tuple[CacheLevel, ...]:
        """
        Data and unified caches of one CPU, L1 first; empty if the system hides them.
        """

    @property
    def num_logical_cpus(self) -> int:
        """Logical CPUs online in the machine."""

    @property
    def num_physical_cores(self) -> int:
        """Distinct cores among the logical CPUs of the machine."""

    @property
    def num_allowed_cpus(self) -> int:
        """Logical CPUs in the calling thread's affinity mask."""

    @property
    def num_allowed_cores(self) -> int:
        """Distinct cores in the affinity mask."""

    @property
    def num_fast_cores(self) -> int:
        """Of these, the ones about as fast as the fastest."""

    @property
    def cpu_quota(self) -> float | None:
        """
        CPUs' worth of time that the process's cgroups grant, the tightest limit on the way to the root (1.5 is 150 ms in each 100 ms); None without a limit.
        """

    @property
    def num_threads(self) -> int:
        """
        Compute threads to start: min(num_fast_cores, ceil(cpu_quota)), at least 1.
        """

    @property
    def thread_limit(self) -> Literal['cores', 'fast_cores', 'affinity', 'quota']:
        """
        What num_threads is bounded by: the machine's cores, the fast ones among them, the affinity mask or the quota.
        """

    @property
    def huge_pages(self) -> bool | None:
        """
        Whether Linux backs memory with huge pages that asks for them; None where nothing is told of it.
        """

    def __repr__(self) -> str: ...

def cpu_info(root: str = '') -> CpuInfo:
    """
    Look at the processor, the affinity mask and the cgroups as they are now. `root` stands in front of every path read below /proc and /sys, so that tests can describe a machine.
    """

class Kernels:
    """The kernels of one instruction set level."""

    @property
    def isa(self) -> str:
        """"avx512", "avx2", "neon" or "portable"."""

def kernel_levels() -> list[str]:
    """
    The instruction set levels that were built and that this machine runs, best first.
    """

def find_kernels(isa: str = '') -> Kernels:
    """
    The best kernels, or those of one level. ValueError if this machine cannot run that.
    """

class ThreadPool:
    """Threads that work through a step together."""

    def __init__(self, num_threads: int) -> None:
        """The caller's own thread is one of `num_threads`."""

    @property
    def num_threads(self) -> int:
        """Of the next run."""

    @property
    def max_threads(self) -> int:
        """What the pool was made for."""

    def resize(self, num_threads: int) -> None:
        """
        Ends or starts threads, 1 to max_threads of them. Waits for a run that is under way.
        """

class Roofline:
    """
    What this machine does at best; a multiplication and its addition are two operations.
    """

    @property
    def read_bytes_per_second(self) -> float: ...

    @property
    def int8_ops_per_second(self) -> float: ...

    @property
    def bf16_flops_per_second(self) -> float: ...

    @property
    def f32_flops_per_second(self) -> float: ...

def measure_roofline(kernels: Kernels, pool: ThreadPool) -> Roofline:
    """
    Reads memory and multiplies on all threads of the pool, for a second or two.
    """

class Exchange:
    """Gathers, on each of several processes, what each of them has computed."""

    def __init__(self, rank: int, num_ranks: int, gather: int, test: int, communicator: int, number_type: int) -> None:
        """
        `gather` and `test` are the addresses of MPI_Iallgatherv and MPI_Test, `communicator` and `number_type` (MPI_FLOAT) handles, as integers.
        """

    @property
    def rank(self) -> int: ...

    @property
    def num_ranks(self) -> int: ...

    def fail(self) -> None:
        """
        Ends a step that waits for other ranks, and all later ones, with a RuntimeError.
        """

    @property
    def has_failed(self) -> bool: ...

    @property
    def num_calls(self) -> int:
        """How often numbers were gathered."""

    @property
    def seconds(self) -> float:
        """What that took, with the time in which this rank waited for others."""

class WeightMemory:
    """Memory for matrices."""

class WeightBuffer(WeightMemory):
    """Memory for all matrices of a model."""

    def __init__(self, num_bytes: int) -> None: ...

class WeightFile(WeightMemory):
    """A nameless file for matrices, of which the system keeps what is read."""

    def __init__(self, directory: str) -> None: ...

    @property
    def num_bytes(self) -> int: ...

    @property
    def bytes_read(self) -> int:
        """What steps have read of it."""

    @property
    def bytes_found(self) -> int:
        """How much of `bytes_read` was in memory when a step asked for it."""

class WeightPacker:
    """Packs matrices on a thread of its own."""

    def __init__(self, num_bytes: int) -> None: ...

    @property
    def waiting_bytes(self) -> int:
        """Bytes of files that are yet to be packed."""

    def help(self, pool: ThreadPool) -> int:
        """
        Packs some tens of megabytes on all threads of `pool`. Returns the bytes of files that are yet to be packed; 0: all matrices are ready.
        """

class LinearWeights:
    """A weight matrix [N, K] in the kernels' layout, and its bias [N]."""

    @property
    def num_outputs(self) -> int: ...

    @property
    def num_inputs(self) -> int: ...

    @property
    def num_bytes(self) -> int: ...

    @property
    def format(self) -> str: ...

def plan_weights(format: str, num_outputs: int, num_inputs: int, bias: bool, *, activations: str = 'native') -> LinearWeights:
    """
    The shape of a matrix, without memory: a program with it has `scratch_bytes`, and does not run.
    """

def pack_weights(format: str, weights: Annotated[NDArray, dict(shape=(None, None), order='C', device='cpu', writable=False)], scales: Annotated[NDArray, dict(order='C', device='cpu', writable=False)] | None = None, zero_points: Annotated[NDArray, dict(order='C', device='cpu', writable=False)] | None = None, minimums: Annotated[NDArray, dict(order='C', device='cpu', writable=False)] | None = None, scale_factors: Annotated[NDArray, dict(order='C', device='cpu', writable=False)] | None = None, minimum_factors: Annotated[NDArray, dict(order='C', device='cpu', writable=False)] | None = None, num_inputs: int | None = None, bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, *, activations: str = 'native', pool: ThreadPool, memory: WeightMemory | None = None, packer: WeightPacker | None = None) -> LinearWeights:
    """
    Packs a matrix without changing a value. `weights` is row-major: f32, bits of f16 or bf16, int8 codes [N, K], or two 4-bit codes to a byte [N, ceil(K / 2)], the even input in the low half. `scales` are f16 [N, groups], for "int8-channel" f32 [N]; `zero_points` u8 and `minimums` f16 [N, groups]. In formats with factors, scales and minimums are s8, to be multiplied with f16 [N, ceil(K / 256)]. activations="f32" multiplies dequantized weights with x as it comes. With a `packer` the arrays are views of mapped files, and the matrix is ready when its `help` says so.
    """

def pack_block_weights(parts: Sequence[tuple[str, Annotated[NDArray, dict(shape=(None, None), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None]], bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, *, activations: str = 'native', pool: ThreadPool, memory: WeightMemory | None = None, packer: WeightPacker | None = None) -> LinearWeights:
    """
    Packs the rows of GGUF blocks of all parts: a type, its blocks [rows, bytes], and which rows of them; None: all. Other arguments are those of `pack_weights`.
    """

def quantize_weights(format: str, float_format: str, weights: Annotated[NDArray, dict(shape=(None, None), order='C', device='cpu', writable=False)], codes: Annotated[NDArray, dict(order='C', device='cpu')], scales: Annotated[NDArray, dict(order='C', device='cpu')], zero_points: Annotated[NDArray, dict(order='C', device='cpu')] | None, *, kernels: Kernels, pool: ThreadPool) -> None:
    """
    Quantizes `weights` [N, K], f32 or bits of f16 or bf16, all finite, into arrays of the shapes that `pack_weights` takes. Scales that f16 cannot hold become infinite.
    """

def block_types() -> list[str]:
    """The types that `unpack_blocks` knows, by GGUF's names."""

def unpack_blocks(block_type: str, rows: Annotated[NDArray, dict(shape=(None, None), order='C', device='cpu', writable=False)], codes: Annotated[NDArray, dict(order='C', device='cpu')], scales: Annotated[NDArray, dict(order='C', device='cpu')], minimums: Annotated[NDArray, dict(order='C', device='cpu')] | None = None, scale_factors: Annotated[NDArray, dict(order='C', device='cpu')] | None = None, minimum_factors: Annotated[NDArray, dict(order='C', device='cpu')] | None = None, *, pool: ThreadPool) -> None:
    """
    Fills the arrays of a matrix, of the shapes that `pack_weights` takes, with the numbers in `rows` of blocks [N, bytes].
    """

def blocks_are_finite(block_type: str, rows: Annotated[NDArray, dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> bool:
    """
    Whether the f16 scales, minimums and factors of `rows` of blocks [N, bytes] are finite.
    """

def pass_strings(data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], begin: int, count: int, limit: int) -> tuple[int, int]:
    """
    Passes over strings of a GGUF file from the byte `begin`: up to `count` of them, or to the first one that does not end by the byte `limit`. How many, and the byte behind them.
    """

class Texts:
    """Strings that become Python's when they are asked for."""

    def __init__(self, strings: list[str]) -> None: ...

    @staticmethod
    def read(data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], begin: int, count: int) -> Texts:
        """
        The strings that `pass_strings` passes over. UnicodeDecodeError if one of them is not UTF-8.
        """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> str: ...

    def tolist(self) -> list[str]: ...

    def sizes(self, is_wanted: Annotated[NDArray[numpy.bool_], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> list[int]:
        """
        The numbers of characters of those texts whose flags are set, each once, rising.
        """

class TokenTable:
    """Finds tokens by their texts."""

    def __init__(self, texts: Texts, is_token: Annotated[NDArray[numpy.bool_], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """
        Of those texts that are tokens and not empty; others may be the same as these.
        """

    def __len__(self) -> int: ...

    def find(self, text: str) -> int | None:
        """The place of the token with this text, None if there is none."""

    def among(self, texts: Iterable[str]) -> dict[str, int]:
        """The places of those texts that are tokens."""

    @property
    def repeated(self) -> int | None:
        """
        The first token whose text a later one has, too; None: all are different.
        """

class LoggedEvents:
    """
    Events that follow each other, as JSON: an array without its brackets, empty if `last_seq` is before `seq`. `t_us` is of the last one.
    """

    @property
    def seq(self) -> int: ...

    @property
    def last_seq(self) -> int: ...

    @property
    def t_us(self) -> int: ...

    @property
    def num_events(self) -> int: ...

    @property
    def json(self) -> bytes: ...

class StepLog:
    """
    Keeps what decode steps leave, as numbers, until somebody reads their events. It takes steps that are plain: each request decodes one token, goes on, and decoded one in the step before.
    """

    def __init__(self, block_size: int, budget: int, weight_bytes: int, bytes_per_position: float, numbers_by_window: Sequence[tuple[int, int]], bytes_per_number: float, state_bytes: int, flops_per_second: float, bytes_per_second: float, encode: Callable, show: Callable) -> None:
        """
        `encode(value)` is its JSON, `show(token_id)` the text of a token; both are called by `take`. A window of 0 is none, and so are speeds of 0.
        """

    def begin(self, now: float, step: int, output: object, taken: object, observed: object) -> int:
        """
        A step has been sampled at `now`, seconds; to be called of each. `observed` has what somebody else tells of its tokens. Returns what nobody else has to tell: TELLS_TOKENS, TELLS_BLOCKS.
        """

    def follow_blocks(self, follows: bool) -> None:
        """Whether `kv` of plain steps is kept unasked."""

    def tell_tokens(self, has_some: bool, has_all: bool) -> None:
        """Whether any tokens are to be told, and whether those of all requests."""

    @property
    def is_plain(self) -> bool:
        """Whether the step that has begun is."""

    def add_blocks(self, changes: object | None) -> None:
        """
        Has `kv` of the step kept, which is plain, with changes beside the slots that it has filled, or None.
        """

    def add_changes(self, now: float, step: int, changes: object) -> None:
        """Keeps `kv` of changes between steps."""

    def split(self, with_blocks: bool) -> bool:
        """
        Keeps the events of the latest step but `step`, and those of blocks only `with_blocks`; returns whether there are any.
        """

    def finish(self, now: float, works: list, times: object, last: float | None, expert_bytes: int) -> bool:
        """Keeps the events of the latest step, if it is plain."""

    def take_told(self) -> tuple[tuple[str, ...], float] | None:
        """The latest tokens that were kept, unless they were asked for."""

    def take_counted(self) -> tuple[tuple[str, ...], float] | None:
        """The latest tokens that were counted, unless they were asked for."""

    def take_counts(self) -> tuple[int, list[int]]:
        """
        Tokens of `add_blocks` since the last call, and for each of them the microseconds since the request's token before.
        """

    def take(self, count: int, seq: int, t_us: int, start: float) -> LoggedEvents:
        """
        Makes the events of what the oldest `count` calls have kept. `seq` is the number of the first, `t_us` the least that they are stamped, `start` the second of 0 us.
        """

def merges_of_pairs(tokens: TokenTable, pairs: Texts) -> Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C')] | None:
    """
    The merges [M, 3] that are listed as texts, their sides and their results as places of tokens; None: one has no space, or is of what is no token (csrc/listed_merges.h).
    """

def merges_of_scores(texts: Texts, scores: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], made: Annotated[NDArray[numpy.bool_], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C')]:
    """
    The merges [M, 2] of different tokens, of which those `made` by merges have at most 256 characters, as places in `texts` (csrc/scored_merges.h).
    """

def hash_blocks(parent_hash: bytes, token_ids: list[int] | tuple[int, ...], block_size: int) -> bytes:
    """
    The hashes of all full blocks, 32 bytes each, one after the other. A hash is SHA-256 of the hash of the block before (of the first block: `parent_hash`) and of the block's tokens as 8 bytes each, the lowest first.
    """

class KVCache:
    """Keys and values of all layers, in blocks."""

    def __init__(self, dtype: str, groups: Sequence[tuple[int, int, int, int]], block_size: int, num_blocks: int, num_slots: int = 1, max_step_tokens: int = 0, has_area_for_each_layer: bool = False) -> None:
        """
        Each group has its number of layers, kv-heads, head dim and window, 0 where there is none. Open keys have slots, and an area for the groups of a step.
        """

    @property
    def num_bytes(self) -> int: ...

    @property
    def num_blocks(self) -> int: ...

    @property
    def block_size(self) -> int: ...

    @property
    def bytes_per_block(self) -> int:
        """
        Of one block in all layers of the largest group, scales and padding included.
        """

    @property
    def slot_bytes(self) -> int:
        """Of the open keys of a slot in all layers; 0 in formats without."""

    def copy_slot(self, source: int, target: int) -> None:
        """Makes a slot hold what another one holds."""

    def read_slot(self, slot: int, data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]) -> None:
        """
        Fills `data` [slot_bytes] with what a slot holds, group after group and layer after layer.
        """

    def write_slot(self, slot: int, data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """Makes a slot hold what `read_slot` gave, of a cache of the same shape."""

    def copy_block(self, source_id: int, target_id: int) -> None:
        """Makes a block hold what another one holds."""

    def read_block(self, block_id: int, data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]) -> None:
        """
        Fills `data` [bytes_per_block] with what a block holds, layer after layer.
        """

    def write_block(self, block_id: int, data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """
        Makes a block hold what `read_block` gave, of a cache of the same shape.
        """

def kv_bytes_per_block(dtype: str, groups: Sequence[tuple[int, int, int, int]], block_size: int) -> int:
    """
    Bytes of one block in all layers of the largest group, scales and padding included.
    """

class Draw:
    """What one token is drawn by. Borrows its arrays."""

    def __init__(self, seed: int, stream: int, position: int, sharpness: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, typical_p: float = 1.0, allowed: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, forbidden: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, bias_ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, biases: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, text: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, num_prompt_tokens: int = 0, repetition_penalty: float = 1.0, presence_penalty: float = 0.0, frequency_penalty: float = 0.0) -> None:
        """
        `sharpness` is log2(e) / temperature, or 0: greedily. `allowed` has a bit for each token, the lowest of a word first. `text` is prompt and output, for penalties.
        """

class RowSummarizer:
    """Summarizes rows of logits, one at a time; keeps its memory."""

    def __init__(self, kernels: Kernels, pool: ThreadPool) -> None: ...

    def summarize(self, logits: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], token: int, num_likeliest: int, sharpness: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> tuple[float, float, float, int, bool, tuple[int, float], tuple[int, float], tuple[int, float], tuple[int, float], list[tuple[int, bool]]] | None:
        """
        The fields of backends.base.RowSummary; None where a logit is not finite.
        """

class RowSet(enum.Enum):
    """Which rows a buffer has."""

    TOKENS = 0
    """All of the step."""

    LOGITS = 1
    """Those whose logits are wanted."""

class Indices(enum.Enum):
    """Where an embedding finds its rows' numbers."""

    TOKEN_IDS = 0

    POSITIONS = 1

class Program:
    """
    A decoder's forward as a flat list of ops over buffers of rows. Operands are (buffer, first column).
    """

    def __init__(self, kernels: Kernels, pool: ThreadPool, max_rows: int, small_step_bytes: int) -> None:
        """
        Steps that read fewer bytes of weights than `small_step_bytes` (more, the more rows they have) stay on the caller's thread.
        """

    def add_buffer(self, rows: RowSet, width: int) -> int: ...

    def input(self, input: int, width: int, y: tuple[int, int]) -> None: ...

    def embed(self, indices: Indices, table: LinearWeights, scale: float, y: tuple[int, int], exchange: Exchange | None = None, starts: Sequence[int] = []) -> None:
        """
        With an `exchange`, `table` has the rows of this rank, and rank r those from starts[r] to starts[r + 1].
        """

    def exchange(self, rows: RowSet, y: tuple[int, int], exchange: Exchange, parts: Sequence[tuple[int, int, int]]) -> None:
        """
        Gives all ranks the columns (rank, first column from y's own on, width) that each has computed.
        """

    def linear(self, rows: RowSet, x: tuple[int, int], weights: LinearWeights, y: tuple[int, int], add_to_y: bool, notes_largest: bool = False) -> None: ...

    def rms_norm(self, rows: RowSet, x: tuple[int, int], weight: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], eps: float, num_vectors: int, y: tuple[int, int]) -> None: ...

    def layer_norm(self, rows: RowSet, x: tuple[int, int], weight: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], eps: float, num_vectors: int, y: tuple[int, int]) -> None: ...

    def rotations(self, index: int, dim: int, factor: float, beta: float, period: int, y: tuple[int, int]) -> None: ...

    def rope(self, rows: RowSet, x: tuple[int, int], rotations: tuple[int, int], num_heads: int, head_dim: int, dim: int, y: tuple[int, int]) -> None: ...

    def activate(self, rows: RowSet, x: tuple[int, int], activation: str, width: int, y: tuple[int, int]) -> None: ...

    def gated_activate(self, rows: RowSet, x: tuple[int, int], activation: str, width: int, y: tuple[int, int]) -> None: ...

    def route(self, rows: RowSet, x: tuple[int, int], bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, num_experts: int, num_chosen: int, router: str, normalize: bool, scale: float, y: tuple[int, int]) -> None: ...

    def multiply(self, rows: RowSet, x: tuple[int, int], gate: tuple[int, int], is_one: bool, function: str, width: int, y: tuple[int, int]) -> None: ...

    def scale(self, rows: RowSet, x: tuple[int, int], factors: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], width: int, y: tuple[int, int]) -> None: ...

    def causal_convolution(self, x: tuple[int, int], weight: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, num_channels: int, first: int, y: tuple[int, int]) -> None: ...

    def gated_delta_net(self, qkv: tuple[int, int], b: tuple[int, int], a: tuple[int, int], log_decay: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], step_bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], num_key_heads: int, num_value_heads: int, key_dim: int, value_dim: int, tiled: bool, first: int, y: tuple[int, int]) -> None: ...

    def add(self, rows: RowSet, a: tuple[int, int], b: tuple[int, int], width: int, y: tuple[int, int]) -> None: ...

    def softcap(self, rows: RowSet, x: tuple[int, int], cap: float, width: int, y: tuple[int, int]) -> None: ...

    def largest(self, x: tuple[int, int], width: int) -> None: ...

    def draw(self, x: tuple[int, int], width: int) -> None: ...

    def gather(self, x: tuple[int, int], width: int, y: tuple[int, int]) -> None: ...

    def store_kv(self, layer: int, k: tuple[int, int], v: tuple[int, int], num_kv_heads: int, head_dim: int, group: int = 0) -> None:
        """Stores keys and values of a layer of a group of the cache."""

    def finish(self, output: int | None) -> None:
        """Plans the memory; `output` is the buffer that callers get, if any."""

    @property
    def max_rows(self) -> int: ...

    @property
    def output_width(self) -> int: ...

    @property
    def output_rows(self) -> RowSet: ...

    @property
    def scratch_bytes(self) -> int: ...

    @property
    def stage_names(self) -> list[str]:
        """What runs between two barriers."""

    def run(self, output: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], token_ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], positions: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], slot_mapping: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu', writable=False)], query_start: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], seq_lens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], block_tables: Annotated[NDArray[numpy.int32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], logits_indices: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], state_slots: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], frequencies: Sequence[Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)]], inputs: Sequence[Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)]], kv_cache: KVCache | None = None, states: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')] | None = None, stage_seconds: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu')] | None = None, draws: Sequence[tuple[int, Draw]] = []) -> tuple[list[int], list[int], int]:
        """
        One step. `stage_seconds` is filled if given. Returns where each row of logits is largest, the first of equals, the first NaN if there is one (nothing if the program does not note it); and the token of each of `draws`, pairs of a row of logits and a Draw in order of rows: -1 where the request's parameters or logits leave none; and the bytes of experts' weights that the step read.
        """

class ProgramAttention:
    """Adds attention over the paged cache to a program."""

    def __init__(self, program: Program, max_requests: int, max_seq_len: int, num_heads: int, num_kv_heads: int, head_dim: int) -> None: ...

    def paged_attention(self, rows: RowSet, layer: int, q: tuple[int, int], scale: float, sliding_window: int | None, softcap: float | None, sinks: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, y: tuple[int, int], group: int = 0) -> None: ...

class ProgramExperts:
    """Adds mixtures of experts to a program."""

    def __init__(self, program: Program, num_experts: int, num_chosen: int, exchange: Exchange | None = None, starts: Sequence[int] = []) -> None:
        """
        With an `exchange`, rank r computes the experts from starts[r] to starts[r + 1].
        """

    def expert_mlp(self, rows: RowSet, x: tuple[int, int], weights: tuple[int, int], gate: Sequence[LinearWeights], up: Sequence[LinearWeights], down: Sequence[LinearWeights], activation: str, y: tuple[int, int], add_to_y: bool) -> None: ...
