"""What a front and its replicas tell each other, as msgpack. A frame is a list of these messages."""

from collections.abc import Sequence
from typing import Any

import msgspec

from pellucid.inputs.config import EngineConfig
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.outputs import LogprobsAt


class CompletionSoFar(msgspec.Struct):
    """As `CompletionOutput`, without the text, which follows from the tokens."""

    token_ids: list[int]
    logprobs: list[LogprobsAt] | None
    cumulative_logprob: float | None
    finish_reason: str | None
    stop_reason: int | str | None


# ---- to a replica


class Start(msgspec.Struct, tag=True):
    """The first message: load an engine.

    Attributes:
        cores: numbers of the CPUs to run on; empty: all.
        waits_for_stages: whether a stage that is away is waited for, because a replica before had it.
    """

    config: EngineConfig
    max_requests: int
    cores: list[int]
    waits_for_stages: bool = False


class Add(msgspec.Struct, tag=True):
    """A request: the arguments of `AsyncLLMEngine.add_request`.

    Attributes:
        params: with a seed.
        outputs: what the caller has of each completion.
    """

    request_id: str
    text: str | None
    is_chat: bool
    token_ids: list[int]
    end_token_ids: list[int]
    arrival_time: float
    encoded_time: float
    params: SamplingParams
    priority: int
    cache_salt: str | None
    caller: str
    caller_weight: float
    outputs: list[CompletionSoFar]
    prompt_logprobs: list[LogprobsAt | None] | None


class Abort(msgspec.Struct, tag=True):
    request_id: str


class Ask(msgspec.Struct, tag=True):
    """Wants an `Answer` with the same number."""

    number: int
    with_blocks: bool = False


class Stop(msgspec.Struct, tag=True):
    """The last message."""


ToReplica = Start | Add | Abort | Ask | Stop


# ---- from a replica


class Ready(msgspec.Struct, tag=True):
    """The engine runs.

    Attributes:
        identity: `EngineIdentity.facts`.
        now: of the replica's clock, in seconds.
    """

    identity: dict[str, Any]
    num_threads: int | None
    now: float


class CannotStart(msgspec.Struct, tag=True):
    error: str


class Added(msgspec.Struct, tag=True):
    request_id: str


class Refused(msgspec.Struct, tag=True):
    """The engine does not take a request."""

    request_id: str
    error: str


class Delta(msgspec.Struct, tag=True):
    """A `CompletionDelta`.

    Attributes:
        cumulative_logprob: of a completion that has ended.
    """

    request_id: str
    index: int
    text: str
    token_ids: list[int]
    logprobs: list[LogprobsAt] | None
    finish_reason: str | None
    stop_reason: int | str | None
    cumulative_logprob: float | None


class Progress(msgspec.Struct, tag=True):
    """The metrics of a request on this replica so far.

    Attributes:
        has_ended: nothing more is said of the request.
        prompt_logprobs: once they are complete, said once.
    """

    request_id: str
    has_ended: bool
    first_scheduled_time: float | None
    num_cached_tokens: int
    num_processed_tokens: int
    flops: int
    kv_cache_bytes: int
    num_preemptions: int
    prompt_logprobs: list[LogprobsAt | None] | None


class BlocksChanged(msgspec.Struct, tag=True):
    """Blocks have come into the prefix index, or left it: label and whether it came, in order."""

    changes: list[tuple[int, bool]]


class OtherFronts(msgspec.Struct, tag=True):
    """What the replica has to do for other fronts.

    Attributes:
        num_requests: unfinished.
        num_tokens: of prompts that are not computed yet.
    """

    num_requests: int
    num_tokens: int


class Emitted(msgspec.Struct, tag=True):
    """An event of the engine, about itself or about one request: its name and its fields."""

    name: str
    fields: dict[str, Any]


class Alive(msgspec.Struct, tag=True):
    """Comes each second while there are requests."""

    seconds_without_step: float


class Answer(msgspec.Struct, tag=True):
    """The state of an engine between two steps.

    Attributes:
        usage: blocks: all, used, cached.
        speculation: the fields of `SpeculationStatistics`; None: it is off.
        blocks: labels of the blocks in the prefix index, if they were asked for.
    """

    number: int
    usage: tuple[int, int, int]
    speculation: dict[str, Any] | None
    num_threads: int | None
    blocks: list[int]


FromReplica = (
    Ready
    | CannotStart
    | Added
    | Refused
    | Delta
    | Progress
    | BlocksChanged
    | OtherFronts
    | Emitted
    | Alive
    | Answer
)

_encoder = msgspec.msgpack.Encoder()
_to_replica = msgspec.msgpack.Decoder(list[ToReplica])
_from_replica = msgspec.msgpack.Decoder(list[FromReplica])


def encode(messages: Sequence[ToReplica | FromReplica]) -> bytes:
    return _encoder.encode(messages)


def decode_to_replica(frame: bytes) -> list[ToReplica]:
    return _to_replica.decode(frame)


def decode_from_replica(frame: bytes) -> list[FromReplica]:
    return _from_replica.decode(frame)
