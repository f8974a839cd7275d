"""What an engine and its stages tell each other, as msgpack: one message in a frame.

Each message of the engine but `Alive` has one reply, in the same order.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from pellucid.backends.ops import ForwardBatch, HostArray, IntArray
from pellucid.execution.attention_lens import AttentionCall
from pellucid.facts.model_config import ModelConfig
from pellucid.inputs.config import EngineConfig

# Rows of a longer step travel in pieces of so many, so that stages compute different pieces at the same time.
ROWS_TOGETHER = 512
ROW_TYPE = np.dtype("<f4")
_INT32, _INT64 = np.dtype("<i4"), np.dtype("<i8")


# ---- of the engine


class Prepare(msgspec.Struct, tag=True):
    """The first message but `Alive`: these are the engine's settings."""

    config: EngineConfig


class Load(msgspec.Struct, tag=True):
    """Load the layers first .. stop - 1."""

    first: int
    stop: int


class Allocate(msgspec.Struct, tag=True):
    """Make a KV cache, which later messages name by this number: the engine's own, or one beside it."""

    cache: int
    num_blocks: int
    num_state_slots: int
    block_size: int
    kv_cache_dtype: str


class Free(msgspec.Struct, tag=True):
    """Forget a KV cache, if there is one of this number."""

    cache: int


class Compute(msgspec.Struct, tag=True):
    """A step, with the block tables of the groups that the stage has layers of. Arrays are bytes, little-endian.

    Attributes:
        rows: [T, hidden] f32 of the stage before; None: this stage is the first.
        shows_attention: whether the reply says what the last row attends to.
    """

    cache: int
    token_ids: bytes
    positions: bytes
    rope_lens: bytes
    slot_mapping: bytes
    query_start: bytes
    seq_lens: bytes
    block_tables: bytes
    logits_indices: bytes
    state_slots: bytes
    num_groups: int
    rows: memoryview | None
    shows_attention: bool = False


class CopyBlocks(msgspec.Struct, tag=True):
    cache: int
    source_ids: list[int]
    target_ids: list[int]


class ReadBlocks(msgspec.Struct, tag=True):
    cache: int
    block_ids: list[int]


class WriteBlocks(msgspec.Struct, tag=True):
    cache: int
    block_ids: list[int]
    contents: list[bytes]


class CopyState(msgspec.Struct, tag=True):
    cache: int
    source_slot: int
    target_slot: int


class ReadState(msgspec.Struct, tag=True):
    cache: int
    slot: int


class WriteState(msgspec.Struct, tag=True):
    cache: int
    slot: int
    content: bytes


class Alive(msgspec.Struct, tag=True):
    """Both sides send it, and expect it of each other: a machine that lost its power says nothing else. It is an
    engine's first message, too."""


BlockMessage = CopyBlocks | ReadBlocks | WriteBlocks | CopyState | ReadState | WriteState
ToStage = Prepare | Load | Allocate | Free | Compute | BlockMessage | Alive


# ---- of a stage


class Hello(msgspec.Struct, tag=True):
    """The first message, which nobody has asked for.

    Attributes:
        version: of pellucid.
    """

    version: str


class Prepared(msgspec.Struct, tag=True):
    """Attributes:
    available: bytes of memory for weights and blocks; None: the system does not report it.
    identity: `EngineIdentity.facts` of the whole model with the engine's settings.
    """

    available: int | None
    identity: dict[str, Any]


class Loaded(msgspec.Struct, tag=True):
    """The sizes of the part, in bytes.

    Attributes:
        available: once its weights are loaded; None: the system does not report it.
        scratch_bytes: of activations between the ops of the largest step.
        layer_bytes, expert_bytes: as in `StepWeights`.
    """

    available: int | None
    weight_bytes: int
    scratch_bytes: int
    bytes_per_block: int
    bytes_per_state: int
    layer_bytes: int
    expert_bytes: int


class Seen(msgspec.Struct, array_like=True):
    """An `AttentionCall`, with f32 numbers.

    Attributes:
        q, output: [H, D].
        sinks: [H].
    """

    num_heads: int
    q: bytes
    output: bytes
    scale: float
    sliding_window: int | None
    softcap: float | None
    sinks: bytes | None


class Rows(msgspec.Struct, tag=True):
    """The result of `Compute`.

    Attributes:
        rows: [T, hidden] f32; empty where the part has the last layers.
        expert_bytes: of the experts' weights that the step read.
        seen: of the last row in each layer with attention, if it was asked for.
    """

    rows: memoryview
    expert_bytes: int
    seen: list[Seen] = []


class Contents(msgspec.Struct, tag=True):
    """The result of `ReadBlocks` and `ReadState`."""

    contents: list[bytes]


class Done(msgspec.Struct, tag=True):
    """The result of all else."""


class Failed(msgspec.Struct, tag=True):
    """What was asked for is not possible."""

    error: str


FromStage = Hello | Prepared | Loaded | Rows | Contents | Done | Failed | Alive

_encoder = msgspec.msgpack.Encoder()
_to_stage = msgspec.msgpack.Decoder(ToStage)
_from_stage = msgspec.msgpack.Decoder(FromStage)


def encode(message: ToStage | FromStage) -> bytes:
    return _encoder.encode(message)


def decode_to_stage(frame: bytes | bytearray) -> ToStage:
    """Raises ValueError for anything else."""
    try:
        message: ToStage = _to_stage.decode(frame)
    except msgspec.DecodeError as error:
        raise ValueError(f"no message of an engine: {error}") from None
    return message


def decode_from_stage(frame: bytes | bytearray) -> FromStage:
    """Raises as `decode_to_stage` does."""
    try:
        message: FromStage = _from_stage.decode(frame)
    except msgspec.DecodeError as error:
        raise ValueError(f"no message of a stage: {error}") from None
    return message


def compute_message(
    batch: ForwardBatch,
    groups: Sequence[int],
    rows: memoryview | None,
    cache: int,
    shows_attention: bool = False,
) -> Compute:
    """A step as a message.

    Args:
        groups: of layers, of the whole model, that the stage has layers of.
        rows: of the stage before.
        cache, shows_attention: as in `Compute`.
    """
    own = list(groups)
    return Compute(
        cache,
        _bytes(batch.token_ids, _INT32),
        _bytes(batch.positions, _INT32),
        _bytes(batch.rope_lens, _INT32),
        _bytes(batch.slot_mapping[own], _INT64),
        _bytes(batch.query_start, _INT32),
        _bytes(batch.seq_lens, _INT32),
        _bytes(batch.block_tables[own], _INT32),
        _bytes(batch.logits_indices, _INT32),
        _bytes(batch.state_slots, _INT32),
        len(own),
        rows,
        shows_attention,
    )


def seen_of(call: AttentionCall) -> Seen:
    """What a layer's attention showed, as a message."""

    def sent(array: HostArray) -> bytes:
        return np.ascontiguousarray(array, ROW_TYPE).tobytes()

    sinks = None if call.sinks is None else sent(call.sinks)
    return Seen(
        num_heads=len(call.q),
        q=sent(call.q),
        output=sent(call.output),
        scale=call.scale,
        sliding_window=call.sliding_window,
        softcap=call.softcap,
        sinks=sinks,
    )


def call_of(seen: Seen) -> AttentionCall:
    """What a message says of a layer's attention."""
    q, output = (
        np.frombuffer(each, ROW_TYPE).reshape(seen.num_heads, -1) for each in (seen.q, seen.output)
    )
    sinks = None if seen.sinks is None else np.frombuffer(seen.sinks, ROW_TYPE)
    return AttentionCall(q, output, seen.scale, seen.sliding_window, seen.softcap, sinks)


def batch_of(message: Compute, hidden_size: int) -> ForwardBatch:
    """The step of a message.

    Raises:
        ValueError: the sizes of its arrays contradict each other.
    """
    num_groups = message.num_groups
    if num_groups < 1:
        raise ValueError(f"num_groups={num_groups}: must be at least 1")
    token_ids, seq_lens = _array(message.token_ids, _INT32), _array(message.seq_lens, _INT32)
    tables = _array(message.block_tables, _INT32)
    num_tokens, num_requests = len(token_ids), len(seq_lens)
    batch = ForwardBatch(
        token_ids=token_ids,
        positions=_array(message.positions, _INT32, num_tokens),
        rope_lens=_array(message.rope_lens, _INT32, num_tokens),
        slot_mapping=_array(message.slot_mapping, _INT64, num_groups * num_tokens).reshape(
            num_groups, -1
        ),
        query_start=_array(message.query_start, _INT32, num_requests + 1),
        seq_lens=seq_lens,
        block_tables=_grid(tables, num_groups, num_requests),
        logits_indices=_array(message.logits_indices, _INT32),
        state_slots=_array(message.state_slots, _INT32, num_requests),
        received=None
        if message.rows is None
        else _array(message.rows, ROW_TYPE, num_tokens * hidden_size).reshape(-1, hidden_size),
    )
    starts = batch.query_start
    if not num_tokens or starts[0] != 0 or starts[-1] != num_tokens or (np.diff(starts) < 1).any():
        raise ValueError("query_start: must divide the tokens, at least one, among the requests")
    return batch


def row_bytes(config: ModelConfig, max_step_tokens: int) -> int:
    """Memory for the rows that a part of a model gets from the part before, and gives to the next one: all that a step
    may have may have come, and a piece is there as numbers and as a frame when it goes."""
    num_received = 0 if config.is_first else max_step_tokens
    num_sent = 0 if config.is_last else 2 * min(ROWS_TOGETHER, max_step_tokens)
    return (num_received + num_sent) * config.hidden_size * ROW_TYPE.itemsize


def _bytes(array: IntArray, dtype: np.dtype[Any]) -> bytes:
    return np.ascontiguousarray(array, dtype).tobytes()


def _array(content: bytes | memoryview, dtype: np.dtype[Any], length: int | None = None) -> Any:
    """The numbers of an array [length]."""
    if len(content) % dtype.itemsize or length not in (None, len(content) // dtype.itemsize):
        raise ValueError(f"an array of {len(content)} bytes: must be {length} numbers of {dtype}")
    return np.frombuffer(content, dtype)


def _grid(tables: Any, num_groups: int, num_requests: int) -> Any:
    """[G, B, blocks]."""
    if not num_requests or len(tables) % (num_groups * num_requests):
        raise ValueError("block_tables: must have as many blocks for each request and group")
    return tables.reshape(num_groups, num_requests, -1)
