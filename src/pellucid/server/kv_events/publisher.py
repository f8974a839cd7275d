"""Publishes KV events on a ZeroMQ socket, and answers readers that missed some, on a thread of its own."""

import logging
import os
import threading
import time
from collections import deque
from typing import final

import zmq

from pellucid.async_engine import AsyncLLMEngine, BlockKey
from pellucid.cluster.block_labels import LABELLED_GROUP
from pellucid.server.config import KVEventsConfig
from pellucid.server.kv_events.event_log import Change, EventLog, NumberedBatch

_log = logging.getLogger("pellucid.server")

HEARTBEAT_SECONDS = 1.0  # between two batches: a late reader notices at the next one what it missed
# Messages to one reader; one that reads too slowly misses batches, and asks for them.
MAX_UNSENT = 8192
END = b"\xff" * 8  # the number -1, after the last batch of a replay


@final
class KVEventPublisher:
    """A listener of the prefix index.

    Args:
        config: where to publish.
        block_size: tokens in a block.
        group: of layers, whose blocks are published.

    Attributes:
        endpoint: the address of the events.
        replay_endpoint: where readers ask for batches that they missed; None: nowhere.

    Raises:
        ValueError: an address cannot be listened on.
    """

    def __init__(self, config: KVEventsConfig, block_size: int, group: int) -> None:
        self._group = group
        self._topic = config.topic.encode()
        self._events = EventLog(block_size, time.time)
        self._context = zmq.Context(1)
        self._publish = self._context.socket(zmq.PUB)
        self._replay = self._context.socket(zmq.ROUTER)
        self.replay_endpoint: str | None = None
        try:
            self.endpoint = _bind(self._publish, "kv_events", config.endpoint)
            if config.replay_endpoint is not None:
                self.replay_endpoint = _bind(
                    self._replay, "kv_events_replay", config.replay_endpoint
                )
        except ValueError:
            self._context.destroy(linger=0)
            raise
        self._changes: deque[Change] = deque()
        self._woken, self._wakes = os.pipe()
        self._is_awake = self._is_ending = False
        self._thread = threading.Thread(target=self._run, name="pellucid-kv-events", daemon=True)
        self._thread.start()

    @classmethod
    def of(cls, engine: AsyncLLMEngine, config: KVEventsConfig) -> "KVEventPublisher":
        """A publisher of an engine that has run no request yet.

        It publishes one group of layers: readers know no others.
        """
        publisher = cls(config, engine.config.block_size, LABELLED_GROUP)
        engine.watch_prefixes(publisher)
        return publisher

    def added(self, key: BlockKey) -> None:
        self._tell(Change(key, is_added=True))

    def removed(self, key: BlockKey) -> None:
        self._tell(Change(key, is_added=False))

    def close(self) -> None:
        """Publishes what has changed until now, and ends. The engine must have ended before."""
        self._is_ending = True
        self._wake()
        self._thread.join()
        os.close(self._woken)
        os.close(self._wakes)

    def _tell(self, change: Change) -> None:
        if change.key.group == self._group and not self._is_ending:
            self._changes.append(change)
            if not self._is_awake:
                self._wake()

    def _wake(self) -> None:
        self._is_awake = True
        os.write(self._wakes, b"\0")

    def _run(self) -> None:
        try:
            self._serve()
        except Exception:
            self._is_ending = True
            _log.exception("KV events are not published any more")
        finally:
            self._context.destroy(linger=1000)

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._woken, zmq.POLLIN)
        poller.register(self._replay, zmq.POLLIN)
        self._send(self._events.first())
        next_heartbeat = time.monotonic() + HEARTBEAT_SECONDS
        while True:
            wait = max(0.0, next_heartbeat - time.monotonic())
            ready = dict(poller.poll(int(wait * 1000) + 1))
            is_ending = self._is_ending
            if self._woken in ready:
                os.read(self._woken, 4096)
                self._is_awake = False  # before the changes are taken, so that none is left behind
            changes = [self._changes.popleft() for _ in range(len(self._changes))]
            if changes or time.monotonic() >= next_heartbeat:
                self._send(self._events.add(changes))
                next_heartbeat = time.monotonic() + HEARTBEAT_SECONDS
            if self._replay in ready:
                self._answer(self._replay.recv_multipart())
            if is_ending:
                return

    def _send(self, batch: NumberedBatch) -> None:
        self._publish.send_multipart([self._topic, _number(batch), batch.payload])

    def _answer(self, frames: list[bytes]) -> None:
        """Sends the batches from a number on. A request is the reader's id, nothing, and the number in 8 bytes."""
        if len(frames) != 3 or len(frames[2]) != 8:
            _log.warning("kv_events_replay: a request of %d frames is ignored", len(frames))
            return
        to_reader = frames[:2]
        for batch in self._events.since(int.from_bytes(frames[2], "big")):
            self._replay.send_multipart([*to_reader, _number(batch), batch.payload])
        self._replay.send_multipart([*to_reader, END, b""])


def _number(batch: NumberedBatch) -> bytes:
    return batch.number.to_bytes(8, "big")


def _bind(socket: "zmq.Socket[bytes]", name: str, endpoint: str) -> str:
    """The address that the socket got: a port of * is any free one."""
    socket.set_hwm(MAX_UNSENT)
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        raise ValueError(f"{name}={endpoint!r}: {error.strerror}") from None
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)
