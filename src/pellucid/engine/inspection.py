"""Inspection: block contents, the prefix tree, and the logits and the attention of one token of a request.

Logits and attention are computed again, from the blocks that the prefix cache still has. An answer's bits
do not depend on how it was scheduled, so these are the bits of the step that chose the token.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from pellucid.backends.numpy.dimension_codes import round_group
from pellucid.backends.numpy.kv_codes import quantize_rows, restore_rows
from pellucid.backends.ops import BlockBytes, HostArray, KVCache
from pellucid.engine.kv_divergence import DivergenceMeter
from pellucid.engine.request_maker import PreparedRequest, RequestMaker
from pellucid.execution.attention_lens import (
    AttentionCall,
    attention_output,
    attention_weights,
)
from pellucid.execution.candidates import Candidates
from pellucid.execution.model_runner import ModelRunner, build_forward_batch
from pellucid.execution.request_state import RequestState
from pellucid.execution.sampling_order import SamplingRow, sampling_stages
from pellucid.facts.kv_formats import GROUP_POSITIONS, NumberFormat, find_kv_format
from pellucid.facts.kv_groups import kv_groups, kv_places
from pellucid.inputs.config import EngineConfig
from pellucid.loaded_model import LoadedModel
from pellucid.scheduling.request import Request
from pellucid.scheduling.scheduler import Scheduler
from pellucid.scheduling.scheduler_output import ScheduledRequest, SchedulerOutput

FloatArray = npt.NDArray[np.float64]


class NoBlocksError(RuntimeError):
    """The blocks that an inspection needs are not free now."""


@dataclass(frozen=True)
class PrefixNode:
    """A sealed block in the prefix tree.

    Attributes:
        block_hash, parent_hash: 16 hex digits; a first block has the hash of its salt as its parent.
        index: of the block in its sequence.
        owners: the requests whose block tables have it.
        sealed_by: the request that computed it.
        group: of the layers whose keys and values it holds.
    """

    block_id: int
    block_hash: str
    parent_hash: str
    index: int
    token_ids: tuple[int, ...]
    owners: tuple[str, ...]
    sealed_by: str | None
    group: int


@dataclass(frozen=True)
class BlockContents:
    """What a block holds in one layer.

    Attributes:
        filled: slots with a token in them: the rows of `k` and `v`.
        token_ids: of these slots.
        dtype: the format that they are stored in.
        k, v: [filled, K, D].
    """

    block_id: int
    layer: int
    owners: tuple[str, ...]
    block_hash: str | None
    filled: int
    token_ids: tuple[int, ...]
    dtype: str
    k: HostArray
    v: HostArray

    def rounded(self, bits: int) -> tuple[HostArray, HostArray]:
        """Keys and values as a cache of 8 or 4 bits would hold them. Keys of 4 bits, whose dimensions have scales over
        positions, are rounded as if the group of the last ones ended with them."""
        keys, values = find_kv_format(f"int{bits}").halves
        return _rounded(self.k, keys), _rounded(self.v, values)


@dataclass(frozen=True)
class AnswerSoFar:
    """An answer up to some token.

    Attributes:
        index: which of the request's answers it is.
        cache_salt: of the request: only blocks with the same salt are read.
    """

    prepared: PreparedRequest
    seed: int
    index: int
    output_token_ids: Sequence[int]
    cache_salt: str | None


@dataclass(frozen=True)
class Recomputed:
    """What it took to see a token again.

    Attributes:
        num_cached: positions whose keys and values were in the cache.
        num_computed: positions that were computed again.
        seconds: on the engine's thread.
    """

    num_cached: int
    num_computed: int
    seconds: float


@dataclass(frozen=True)
class SeenStage:
    """The candidates that a sampling stage left.

    Attributes:
        name: "logits" for the model's own distribution, else the stage's parameter.
        candidates: with their logits after the stage.
        kept_mass: their probability in what entered the stage.
    """

    name: str
    candidates: Candidates
    kept_mass: float


@dataclass(frozen=True)
class SeenLogits:
    """The logits that a token is chosen from.

    Attributes:
        logits: [V].
        row: the other inputs of the choice of the token.
        drawn: the token that the engine draws from them; None: parameters or logits leave none.
    """

    logits: HostArray
    row: SamplingRow
    drawn: int | None
    cost: Recomputed

    def stages(self) -> list[SeenStage]:
        """The model's distribution, then what each active stage leaves of it, in order."""
        passed = [SeenStage("logits", Candidates.of(self.logits), 1.0)]
        for stage in sampling_stages(self.row):
            before = passed[-1].candidates
            after = stage.apply(before)
            mass = before.mass(after.token_ids) if len(after) < len(before) else 1.0
            passed.append(SeenStage(stage.name, after, min(1.0, mass)))
        return passed


@dataclass(frozen=True)
class SeenAttention:
    """What one token attends to.

    Attributes:
        calls: of each layer that has attention, by its number.
    """

    calls: Mapping[int, AttentionCall]
    cost: Recomputed
    _blocks: Mapping[int, Sequence[BlockBytes]]  # of each of these layers
    _own_groups: Mapping[int, HostArray]  # of each layer; empty: the format has no open keys
    _num_positions: int
    _unpack: Callable[[BlockBytes, int], tuple[HostArray, HostArray]]

    def weights(self, layer: int) -> tuple[FloatArray, float]:
        """Weights [H, n] of a layer, and how far what they make of the values is from the output that the
        backend computed: the largest difference over the largest number of the output."""
        k, v = self._keys_and_values(layer)
        call = self.calls[layer]
        weights = attention_weights(call, k)
        difference = np.abs(attention_output(weights, v) - call.output).max()
        return weights, float(difference / max(float(np.abs(call.output).max()), 1e-30))

    def numbers_of(self, layer: int, head: int) -> tuple[HostArray, HostArray, HostArray]:
        """The query [D] of a query head, and the keys and values [n, D] that the head reads."""
        k, v = self._keys_and_values(layer)
        q = self.calls[layer].q
        kv_head = head // (len(q) // k.shape[1])
        return q[head], k[:, kv_head], v[:, kv_head]

    def _keys_and_values(self, layer: int) -> tuple[HostArray, HostArray]:
        """Of all positions: each [n, K, D]."""
        halves = [self._unpack(data, layer) for data in self._blocks[layer]]
        k, v = (np.concatenate(half)[: self._num_positions] for half in zip(*halves, strict=True))
        if (own := self._own_groups.get(layer)) is not None:
            begin = (len(k) - 1) // len(own) * len(own)
            k[begin:] = own[: len(k) - begin]
        return k, v


class Inspector:
    """Looks into an engine between its steps; on the engine's thread alone.

    Args:
        config: the user's settings; one look computes as many positions as a step may have.
        request_maker: makes the requests whose tokens are looked at again.
    """

    def __init__(
        self,
        config: EngineConfig,
        model: LoadedModel,
        scheduler: Scheduler,
        model_runner: ModelRunner,
        request_maker: RequestMaker,
    ) -> None:
        self.config = config
        self.model = model
        self._scheduler = scheduler
        self._manager = scheduler.kv_cache_manager
        self._runner = model_runner
        self._request_maker = request_maker
        places = enumerate(kv_places(model.config, kv_groups(model.config)))
        self._places = {layer: place for layer, place in places if place is not None}
        self._numbers = itertools.count()

    @property
    def _cache(self) -> KVCache:
        return self._runner.kv_cache

    @property
    def _open_positions(self) -> int:
        return find_kv_format(self.config.kv_cache_dtype).open_positions

    def divergence_meter(
        self, token_ids: Sequence[int], kv_cache_dtypes: Sequence[str], reference: str
    ) -> DivergenceMeter:
        """Measures how far formats of the KV cache move what this model says of a text, in caches of its own."""
        return DivergenceMeter(self.model, [token_ids], kv_cache_dtypes, reference)

    def prefix_tree(self) -> list[PrefixNode]:
        """All sealed blocks, in order of their ids; the hash of its parent says what a block follows."""
        owners = self._manager.owners()
        return [
            PrefixNode(
                block.block_id,
                block.key.block_hash.hex()[:16],
                block.key.parent_hash.hex()[:16],
                block.key.index,
                block.key.token_ids,
                tuple(table.request.request_id for table, _ in owners.get(block.block_id, ())),
                block.sealed_by,
                block.key.group,
            )
            for block in self._manager.block_pool.blocks_in_use()
            if block.key is not None
        ]

    def block(self, block_id: int, layer: int) -> BlockContents:
        """What a block holds in a layer; a slot without a token has no row.

        Raises:
            ValueError: there is no such block or layer, or the block holds other layers.
        """
        pool = self._manager.block_pool
        if not 0 <= block_id < pool.num_blocks:
            raise ValueError(f"block_id={block_id}: must be in 0..{pool.num_blocks - 1}")
        num_layers = self.model.config.num_layers
        if not 0 <= layer < num_layers:
            raise ValueError(f"layer={layer}: must be in 0..{num_layers - 1}")
        if layer not in self._places:
            raise ValueError(f"layer={layer}: has no keys and values; it is recurrent")
        block = pool.block(block_id)
        owners = self._manager.owners().get(block_id, ())
        groups = {table.group for table, _ in owners}
        if block.key is not None:
            groups = {block.key.group}
        if groups and self._places[layer].group not in groups:
            layers = [i for i, place in self._places.items() if place.group in groups]
            raise ValueError(f"layer={layer}: block {block_id} holds layers {layers}")
        token_ids: tuple[int, ...] = ()
        first = None  # the owner that has computed most of it, if it is not sealed
        if block.key is not None:
            token_ids = block.key.token_ids
        else:
            size = self._manager.block_size
            for table, index in owners:
                request, begin = table.request, index * size
                end = max(begin, min(request.num_computed_tokens, begin + size))
                own = tuple(request.token_ids(begin, end))
                if len(own) > len(token_ids):
                    token_ids, first = own, request
        (contents,) = self._cache.read_blocks([block_id])
        k, v = self._cache.unpack_block(contents, layer)
        filled = len(token_ids)
        if first is not None and (size := self._open_positions) and filled % size:
            begin = filled // size * size
            group = first.num_computed_tokens // size
            open_keys = self._cache.read_open_keys(self._manager.state_slot(first), layer, group)
            k[begin:filled] = open_keys[: filled - begin]
        return BlockContents(
            block_id,
            layer,
            tuple(table.request.request_id for table, _ in owners),
            None if block.key is None else block.key.block_hash.hex()[:16],
            filled,
            token_ids,
            self.config.kv_cache_dtype,
            k[:filled],
            v[:filled],
        )

    def logits(self, answer: AnswerSoFar) -> SeenLogits:
        """The logits of the token after all of an answer's.

        Raises:
            ValueError: too many positions would have to be computed again.
            NoBlocksError: too few blocks are free now.
        """
        request = self._request(answer)
        started = request.started()
        with self._blocks_for(request) as scheduled:
            begin = time.perf_counter()
            self._runner.follow(SchedulerOutput(started=(started,)))
            try:
                batch = self._runner.send([scheduled], [self._manager.block_tables(request)])
                computed = self._runner.execute([scheduled], batch)
            finally:
                self._runner.follow(SchedulerOutput(ended=(request.request_id,)))
            cost = _cost(scheduled, time.perf_counter() - begin)
            logits = np.array(computed.rows[0])
            drawn, row = computed.drawn.get((request.request_id, 0)), RequestState(started).row()
            if drawn is None:
                with suppress(ValueError):  # parameters or logits leave no token
                    drawn = self._runner.sampler.sample(logits, row).token_id
            return SeenLogits(logits, row, drawn, cost)

    def attention(self, answer: AnswerSoFar) -> SeenAttention:
        """What the last token of an answer attends to. Errors are those of `logits`."""
        request = self._request(answer)
        with self._blocks_for(request) as scheduled:
            started = time.perf_counter()
            tables = self._manager.block_tables(request)
            batch = build_forward_batch([scheduled], [tables], self._manager.block_size)
            step = self.model.see_attention(batch, self._cache)
            blocks = [self._read_blocks(table) for table in tables]
            own_groups = {}
            if size := self._open_positions:
                slot, group = scheduled.state_slot, (request.num_tokens - 1) // size
                own_groups = {
                    layer: self._cache.read_open_keys(slot, layer, group) for layer in self._places
                }
            cost = _cost(scheduled, time.perf_counter() - started)
        return SeenAttention(
            dict(zip(self._places, step.calls, strict=True)),
            cost,
            {layer: blocks[place.group] for layer, place in self._places.items()},
            own_groups,
            request.num_tokens,
            self._cache.unpack_block,
        )

    def _read_blocks(self, block_table: Sequence[int]) -> list[BlockBytes]:
        """The contents of blocks; zeros for a block that has left the window and was freed."""
        contents = iter(self._cache.read_blocks([each for each in block_table if each >= 0]))
        freed = np.zeros(self._cache.bytes_per_block, np.uint8)
        return [freed if block_id < 0 else next(contents) for block_id in block_table]

    def _request(self, answer: AnswerSoFar) -> Request:
        """The answer's request as it was then; no queue has it."""
        prepared, salt = answer.prepared, answer.cache_salt
        name = f"inspect-{next(self._numbers)}"
        request = self._request_maker.make(name, prepared, cache_salt=salt)[answer.index]
        request.request_id = f"{name}/0"
        request.params = replace(request.params, prompt_logprobs=None)
        request.seed = answer.seed
        request.output_token_ids = list(answer.output_token_ids)
        return request

    @contextmanager
    def _blocks_for(self, request: Request) -> Iterator[ScheduledRequest]:
        """Gives a request the blocks of its prefix that the cache has and free ones for the rest, until the
        block is left."""
        manager = self._manager
        has_steps_ops = bool(manager.block_ops)
        try:
            plan = manager.plan_admission(request)
            request.num_computed_tokens = start = manager.hold(plan)
            num_rows = request.num_tokens - start
            if num_rows > self.config.max_num_batched_tokens:
                raise ValueError(
                    f"position: {num_rows} positions before it would have to be computed again;"
                    f" at most {self.config.max_num_batched_tokens} are"
                )
            if manager.num_missing_blocks(request, request.num_tokens):
                # Without their number: it would tell what other callers have
                raise NoBlocksError("looking at this token needs more free blocks; try again later")
            self._scheduler.free_slot(request)
            start = request.num_computed_tokens = manager.admit(plan).num_tokens
            try:
                self._runner.transfer(manager.take_block_ops())
            except Exception as error:
                if has_steps_ops:  # other requests depend on them: the next step fails these
                    manager.lost_by = error
                raise
            yield ScheduledRequest(
                request.request_id,
                start,
                request.num_tokens,
                request.token_ids(start, request.num_tokens),
                num_recomputed_tokens=0,
                num_draft_tokens=0,
                samplers=(request.request_id,),
                num_prompt_tokens=request.num_prompt_tokens,
                state_slot=manager.state_slot(request),
            )
        finally:
            manager.forget(request)
            self._scheduler.report_blocks()


def _cost(scheduled: ScheduledRequest, seconds: float) -> Recomputed:
    return Recomputed(scheduled.start, scheduled.num_scheduled_tokens, seconds)


def _rounded(x: HostArray, number_format: NumberFormat) -> HostArray:
    if number_format.is_by_dimension:
        groups = [x[start : start + GROUP_POSITIONS] for start in range(0, len(x), GROUP_POSITIONS)]
        return np.concatenate([*map(round_group, groups), x[:0]])
    codes, scales = quantize_rows(x, number_format)
    return restore_rows(codes, scales, number_format, x.shape[-1])
