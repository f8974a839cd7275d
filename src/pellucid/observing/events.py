"""The types of events, version 1: everything about an engine that can be observed.

A field's name is its name on the wire, with the unit as a suffix: _us microseconds, _tok tokens,
_blocks KV blocks, _bytes, _flops operations, _frac a share of 1; `req` is the id of a generation
("my-request/0"). A field that is None is left out. Within a version fields are added, never changed
or removed. docs/events.md describes each of them, schema/events.v1.json is the same for machines.
"""

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

import msgspec

VERSION = 1

T = TypeVar("T")


def to_us(seconds: float) -> int:
    """Microseconds, as events have durations."""
    return round(seconds * 1e6)


class Level(IntEnum):
    """The level of detail of events; each level includes those below it."""

    STAT = 0  # the engine and each request: a handful of events per request
    STEP = 1  # each step and the blocks it moves
    TEXT = 2  # each token, and its candidates as far as little time allows
    TOKEN = 3  # each token with its candidates, which cost a pass over the logits


def _json_name(name: str) -> str:
    """The name in JSON of a field: `from_` is `from`, a word that Python keeps for itself."""
    return name.rstrip("_")


def _always(default: T) -> T:
    """A default that JSON has as well: of plain defaults, which are None, it has none."""
    return msgspec.field(default_factory=lambda: default)


class Part(msgspec.Struct, frozen=True, omit_defaults=True, rename=_json_name, gc=False):
    """Base of events and of what they consist of."""


class _Tag:
    """The tag of a class, which its JSON begins with."""

    def __get__(self, _: object, owner: type[msgspec.Struct]) -> str:
        return str(owner.__struct_config__.tag)


class Event(Part, frozen=True, tag_field="ev"):
    """Base of all events.

    Attributes:
        ev: the name on the wire.
        level: subscribers at this level and above get it.
    """

    ev: ClassVar[_Tag] = _Tag()
    level: ClassVar[Level] = Level.STAT

    def fields_as_dict(self) -> dict[str, Any]:
        """The event's fields as in JSON, without its name and the envelope."""
        fields: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        del fields["ev"]
        return fields

    def encode(self) -> bytes:
        """The event as JSON, its name first, without the envelope."""
        return msgspec.json.encode(self)


# (time, step, function, arguments): events that `function(*arguments)` makes.
Note: TypeAlias = tuple[float, int, Callable[..., Iterable[Event]], tuple[object, ...]]
LOGGED = None  # in place of a note: the log of steps has it
TELLS_TOKENS, TELLS_BLOCKS = 1, 2  # added up: what the log of steps tells of a step
# Requests that got a token, and when, in seconds.
Tokens: TypeAlias = tuple[tuple[str, ...], float]


class EventRecord(msgspec.Struct, frozen=True, gc=False):
    """An event and its envelope, made when it is emitted.

    Attributes:
        seq: 0, 1, 2 ... without gaps over all events of an engine, whatever their level.
        t_us: since the engine's start, monotonic.
        step: the engine's current step, or between steps the last one; 0 before the first.
    """

    seq: int
    t_us: int
    step: int
    event: Event

    @property
    def last_seq(self) -> int:
        return self.seq

    @property
    def num_events(self) -> int:
        return 1

    def encode(self) -> bytes:
        """The wire form, as JSON."""
        envelope = b'{"v":%d,"seq":%d,"t_us":%d,"step":%d,'
        return envelope % (VERSION, self.seq, self.t_us, self.step) + self.event.encode()[1:]

    def as_dict(self) -> dict[str, Any]:
        """The wire form."""
        fields: dict[str, Any] = msgspec.json.decode(self.encode())
        return fields


# ---- the engine


class HelloModel(Part, frozen=True):
    name: str
    n_layers: int
    n_q: int  # query heads of the first layer
    n_kv: int  # its kv-heads
    head_dim: int  # of its heads
    vocab: int
    weight_bytes: int  # that a step with logits reads; of experts, all
    dtype: str  # format of the matrices
    layer_kinds: tuple[Literal["full", "sliding", "recurrent"], ...]


class HelloKV(Part, frozen=True):
    block_tok: int
    n_blocks: int
    block_bytes: int  # all layers of a group, K and V, scales included
    dtype: str
    windows: tuple[int, ...] = _always((0,))  # tokens that each group of layers sees; 0: all


class HelloDevice(Part, frozen=True):
    name: str
    backend: str
    threads: int | None = None  # None: as many as suit the machine
    bw_bytes_s: float | None = None  # None: not measured
    flops_s: float | None = None  # measured, in the arithmetic of the weights


class HelloLimits(Part, frozen=True):
    max_seqs: int
    max_batched_tok: int
    max_model_tok: int


class Hello(Event, frozen=True, tag="hello"):
    """Describes the engine. It is the first event that a subscriber gets, and is sent to all again whenever another
    subscriber joins: events with the same `boot_id` are identical."""

    boot_id: str
    t0_unix_us: int  # wall-clock time of t_us = 0
    engine: str  # name and version
    model: HelloModel
    kv: HelloKV
    device: HelloDevice
    limits: HelloLimits
    use_kv_cache: bool
    prefix_caching: bool
    speculation: str = _always("off")  # as in EngineConfig
    # What answers depend on besides requests; None: nobody has asked for it yet.
    identity: str | None = None


class Load(Event, frozen=True, tag="load"):
    """The progress of loading."""

    stage: Literal["read"]
    item: str
    done_bytes: int
    total_bytes: int
    dur_us: int  # since loading began


class Warn(Event, frozen=True, tag="warn"):
    """A warning for people; the engine continues.

    Attributes:
        code: one word for machines.
        hint: what to do about it.
    """

    code: str
    msg: str
    hint: str | None = None
    req: str | None = None


class Percentiles(Part, frozen=True):
    """Of measured times: half, 95 % and 99 % of them are at most so many microseconds."""

    p50: int
    p95: int
    p99: int


class Stat(Event, frozen=True, tag="stat"):
    """Speeds and counts of the engine, twice a second while it steps and has subscribers.

    Attributes:
        running, waiting: requests.
        used, cached, free: blocks, as in `kv`.
        in_tok_s, out_tok_s: prompt positions computed and output tokens a second, since the last one.
        hit_frac: of the prompts of requests admitted since the last one, the share found in the prefix
            cache; None: none was admitted.
        dur_us: since the last one.
        obs_frac: of this time, the share that events have cost the engine.
        ttft_us: from arrivals to first tokens, since the last one; None: there was none.
        itl_us: between tokens of a completion, since the last one; None: there was none.
    """

    running: int
    waiting: int
    used: int
    cached: int
    free: int
    in_tok_s: float
    out_tok_s: float
    dur_us: int
    hit_frac: float | None = None
    obs_frac: float | None = None
    ttft_us: Percentiles | None = None
    itl_us: Percentiles | None = None


class Gap(Event, frozen=True, tag="gap"):
    """Events that a reader has missed because it was too slow. Only an `EventFeed` makes it.

    Attributes:
        from_seq, to_seq: the first and the last of them.
        resync: whether the reader should take a snapshot.
    """

    from_seq: int
    to_seq: int
    resync: bool


# ---- requests

RequestState = Literal[
    "waiting", "prefill", "decode", "preempted", "swapped", "done", "cancelled", "failed"
]


class SamplingSummary(Part, frozen=True):
    """The sampling parameters that people ask about."""

    temp: float
    top_k: int
    top_p: float
    min_p: float
    rep: float
    seed: int


class RequestAdded(Event, frozen=True, tag="req.add"):
    """A generation has been accepted and waits.

    Attributes:
        parent: the caller's request, of which it computes one of several completions; None if it is
            the only one.
        max_new_tok: the smaller of max_tokens and of what the context has room for.
        prio: lower is sooner.
        arrive_us: since the engine's start: when the caller asked, before its text was tokenized.
        num: counts the generations of an engine, from 1.
        caller: whose it is; None: the engine serves one caller.
    """

    req: str
    prompt_tok: int
    max_new_tok: int
    prio: int
    params: SamplingSummary
    arrive_us: int
    parent: str | None = None
    prompt_ids: tuple[int, ...] | None = None
    num: int | None = None
    caller: str | None = None


class RequestStateChanged(Event, frozen=True, tag="req.state"):
    """A generation has changed its state, or stays in its state for another reason.

    Attributes:
        reason: why, in a word: "admitted", "no_blocks", "no_seats", "behind_own_requests",
            "behind_other_callers", "computed", "max_tokens" ...
        need_blocks: blocks that it was given, or that are missing for it.
        free_blocks: blocks that are free now.
        blocked_by: who holds what it needs; after a preemption, for whom.
        finish: at the end, why it ended.
    """

    req: str
    from_: RequestState
    to: RequestState
    reason: str
    need_blocks: int | None = None
    free_blocks: int | None = None
    blocked_by: tuple[str, ...] | None = None
    finish: Literal["eos", "length", "stop", "cancel", "error"] | None = None


MissWhy = Literal[
    "never_seen", "evicted", "differs", "partial_block", "disabled", "recurrent", "salt"
]


class PrefixMatched(Event, frozen=True, tag="req.prefix"):
    """The part of its text that a generation found in the prefix cache on admission, and why not more.

    Attributes:
        hit_tok: positions found, `loaded_tok` of them on disk.
        miss_at_tok: the first position that was not found; None if nothing was missing.
        near_req: if it differs, who computed the block that agrees longest.
        diff_at_tok: the first position whose token differs from that block's.
        diff_ids: the tokens there: ours, theirs.
        evicted_ago: blocks evicted since the one that is missed.
        snapshot_at_tok: if a snapshot of recurrent states is missing, the end of the cached blocks: a snapshot is
            taken there.
    """

    req: str
    hit_tok: int
    hit_blocks: int
    miss_at_tok: int | None = None
    miss_why: MissWhy | None = None
    near_req: str | None = None
    diff_at_tok: int | None = None
    diff_ids: tuple[int, int] | None = None
    evicted_ago: int | None = None
    snapshot_at_tok: int | None = None
    loaded_tok: int | None = None


class Preempted(Event, frozen=True, tag="preempt"):
    """A generation has given blocks back to another one.

    Attributes:
        mode: whether what it lost is computed again or comes back from the swap file.
        lost_tok: positions it no longer has in the cache.
        cause_req: who needed the blocks.
        n_preempt: how often this has happened to it now.
    """

    req: str
    mode: Literal["recompute", "swap"]
    lost_tok: int
    freed_blocks: int
    cause_req: str
    n_preempt: int


class RequestLedger(Event, frozen=True, tag="req.ledger"):
    """Where a generation's wall time went; the parts add up to `total_us`. `pellucid.observing.ledger` defines
    them.

    Attributes:
        stalled_by: whose prompts its tokens waited for, and how long: (request, us).
        blocked_by: who was running while it waited in the queue: (request, us).
        lost_tok: positions computed again after preemptions.
    """

    req: str
    queue_us: int
    tokenize_us: int
    prefill_us: int
    decode_us: int
    stall_us: int
    preempt_us: int
    sample_us: int
    send_us: int
    other_us: int
    total_us: int
    lost_tok: int
    stalled_by: tuple[tuple[str, int], ...]
    blocked_by: tuple[tuple[str, int], ...]
    draft_us: int = _always(0)


class Speculating(Event, frozen=True, tag="spec"):
    """Steps have drafts from now on, or none.

    Attributes:
        reason: why, with what was measured.
        accept_frac: share of the drafts that were right lately, of all requests.
    """

    reason: str
    accept_frac: float | None = None


# ---- steps


class Step(Event, frozen=True, tag="step"):
    """A step that has ended.

    Attributes:
        kind: whether its tokens were prompts (or computed again), each the newest of its request, or
            both.
        batch: of each request (id, tokens in this step, tokens of context including them).
        budget_tok: tokens that the step could have had.
        idle_us: since the step before it ended.
        sched_us, fwd_us, sample_us, emit_us: its four parts; they and nothing else make up the step. Where other
            machines compute first layers, steps overlap, and `fwd_us` has the wait for the steps before.
        draft_us: of `sched_us`, the time to make drafts; None if the step has none.
        w_bytes: weights it read.
        kv_read_bytes, kv_write_bytes: K and V.
        bound: what limits the forward at the measured ceilings; None where they were not measured.
        pred_us: forward at the ceilings.
    """

    level = Level.STEP

    kind: Literal["prefill", "decode", "mixed"]
    batch: tuple[tuple[str, int, int], ...]
    budget_tok: int
    sched_us: int
    fwd_us: int
    sample_us: int
    emit_us: int
    idle_us: int
    flops: int
    w_bytes: int
    kv_read_bytes: int
    kv_write_bytes: int
    bound: Literal["compute", "memory"] | None = None
    pred_us: int | None = None
    draft_us: int | None = None


# (op, block, a, b): A alloc (request, index in its table), F fill (tokens in it now), S share
# (request, owners now), R release (owners now), C copy (source block, request), H seal (first 16 hex
# digits of the hash), E evict, O swap out (slot), I swap in (slot), L load from disk (request).
BlockOpRow = tuple[str, int, int | str | None, int | str | None]


class BlockOps(Event, frozen=True, tag="kv"):
    """The changes of blocks since the last event of this kind, in order, and the counts after them.

    Attributes:
        used: blocks with an owner.
        cached: blocks without an owner that can still be found.
        free: blocks without an owner and without contents.
        waste_tok: slots of used blocks that hold no token.
        groups: for each op, the group of layers whose block table changes; left out: group 0. Blocks that leave
            the window of a group are released (R), and their entries of the table are empty.
    """

    level = Level.STEP

    ops: tuple[BlockOpRow, ...]
    used: int
    cached: int
    free: int
    waste_tok: int
    groups: tuple[int, ...] | None = None


# (op, slot, request, tokens): T a snapshot was taken of a request's states after so many tokens, U a request
# goes on from it, E it is forgotten: evicted, or replaced by a later one of the same output.
StateOpRow = tuple[str, int, str | None, int | None]


class StateOps(Event, frozen=True, tag="states"):
    """What happened to snapshots of recurrent states since the last event of this kind, in order.

    Attributes:
        used: slots that hold a snapshot, after it.
        slots: for snapshots.
    """

    level = Level.STEP

    ops: tuple[StateOpRow, ...]
    used: int
    slots: int


class DraftRound(Event, frozen=True, tag="draft"):
    """A step has verified a generation's drafts.

    The probabilities are there if a subscriber wants the generation's tokens (level `TOKEN`). They take
    the sampling parameters into account. There are as many as drafts, or fewer if the parameters leave no
    token after a wrong draft.

    Attributes:
        draft: the token ids of the drafts.
        n_right: how many of these the model chose as well, from the first on.
        chosen: the token that the model chose instead of the first wrong draft; None if no draft was wrong.
        pos: position of the first draft in the sequence, the prompt included.
        p_target: probability of each draft by the model, given the drafts before it.
        p_draft: probability of each draft by its proposer; 1 for prompt lookup.
        overlap: for each draft, the sum of min(p, q) over all tokens, where p is the distribution of the
            model and q that of the proposer: Leviathan's rule accepts a draft drawn from q with this
            probability.
        leviathan_tok: how many of the drafts Leviathan's rule would have accepted, in expectation.
    """

    level = Level.STEP

    req: str
    draft: tuple[int, ...]
    n_right: int
    chosen: int | None = None
    pos: int | None = None
    p_target: tuple[float, ...] | None = None
    p_draft: tuple[float, ...] | None = None
    overlap: tuple[float, ...] | None = None
    leviathan_tok: float | None = None


class DraftStep(Event, frozen=True, tag="draft.step"):
    """A step with drafts has ended: what drafts cost and brought.

    Attributes:
        n_req: generations with drafts.
        n_draft: drafts of these.
        n_right: drafts that the model chose as well.
        draft_us: time to make the drafts.
        step_us: time of forward and sampling, drafts included.
        plain_us: time that forward and sampling take without drafts, by recent steps; None if the step
            computed prompts as well, or no such step was measured.
        won_us: time that the right drafts saved, less what all drafts cost, by recent steps; negative if
            they lost; None where `plain_us` is.
    """

    level = Level.STEP

    n_req: int
    n_draft: int
    n_right: int
    draft_us: int
    step_us: int
    plain_us: int | None = None
    won_us: int | None = None


class SnapshotRequest(Part, frozen=True):
    """An unfinished request.

    Attributes:
        out_tok: output tokens so far.
        computed_tok: positions whose keys and values are in the cache.
        blocks: its block table, of group 0 if there are several; -1 for a block that left the window and was freed.
        tables: its block tables of all groups, if there are several.
        reason: why it waits, if the engine has said so.
        max_new_tok, params, num, caller: as in `req.add`.
        prompt_ids, output_ids: its tokens so far, if they were asked for.
    """

    req: str
    state: RequestState
    prompt_tok: int
    out_tok: int
    computed_tok: int
    prio: int
    blocks: tuple[int, ...]
    reason: str | None = None
    max_new_tok: int | None = None
    params: SamplingSummary | None = None
    prompt_ids: tuple[int, ...] | None = None
    output_ids: tuple[int, ...] | None = None
    tables: tuple[tuple[int, ...], ...] | None = None
    num: int | None = None
    caller: str | None = None


class Snapshot(Event, frozen=True, tag="snapshot"):
    """All requests and blocks at one moment, for readers without the earlier events. It is not emitted:
    `LLMEngine.snapshot` returns it.

    Attributes:
        as_of_seq: the last event that it includes; -1: none.
        requests: running, waiting and all others that are unfinished.
        blocks: (block, owners, first 16 hex digits of the hash) of those with an owner or contents that
            can be found; no hash: it is not sealed.
        used, cached, free: blocks, as in `kv`.
    """

    as_of_seq: int
    requests: tuple[SnapshotRequest, ...]
    blocks: tuple[tuple[int, int, str | None], ...]
    used: int
    cached: int
    free: int


# ---- tokens

TokenSource = Literal["target", "draft", "bonus"]


class TokenText(Event, frozen=True, tag="tok.text"):
    """A token has been chosen, and nobody looked at the choice: looking had taken its share of the time.

    Attributes:
        pos, id, text, src, itl_us: as in `Token`.
    """

    level = Level.TEXT

    req: str
    pos: int
    id: int
    text: str
    src: TokenSource
    itl_us: int | None = None


class Token(Event, frozen=True, tag="tok"):
    """A token has been chosen.

    Attributes:
        pos: its position in the request's tokens, the prompt included.
        text: what it added to the completion's text, which may be nothing yet.
        lp: log-probability in the model's own distribution.
        p_final: probability in the distribution that it was drawn from.
        rank: 1 for the model's likeliest.
        ent_bits: entropy of the model's own distribution.
        cand: the model's likeliest, (id, text, lp, p_final) each.
        rest_frac: probability, by the model, of all tokens but these.
        funnel: (stage, tokens kept, probability kept) of each sampling stage in order.
        itl_us: since this completion's token before; None for the first.
    """

    level = Level.TEXT

    req: str
    pos: int
    id: int
    text: str
    src: TokenSource
    lp: float
    p_final: float
    rank: int
    ent_bits: float
    cand: tuple[tuple[int, str, float, float], ...]
    rest_frac: float
    funnel: tuple[tuple[str, int, float], ...]
    itl_us: int | None = None
