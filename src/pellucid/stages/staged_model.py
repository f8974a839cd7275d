"""Loads a model whose first layers other machines compute."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import numpy as np
from msgspec import structs

from pellucid.backends.base import Backend, BlocksLostError
from pellucid.backends.choice import make_backend
from pellucid.backends.ops import ForwardBatch, KVCache
from pellucid.execution.attention_lens import AttentionCall, AttentionStep
from pellucid.execution.engine_identity import make_identity
from pellucid.execution.secret_file import read_secret
from pellucid.facts.kv_groups import groups_of_part
from pellucid.facts.model_config import ModelConfig
from pellucid.facts.model_parts import PartMemory, divide_layers, part_of
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.stage_address import StageAddress, parse_addresses
from pellucid.loaded_model import LoadedModel, load_model
from pellucid.loading.hub import find_model
from pellucid.loading.open_model import open_stored_model
from pellucid.loading.parameters import Progress
from pellucid.loading.part import layers_apart
from pellucid.loading.stored_model import StoredModel
from pellucid.loading.weights_identity import weights_identity
from pellucid.memory.memory_plan import StageNeeds, plan_weights
from pellucid.stages.link import Reply, StageLink, check_identity, reply_of
from pellucid.stages.messages import (
    ROW_TYPE,
    Allocate,
    Done,
    Free,
    FromStage,
    Load,
    Loaded,
    Prepare,
    Prepared,
    Rows,
    call_of,
    compute_message,
)
from pellucid.stages.staged_decoder import Stage, StagedDecoder, batch_of_part
from pellucid.stages.staged_kv_cache import KVPart, StagedKVCache


class Stages:
    """The parts of a model on other machines: a `PartsElsewhere`.

    Args:
        stages: in order of their layers.
        own: the part of this machine.
        block_size, kv_cache_dtype: of the engine's KV cache.
        numbers: for the caches of all engines of these stages; left out, this is the first engine, which owns the
            connections.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        own: LoadedModel,
        block_size: int,
        kv_cache_dtype: str,
        numbers: Iterator[int] | None = None,
    ) -> None:
        self._stages = stages
        self._own = own
        self._format = block_size, kv_cache_dtype
        self._owns_links = numbers is None
        self._numbers = itertools.count() if numbers is None else numbers
        self._number = next(self._numbers)
        self._has_cache = False

    @property
    def block_layout(self) -> str:
        """It depends on where the model is cut."""
        configs = *(stage.config for stage in self._stages), self._own.config
        return repr(tuple(each.first_layer for each in configs))

    @property
    def needs(self) -> tuple[StageNeeds, ...]:
        return tuple(
            StageNeeds(
                f"stage {stage.link.address} ({_shown(stage.config)})",
                stage.sizes.available,
                stage.sizes.weight_bytes,
                stage.sizes.scratch_bytes,
                stage.sizes.bytes_per_block,
                stage.sizes.bytes_per_state,
            )
            for stage in self._stages
        )

    @property
    def own_bytes_per_block(self) -> int:
        return self._own.backend.kv_bytes_per_block(self._own.config, *self._format)

    def available_memory(self, own: int | None) -> int | None:
        """Of all machines together; None: unknown."""
        found = [own, *(stage.sizes.available for stage in self._stages)]
        known = [each for each in found if each is not None]
        return sum(known) if len(known) == len(found) else None

    def make_kv_cache(self, num_blocks: int, num_state_slots: int) -> KVCache:
        """Has each stage make its part, and makes the part of this machine.

        Raises:
            ValueError: there is one already, or a stage cannot make its part.
        """
        if self._has_cache:
            raise ValueError(
                "stages: have the KV cache of one engine; there can be no other beside it"
            )
        self._has_cache = True
        message = Allocate(self._number, num_blocks, num_state_slots, *self._format)
        asked = [
            stage.link.set_up(message) if self._owns_links else stage.link.ask(message)
            for stage in self._stages
        ]
        own = self._make_part(self._own.config, num_blocks, num_state_slots)
        for each in asked:
            settled("stages", each, Done)
        for stage in self._stages:
            stage.link.watch()
        parts = [
            KVPart(
                stage.link,
                stage.config,
                self._make_part(stage.config, 1, 1),
                num_blocks * stage.sizes.bytes_per_block
                + num_state_slots * stage.sizes.bytes_per_state,
            )
            for stage in self._stages
        ]
        return StagedKVCache(parts, self._number, own)

    def beside(self, block_size: int, kv_cache_dtype: str) -> "Stages":
        backend = self._own.backend
        stages = [
            replace(
                stage,
                sizes=structs.replace(
                    stage.sizes,
                    bytes_per_block=backend.kv_bytes_per_block(
                        stage.config, block_size, kv_cache_dtype
                    ),
                    bytes_per_state=backend.make_kv_cache(
                        stage.config, 1, block_size, kv_cache_dtype
                    ).bytes_per_state,
                ),
            )
            for stage in self._stages
        ]
        return Stages(stages, self._own, block_size, kv_cache_dtype, self._numbers)

    def see_attention(self, batch: ForwardBatch, kv_cache: KVCache) -> AttentionStep:
        assert isinstance(kv_cache, StagedKVCache)
        calls: list[AttentionCall] = []
        rows: memoryview | None = None
        for stage in self._stages:
            message = compute_message(batch, stage.groups, rows, kv_cache.number, True)
            reply = reply_of(stage.link.ask(message), Rows)
            rows = reply.rows
            calls += map(call_of, reply.seen)
        assert rows is not None
        config = self._own.config
        received = np.frombuffer(rows, ROW_TYPE).reshape(-1, config.hidden_size)
        groups = [number for number, _ in groups_of_part(config)]
        step = self._own.see_attention(batch_of_part(batch, groups, received), kv_cache.own)
        return AttentionStep(step.rows, [*calls, *step.calls])

    def when_lost(self, on_loss: Callable[[], None]) -> None:
        for stage in self._stages:
            stage.link.when_lost(on_loss)

    def take_loss(self) -> BlocksLostError | None:
        if not self._owns_links:  # steps on a cache that was lost fail by themselves
            return None
        losses = [stage.link.take_loss() for stage in self._stages]
        return next((loss for loss in losses if loss is not None), None)

    def close(self) -> None:
        for stage in self._stages:
            if self._owns_links:
                stage.link.close()
            else:
                stage.link.ask(Free(self._number))

    def _make_part(self, part: ModelConfig, num_blocks: int, num_state_slots: int) -> KVCache:
        backend = self._own.backend
        return backend.make_kv_cache(part, num_blocks, *self._format, num_state_slots)


def load_staged_model(
    config: EngineConfig,
    on_progress: Progress | None = None,
    *,
    on_download: Progress | None = None,
) -> LoadedModel:
    """Connects to the stages that `config` names, divides the layers by the memory of all machines, and has all of them
    load at the same time. Arguments and errors are those of `load_model`.

    Raises:
        ValueError: a stage is away, has other files, another version or other settings, or has too little memory.
    """
    assert config.stages is not None and config.stages_key is not None
    addresses = parse_addresses(config.stages)
    key = read_secret("stages_key", Path(config.stages_key))
    path = find_model(config.model, config.revision, on_download).path
    stored = open_stored_model(path)
    backend = make_backend(config, stored.config)
    links: list[StageLink] = []
    try:
        links.extend(StageLink(address, key) for address in addresses)
        own = make_identity(config, stored.config, weights_identity(path), backend)
        asked = [link.set_up(Prepare(settings_of_stages(config))) for link in links]
        prepared = [settled("stages", each, Prepared) for each in asked]
        for link, each in zip(links, prepared, strict=True):
            check_identity(f"stages: {link.address}", each.identity, own.facts())
        layers = _divide(config, stored, backend, addresses, prepared)
        loading = [
            link.set_up(Load(part.start, part.stop))
            for link, part in zip(links, layers, strict=False)
        ]
        model = load_model(config, on_progress, backend, layers=layers[-1], on_download=on_download)
        stages = [
            Stage(link, part_of(stored.config, part), settled("stages", each, Loaded))
            for link, part, each in zip(links, layers, loading, strict=False)
        ]
    except BaseException:
        for link in links:
            link.close()
        raise
    return replace(
        model,
        config=stored.config,
        decoder=StagedDecoder(stages, model.decoder, model.config),
        weight_bytes=model.weight_bytes + sum(each.sizes.weight_bytes for each in stages),
        decoder_on=None,
        elsewhere=Stages(stages, model, config.block_size, config.kv_cache_dtype),
    )


def settings_of_stages(config: EngineConfig) -> EngineConfig:
    """The settings without those that are the engine's own matter."""
    return replace(
        config,
        tokenizer=None,
        chat_template=None,
        skip_tokenizer_init=True,
        prefix_store=None,
        prefix_store_key=None,
        swap_space=0,
        speculation="off",
        draft_model=None,
        stages=None,
        stages_key=None,
    )


def _divide(
    config: EngineConfig,
    stored: StoredModel,
    backend: Backend,
    addresses: Sequence[StageAddress],
    prepared: Sequence[Prepared],
) -> list[range]:
    """The layers of each stage, and of this machine."""

    def weight_bytes(part: StoredModel) -> int:
        in_memory = backend.weights.expert_reads is None
        return plan_weights(part, backend.weights.itemsize, config.quantization, in_memory).total

    # Without the system's report machines count as alike.
    available = [each.available or 1 for each in prepared]
    parts = [
        PartMemory(memory, address.num_layers)
        for memory, address in zip(available, addresses, strict=True)
    ]
    parts.append(PartMemory(backend.available_memory() or 1))
    layers, embedding, head = layers_apart(stored)
    ends = weight_bytes(embedding), weight_bytes(head)
    try:
        return divide_layers(stored.config, [weight_bytes(each) for each in layers], ends, parts)
    except ValueError as error:
        raise ValueError(f"stages={config.stages!r}: {error}") from None


def settled(setting: str, future: "Future[FromStage]", kind: type[Reply]) -> Reply:
    """As `reply_of`, where what fails is a setting."""
    try:
        return reply_of(future, kind)
    except (RuntimeError, BlocksLostError) as error:
        raise ValueError(f"{setting}: {error}") from None


def _shown(part: ModelConfig) -> str:
    first = part.first_layer
    return f"layers {first}..{first + part.num_layers - 1}"
