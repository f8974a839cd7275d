"""The prefix store of an engine: opens it, in the form in which this model's blocks are kept."""

import hashlib
import logging
import time
from collections.abc import Callable
from pathlib import Path

from pellucid.execution.block_directory import BlockDirectory
from pellucid.execution.block_file import BlockFileFormat
from pellucid.execution.block_server import BlockServer, ServedValues
from pellucid.execution.fetch_policy import FetchPolicy
from pellucid.execution.mooncake_values import MooncakeValues
from pellucid.execution.prefix_store import PrefixStore
from pellucid.execution.redis_values import RedisValues
from pellucid.execution.secret_file import read_secret
from pellucid.inputs.config import EngineConfig
from pellucid.loaded_model import LoadedModel
from pellucid.observing.event_bus import EventBus
from pellucid.observing.events import Warn

_log = logging.getLogger(__name__)


def open_prefix_store(
    config: EngineConfig,
    model: LoadedModel,
    bytes_per_block: int,
    max_pending: int,
    bus: EventBus,
    blocks_per_state: int,
) -> PrefixStore:
    """Opens the directory or the server that `config.prefix_store` names.

    Args:
        bytes_per_block: of the contents of a block, as the KV cache gives them.
        max_pending: most blocks that wait to be written; as many may have been read.
        bus: gets warnings about files.
        blocks_per_state: blocks that take as many bytes as the recurrent states of a sequence, rounded up.

    Raises:
        ValueError: the key or the server cannot be used.
        OSError: a file cannot be made or read.
    """
    assert config.prefix_store is not None
    report = _reporter(bus)
    fingerprint = model.identity(config).digest
    if model.elsewhere is not None and (layout := model.elsewhere.block_layout):
        fingerprint = hashlib.sha256(fingerprint + layout.encode()).digest()
    key = None
    if config.prefix_store_key is not None:
        key = read_secret("prefix_store_key", Path(config.prefix_store_key))
    file_format = BlockFileFormat(fingerprint, config.block_size, bytes_per_block, key)
    if config.shares_prefix_store:
        values = _values(config.prefix_store, file_format.file_bytes)
        server = BlockServer(values, fingerprint, file_format.file_bytes, report)
        policy = FetchPolicy(time.monotonic)
        return PrefixStore(server, file_format, max_pending, report, blocks_per_state, policy)
    directory = BlockDirectory(
        Path(config.prefix_store).expanduser(),
        fingerprint,
        file_format.file_bytes,
        config.prefix_cache_bytes,
    )
    return PrefixStore(directory, file_format, max_pending, report, blocks_per_state)


def _values(url: str, num_bytes: int) -> ServedValues:
    if url.startswith("mooncake://"):
        return MooncakeValues(url, num_bytes)
    return RedisValues(url)


def _reporter(bus: EventBus) -> Callable[[str], None]:
    def report(message: str) -> None:
        _log.warning(message)
        if bus.active:
            bus.emit(Warn("prefix_cache", message))

    return report
