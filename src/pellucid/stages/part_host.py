"""Obeys the messages of an engine: loads a part of a model, and computes its layers."""

import gc
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pellucid.backends.base import Backend
from pellucid.backends.choice import make_backend
from pellucid.backends.ops import KVCache
from pellucid.execution.engine_identity import make_identity
from pellucid.facts.host_memory import give_back_free_memory
from pellucid.inputs.config import EngineConfig
from pellucid.loaded_model import LoadedModel, load_model
from pellucid.loading.hub import find_model
from pellucid.loading.open_model import open_stored_model
from pellucid.loading.weights_identity import weights_identity
from pellucid.stages.messages import (
    ROW_TYPE,
    Alive,
    Allocate,
    BlockMessage,
    Compute,
    Contents,
    CopyBlocks,
    CopyState,
    Done,
    Failed,
    Free,
    FromStage,
    Load,
    Loaded,
    Prepare,
    Prepared,
    ReadBlocks,
    ReadState,
    Rows,
    ToStage,
    WriteBlocks,
    WriteState,
    batch_of,
    row_bytes,
    seen_of,
)


@dataclass(frozen=True)
class OwnSettings:
    """What a stage decides itself: where its files are, and how many cores it takes. Fields of `EngineConfig`."""

    model: str | None = None
    revision: str | None = None
    num_threads: int | None = None


@dataclass(frozen=True)
class _Cache:
    """A KV cache, and what its operations may name."""

    kv_cache: KVCache
    num_blocks: int
    num_slots: int
    block_size: int

    def check_blocks(self, *block_ids: int) -> None:
        _check_range("block_ids", np.array(block_ids, np.int64), self.num_blocks)

    def check_slots(self, *slots: int) -> None:
        _check_range("slots", np.array(slots, np.int64), self.num_slots)


class PartHost:
    """A part of a model, from the settings of an engine to its KV caches. Its methods belong to one thread."""

    def __init__(self, own: OwnSettings) -> None:
        self._own = own
        self._config: EngineConfig | None = None
        self._backend: Backend | None = None
        self._model: LoadedModel | None = None
        self._caches: dict[int, _Cache] = {}
        self._is_computing = self._has_given_up = False

    def answer(self, message: ToStage) -> FromStage:
        """Does what a message asks for. What is not possible is said in the reply."""
        try:
            return self._answer(message)
        except Exception as error:
            return Failed(f"{error}" if isinstance(error, ValueError) else f"{error!r}")

    def give_up(self) -> None:
        """The engine has gone: ends a step that waits for other processes, and begins no other one. From any
        thread."""
        self._has_given_up = True
        if self._is_computing and (backend := self._backend) is not None:
            backend.stop_waiting()

    def close(self) -> None:
        """Gives the memory back."""
        self._config = self._backend = self._model = None
        self._caches.clear()
        self._has_given_up = False
        gc.collect()
        give_back_free_memory()

    def _answer(self, message: ToStage) -> FromStage:
        match message:
            case Prepare(config):
                return self._prepare(config)
            case Load(first, stop):
                return self._load(range(first, stop))
            case Allocate():
                self._allocate(message)
            case Free(cache):
                self._caches.pop(cache, None)
            case Compute():
                return self._compute(message, self._cache(message.cache))
            case Alive():
                raise AssertionError("has no reply")
            case _:
                return _moved(message, self._cache(message.cache))
        return Done()

    def _prepare(self, config: EngineConfig) -> Prepared:
        self.close()
        self._config = config = replace(
            config,
            model=self._own.model,
            revision=self._own.revision,
            num_threads=self._own.num_threads,
        )
        path = find_model(config.model, config.revision).path
        stored = open_stored_model(path)
        self._backend = make_backend(config, stored.config)
        identity = make_identity(config, stored.config, weights_identity(path), self._backend)
        return Prepared(self._backend.available_memory(), identity.facts())

    def _load(self, layers: range) -> Loaded:
        config, backend = self._config, self._backend
        if config is None or backend is None or self._model is not None:
            raise ValueError("Load: must follow Prepare, once")
        self._model = model = load_model(config, backend=backend, layers=layers)
        weights = model.decoder.step_weights
        sizes = model.config, config.block_size, config.kv_cache_dtype
        max_tokens = config.max_step_tokens(model.config.context_length)
        of_one = backend.make_kv_cache(model.config, 1, config.block_size, config.kv_cache_dtype)
        return Loaded(
            available=backend.available_memory(),
            weight_bytes=model.weight_bytes,
            scratch_bytes=model.decoder.scratch_bytes(max_tokens)
            + row_bytes(model.config, max_tokens),
            bytes_per_block=backend.kv_bytes_per_block(*sizes),
            bytes_per_state=of_one.bytes_per_state,
            layer_bytes=weights.layer_bytes,
            expert_bytes=weights.expert_bytes,
        )

    def _allocate(self, message: Allocate) -> None:
        config, model = self._config, self._model
        if config is None or model is None:
            raise ValueError("Allocate: must follow Load")
        num_blocks, num_slots = message.num_blocks, message.num_state_slots
        if num_blocks < 1 or num_slots < 1:
            raise ValueError("Allocate: num_blocks and num_state_slots must be at least 1")
        block_size, dtype = message.block_size, message.kv_cache_dtype
        replace(config, block_size=block_size, kv_cache_dtype=dtype)  # checks them
        kv_cache = model.make_kv_cache(num_blocks, block_size, dtype, num_slots)
        self._caches[message.cache] = _Cache(kv_cache, num_blocks, num_slots, block_size)

    def _compute(self, message: Compute, cache: _Cache) -> Rows:
        model = self._model
        assert model is not None
        config = model.config
        batch = batch_of(message, config.hidden_size)
        if (message.rows is None) != config.is_first:
            raise ValueError("rows: the first stage gets none, and every other one gets some")
        _check_range("token_ids", batch.token_ids, config.vocab_size)
        _check_range("positions", batch.positions, config.context_length)
        _check_range("slot_mapping", batch.slot_mapping, cache.num_blocks * cache.block_size)
        _check_range("block_tables", batch.block_tables + 1, cache.num_blocks + 1)
        _check_range("state_slots", batch.state_slots, cache.num_slots)
        self._is_computing = True
        try:
            if self._has_given_up:
                raise RuntimeError("the engine has gone")
            if message.shows_attention:
                seen = model.see_attention(batch, cache.kv_cache)
                result, expert_bytes, calls = seen.rows[:], 0, seen.calls
            else:
                step = model.decoder.step(batch, cache.kv_cache)
                result, expert_bytes, calls = step.rows[:], step.expert_bytes, ()
        finally:
            self._is_computing = False
        if config.is_last:  # the engine has these logits, and has seen all attention, too
            return Rows(memoryview(b""), expert_bytes)
        rows = np.ascontiguousarray(result, ROW_TYPE).view(np.uint8)
        return Rows(rows.reshape(-1).data, expert_bytes, [seen_of(call) for call in calls])

    def _cache(self, number: int) -> _Cache:
        if (found := self._caches.get(number)) is None:
            raise ValueError(
                f"cache={number}: is not there; a stage that comes back has the engine's own alone"
            )
        return found


def _moved(message: BlockMessage, cache: _Cache) -> FromStage:
    """Does an operation on blocks or states."""
    kv_cache = cache.kv_cache
    match message:
        case CopyBlocks(_, source_ids, target_ids):
            cache.check_blocks(*source_ids, *target_ids)
            kv_cache.copy_blocks(source_ids, target_ids)
        case ReadBlocks(_, block_ids):
            cache.check_blocks(*block_ids)
            return _contents(kv_cache.read_blocks(block_ids))
        case WriteBlocks(_, block_ids, contents):
            cache.check_blocks(*block_ids)
            blocks = [_bytes(each, kv_cache.bytes_per_block) for each in contents]
            kv_cache.write_blocks(block_ids, blocks)
        case CopyState(_, source_slot, target_slot):
            cache.check_slots(source_slot, target_slot)
            kv_cache.copy_state(source_slot, target_slot)
        case ReadState(_, slot):
            cache.check_slots(slot)
            return _contents([kv_cache.read_state(slot)])
        case WriteState(_, slot, content):
            cache.check_slots(slot)
            kv_cache.write_state(slot, _bytes(content, kv_cache.bytes_per_state))
    return Done()


def _bytes(content: bytes, length: int) -> Any:
    if len(content) != length:
        raise ValueError(f"content: has {len(content)} bytes, must have {length}")
    return np.frombuffer(content, np.uint8)


def _contents(arrays: Sequence[Any]) -> Contents:
    return Contents([each.tobytes() for each in arrays])


def _check_range(name: str, numbers: Any, stop: int) -> None:
    if numbers.size and not (numbers.min() >= 0 and numbers.max() < stop):
        raise ValueError(f"{name}: must be in 0..{stop - 1}")
