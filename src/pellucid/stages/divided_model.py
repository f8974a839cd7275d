"""Loads a model of whose large matrices several processes have a share of the rows each. MPI starts these processes:
rank 0 has the engine, and the others compute with it."""

import atexit
import gc
import itertools
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NoReturn

from pellucid.backends.base import Backend, BlocksLostError
from pellucid.backends.choice import make_backend
from pellucid.backends.cpu.ranks import Ranks, join_ranks
from pellucid.backends.ops import ForwardBatch, KVCache
from pellucid.execution.attention_lens import AttentionStep
from pellucid.execution.engine_identity import make_identity
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.stage_address import StageAddress
from pellucid.loaded_model import LoadedModel, load_model
from pellucid.loading.hub import find_model
from pellucid.loading.open_model import open_stored_model
from pellucid.loading.parameters import Progress
from pellucid.loading.weights_identity import weights_identity
from pellucid.memory.memory_plan import StageNeeds
from pellucid.stages.divided_decoder import DividedDecoder, compute_together
from pellucid.stages.divided_kv_cache import DividedKVCache
from pellucid.stages.link import StageLink, check_identity
from pellucid.stages.messages import (
    Allocate,
    Done,
    Free,
    Load,
    Loaded,
    Prepare,
    Prepared,
    compute_message,
)
from pellucid.stages.part_host import OwnSettings
from pellucid.stages.repeated_kv_cache import RepeatedKVCache
from pellucid.stages.stage_server import StageServer
from pellucid.stages.staged_model import settings_of_stages, settled

_SETTING = "tensor_parallel_size"
_LOOPBACK = "127.0.0.1"


class OtherRanks:
    """The processes that compute with this one: a `PartsElsewhere`. Memory is planned for each rank alike.

    Args:
        links: to them.
        loaded: their sizes.
        model: of this process.
        block_size, kv_cache_dtype: of the engine's KV cache.
        ranks: this process among the others.
        numbers: for the caches of all engines of these ranks; left out, this is the first engine, which ends them.
    """

    needs: tuple[StageNeeds, ...] = ()

    def __init__(
        self,
        links: Sequence[StageLink],
        loaded: Sequence[Loaded],
        model: LoadedModel,
        block_size: int,
        kv_cache_dtype: str,
        ranks: Ranks,
        numbers: Iterator[int] | None = None,
    ) -> None:
        self._links = links
        self._loaded = loaded
        self._model = model
        self._format = block_size, kv_cache_dtype
        self._ranks = ranks
        self._owns_links = numbers is None
        self._numbers = itertools.count() if numbers is None else numbers
        self._number = next(self._numbers)
        self._has_cache = self._is_closed = False
        if self._owns_links:
            atexit.register(self.close)  # before MPI ends, which waits for all ranks

    @property
    def _num_shares(self) -> int:
        """Into which the kv-heads are divided."""
        return self._model.backend.kv_shares(self._model.config)

    @property
    def block_layout(self) -> str:
        return f"{self._num_shares} shares of the heads" if self._num_shares > 1 else ""

    @property
    def own_bytes_per_block(self) -> int:
        return self._model.backend.kv_bytes_per_block(self._model.config, *self._format)

    def available_memory(self, own: int | None) -> int | None:
        """Of the rank that has the least."""
        found = own, *(each.available for each in self._loaded)
        return min((each for each in found if each is not None), default=None)

    def make_kv_cache(self, num_blocks: int, num_state_slots: int) -> KVCache:
        """Has each rank make its cache: of its share of the kv-heads, or of all.

        Raises:
            ValueError: there is one already, or a rank cannot make its own.
        """
        if self._has_cache:
            raise ValueError(
                "tensor_parallel_size: the ranks have the KV cache of one engine; there can be no other beside it"
            )
        self._has_cache = True
        message = Allocate(self._number, num_blocks, num_state_slots, *self._format)
        asked = [link.ask(message) for link in self._links]
        own = self._model.make_kv_cache(num_blocks, *self._format, num_state_slots)
        for each in asked:
            settled(_SETTING, each, Done)
        for link in self._links:
            link.watch()
        if self._num_shares > 1:
            layout = self._model.make_kv_cache(1, *self._format)
            return DividedKVCache(self._links, self._number, layout, own)
        return RepeatedKVCache(self._links, self._number, own)

    def beside(self, block_size: int, kv_cache_dtype: str) -> "OtherRanks":
        return OtherRanks(
            *(self._links, self._loaded, self._model, block_size, kv_cache_dtype),
            *(self._ranks, self._numbers),
        )

    def see_attention(self, batch: ForwardBatch, kv_cache: KVCache) -> AttentionStep:
        assert isinstance(kv_cache, DividedKVCache | RepeatedKVCache)
        own = partial(self._model.see_attention, batch, kv_cache.own)
        message = compute_message(
            batch, range(len(batch.block_tables)), None, kv_cache.number, True
        )
        return compute_together(self._links, message, self._model.backend, own)

    def when_lost(self, on_loss: Callable[[], None]) -> None:
        for link in self._links:
            link.when_lost(on_loss)

    def take_loss(self) -> BlocksLostError | None:
        if not self._owns_links:  # steps fail by themselves
            return None
        losses = [link.take_loss() for link in self._links]
        return next((loss for loss in losses if loss is not None), None)

    def close(self) -> None:
        """Lets the other ranks end; of an engine beside the first one, they forget its cache."""
        if not self._owns_links:
            for link in self._links:
                link.ask(Free(self._number))
            return
        if self._is_closed:
            return
        self._is_closed = True
        atexit.unregister(self.close)
        if self._ranks.exchange.has_failed or not all(link.is_there for link in self._links):
            self._ranks.abort_at_exit()
        for link in self._links:
            link.close()


def load_divided_model(
    config: EngineConfig,
    on_progress: Progress | None = None,
    *,
    on_download: Progress | None = None,
) -> LoadedModel:
    """On rank 0, has all ranks load their share. On any other, computes for rank 0 until that has gone, and ends the
    process. Arguments and errors are those of `load_model`.

    Raises:
        ValueError: MPI has started another number of processes, these have loaded a model before, or a rank has other
            files, another version or other settings, or too little memory.
        SystemExit: on other ranks than 0.
    """
    ranks = join_ranks(config.tensor_parallel_size)
    ranks.claim()
    if ranks.rank > 0:
        _follow(config, ranks)
    key: bytes = ranks.communicator.bcast(secrets.token_bytes(32))
    addresses: list[StageAddress | None] = ranks.communicator.gather(None)
    links: list[StageLink] = []
    try:
        for rank, address in enumerate(addresses):
            if address is not None:
                links.append(StageLink(address, key, f"rank {rank}"))
        return _load(config, links, ranks, on_progress, on_download)
    except BaseException:
        for link in links:
            link.close()
        raise


def _load(
    config: EngineConfig,
    links: Sequence[StageLink],
    ranks: Ranks,
    on_progress: Progress | None,
    on_download: Progress | None,
) -> LoadedModel:
    path = find_model(config.model, config.revision, on_download).path
    stored = open_stored_model(path)
    backend: Backend = make_backend(config, stored.config)
    asked = [link.ask(Prepare(settings_of_stages(config))) for link in links]
    own = make_identity(config, stored.config, weights_identity(path), backend).facts()
    for link, each in zip(links, asked, strict=True):
        check_identity(f"{_SETTING}: {link.name}", settled(_SETTING, each, Prepared).identity, own)
    loading = [link.ask(Load(0, stored.config.num_layers)) for link in links]
    model = load_model(config, on_progress, backend, on_download=on_download)
    loaded = [settled(_SETTING, each, Loaded) for each in loading]
    return replace(
        model,
        decoder=DividedDecoder(links, model.decoder, backend),
        decoder_on=None,
        elsewhere=OtherRanks(links, loaded, model, config.block_size, config.kv_cache_dtype, ranks),
    )


def _follow(config: EngineConfig, ranks: Ranks) -> NoReturn:
    """Computes for rank 0 until that has gone."""
    key: bytes = ranks.communicator.bcast(None)
    host = _LOOPBACK if ranks.is_near_first else socket.gethostname()
    own = OwnSettings(config.model, config.revision, config.num_threads)
    server = StageServer(StageAddress(host, 0), key, own)
    ranks.communicator.gather(server.address)
    if threading.current_thread() is threading.main_thread():
        for each in (signal.SIGINT, signal.SIGTERM):  # rank 0 gets them, too, and ends what it does
            signal.signal(each, signal.SIG_IGN)
    gc.enable()  # paused while an engine loads, which here is all the time
    server.serve_one(lambda _: None)
    server.close()
    if ranks.exchange.has_failed:
        ranks.abort_at_exit()
    raise SystemExit(0)
