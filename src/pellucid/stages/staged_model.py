"""Loads a model whose first layers other machines compute."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

from pellucid.backends.base import Backend, BlocksLostError
from pellucid.backends.choice import make_backend
from pellucid.backends.ops import KVCache
from pellucid.execution.engine_identity import make_identity
from pellucid.execution.secret_file import read_secret
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
    Allocate,
    Done,
    FromStage,
    Load,
    Loaded,
    Prepare,
    Prepared,
)
from pellucid.stages.staged_decoder import Stage, StagedDecoder
from pellucid.stages.staged_kv_cache import KVPart, StagedKVCache


class Stages:
    """The parts of a model on other machines: a `PartsElsewhere`.

    Args:
        stages: in order of their layers.
        own_config: of the part of this machine.
        backend: of this machine.
        config: the engine's settings.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        own_config: ModelConfig,
        backend: Backend,
        config: EngineConfig,
    ) -> None:
        self._stages = stages
        self._own_config = own_config
        self._backend = backend
        self._config = config
        self._has_cache = False

    @property
    def block_layout(self) -> str:
        """It depends on where the model is cut."""
        configs = *(stage.config for stage in self._stages), self._own_config
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
        config = self._config
        return self._backend.kv_bytes_per_block(
            self._own_config, config.block_size, config.kv_cache_dtype
        )

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
        asked = [stage.link.set_up(Allocate(num_blocks, num_state_slots)) for stage in self._stages]
        own = self._make_part(self._own_config, num_blocks, num_state_slots)
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
        return StagedKVCache(parts, own)

    def take_loss(self) -> BlocksLostError | None:
        losses = [stage.link.take_loss() for stage in self._stages]
        return next((loss for loss in losses if loss is not None), None)

    def close(self) -> None:
        for stage in self._stages:
            stage.link.close()

    def _make_part(self, part: ModelConfig, num_blocks: int, num_state_slots: int) -> KVCache:
        config = self._config
        return self._backend.make_kv_cache(
            part, num_blocks, config.block_size, config.kv_cache_dtype, num_state_slots
        )


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
        elsewhere=Stages(stages, model.config, backend, config),
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
