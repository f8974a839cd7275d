"""A replica: a process with one engine, which serves the front that has started it.

`python -m pellucid.cluster.replica FD` is told all else by the first message on the socket FD.
"""

import asyncio
import os
import socket
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import msgspec

from pellucid.async_engine import (
    AsyncLLMEngine,
    AsyncTokenStream,
    BlockKey,
    EngineStoppedError,
    Inspector,
    TooManyRequestsError,
)
from pellucid.cluster.block_labels import LABELLED_GROUP, label
from pellucid.cluster.channel import Channel
from pellucid.cluster.messages import (
    Abort,
    Add,
    Added,
    Alive,
    Answer,
    Ask,
    BlocksChanged,
    CannotStart,
    CompletionSoFar,
    Delta,
    Emitted,
    FromReplica,
    Progress,
    Ready,
    Refused,
    Start,
    Stop,
    decode_to_replica,
    encode,
)
from pellucid.engine import LLMEngine
from pellucid.engine.crash_report import write_crash_report
from pellucid.inputs.prompts import EncodedPrompt
from pellucid.observing.events import EventRecord, Hello, Level
from pellucid.outputs import CompletionDelta, CompletionOutput, RequestMetrics, RequestOutput

ALIVE_SECONDS = 1.0  # between two signs of life while there are requests


class Replica:
    """One engine, and the front's requests on it. All but `added`, `removed` and `_hear` runs on the event loop.

    Args:
        channel: to the front.
        start: the front's first message.
    """

    def __init__(self, channel: Channel, start: Start) -> None:
        self._channel = channel
        self._start = start
        self._loop = asyncio.get_running_loop()
        self._unsent: list[FromReplica] = []
        self._changes: deque[tuple[int, bool]] = deque()
        self._events: deque[EventRecord] = deque()
        self._is_woken = False
        self._streams: dict[str, _Stream] = {}
        self._adding: dict[str, bool] = {}  # whether it is to be aborted
        self._tasks: set[asyncio.Task[None]] = set()
        self._engine: AsyncLLMEngine

    async def run(self) -> None:
        """Serves until the front says so or has ended."""
        config, max_requests = self._start.config, self._start.max_requests
        try:
            engine = await asyncio.to_thread(
                lambda: AsyncLLMEngine(
                    LLMEngine.from_config(config, on_note=lambda note: None),
                    max_requests,
                    write_crash_report,
                )
            )
        except (ValueError, OSError, RuntimeError) as error:
            self._tell(CannotStart(str(error)))
            self._flush()
            return
        self._engine = engine
        engine.watch_prefixes(self)
        engine.events.subscribe(self._hear, Level.STAT)
        self._tell(Ready(engine.identity.facts(), engine.num_compute_threads))
        alive = asyncio.create_task(self._show_life())
        async for frame in self._channel.frames():
            for message in decode_to_replica(frame):
                if isinstance(message, Stop):
                    alive.cancel()
                    await engine.shutdown()
                    return
                self._obey(message)
        os._exit(0)  # the front has ended: nobody waits for anything

    # ---- the prefix index, on the engine's thread

    def added(self, key: BlockKey) -> None:
        self._changed(key, is_added=True)

    def removed(self, key: BlockKey) -> None:
        self._changed(key, is_added=False)

    def _changed(self, key: BlockKey, is_added: bool) -> None:
        if key.group == LABELLED_GROUP:
            self._changes.append((label(key.block_hash), is_added))
            self._wake()

    def _hear(self, record: EventRecord) -> None:
        if hasattr(record.event, "req") or isinstance(record.event, Hello):
            self._events.append(record)
            self._wake()

    def _wake(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            self._loop.call_soon_threadsafe(self._flush)

    # ---- requests

    def _obey(self, message: Add | Abort | Ask | Start) -> None:
        if isinstance(message, Add):
            self._adding[message.request_id] = False
            self._spawn(self._add(message))
        elif isinstance(message, Abort):
            if message.request_id in self._adding:
                self._adding[message.request_id] = True
            else:
                self._engine.abort(message.request_id)
        elif isinstance(message, Ask):
            self._spawn(self._answer(message))

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _add(self, add: Add) -> None:
        prompt = EncodedPrompt(
            text=add.text,
            is_chat=add.is_chat,
            token_ids=tuple(add.token_ids),
            end_token_ids=frozenset(add.end_token_ids),
            arrival_time=add.arrival_time,
            encoded_time=add.encoded_time,
        )
        try:
            stream = await self._engine.add_request(
                prompt,
                add.params,
                add.request_id,
                priority=add.priority,
                cache_salt=add.cache_salt,
                resumes=_so_far(add),
                caller=add.caller,
                caller_weight=add.caller_weight,
            )
        except (ValueError, TooManyRequestsError) as error:
            del self._adding[add.request_id]
            self._tell(Refused(add.request_id, str(error)))
            return
        except EngineStoppedError:
            self._end_if_failed()
            return
        self._tell(Added(add.request_id))
        following = self._streams[add.request_id] = _Stream(self, stream)
        following.begin()
        if self._adding.pop(add.request_id):
            self._engine.abort(add.request_id)

    async def _answer(self, ask: Ask) -> None:
        blocks: list[int] = []
        try:
            usage = await self._engine.kv_cache_usage()
            speculation = await self._engine.speculation()
            if ask.with_blocks:
                blocks = await self._engine.inspect(self._labels)
        except EngineStoppedError:
            self._end_if_failed()
            return
        self._tell(
            Answer(
                ask.number,
                (usage.num_blocks, usage.num_used_blocks, usage.num_cached_blocks),
                None if speculation is None else asdict(speculation),
                self._engine.num_compute_threads,
                blocks,
            )
        )

    def _labels(self, inspector: Inspector) -> list[int]:
        """Of the blocks in the prefix index."""
        nodes = inspector.prefix_tree()
        return [int(node.block_hash, 16) for node in nodes if node.group == LABELLED_GROUP]

    async def _show_life(self) -> None:
        while True:
            await asyncio.sleep(ALIVE_SECONDS)
            self._end_if_failed()
            if self._streams:
                for stream in self._streams.values():
                    stream.tell_progress()
                self._tell(Alive(self._engine.seconds_without_step))

    def _end_if_failed(self) -> None:
        """A process whose engine has failed is of no use: the front starts another one."""
        if self._engine.failure is not None:
            sys.stderr.write(f"the engine of a replica failed: {self._engine.failure!r}\n")
            os._exit(1)

    # ---- messages to the front

    def tell(self, message: FromReplica) -> None:
        """Sends a message with the others of this turn of the event loop."""
        self._tell(message)

    def forget(self, request_id: str) -> None:
        """A request has ended."""
        del self._streams[request_id]
        self._end_if_failed()

    def _tell(self, message: FromReplica) -> None:
        self._unsent.append(message)
        if not self._is_woken:
            self._is_woken = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_woken = False  # before what waits is taken, so that nothing is left behind
        messages: list[FromReplica] = []
        if changes := [self._changes.popleft() for _ in range(len(self._changes))]:
            messages.append(BlocksChanged(changes))
        for record in [self._events.popleft() for _ in range(len(self._events))]:
            event = record.event
            messages.append(Emitted(event.ev, msgspec.to_builtins(event)))
        messages += self._unsent
        self._unsent.clear()
        if messages:
            self._channel.send(encode(messages))


class _Stream:
    """The stream of one request, on its way to the front."""

    def __init__(self, replica: Replica, stream: AsyncTokenStream) -> None:
        self._replica = replica
        self._stream = stream
        self._has_told = self._has_told_prompt = False

    def begin(self) -> None:
        """Tells the front of what there is, and of what comes."""
        self._stream.call_back(self._on_delta, self._on_end)
        for delta in self._stream.take():
            self._on_delta(delta)
        if self._stream.has_all_deltas:
            self._on_end()

    def tell_progress(self) -> None:
        """Says how far the prompt is, until the first token."""
        if not self._has_told:
            self._replica.tell(self._progress(has_ended=False))

    def _on_delta(self, delta: CompletionDelta) -> bool:
        if not self._has_told:
            self._has_told = True
            self._replica.tell(self._progress(has_ended=False))
        total = None
        if delta.finish_reason is not None:
            total = self._stream.output.outputs[delta.index].cumulative_logprob
        self._replica.tell(
            Delta(
                delta.request_id,
                delta.index,
                delta.text,
                delta.token_ids,
                delta.logprobs,
                delta.finish_reason,
                delta.stop_reason,
                total,
            )
        )
        return True

    def _on_end(self) -> None:
        if self._stream.has_ended:
            self._replica.tell(self._progress(has_ended=True))
        self._replica.forget(self._stream.request_id)

    def _progress(self, *, has_ended: bool) -> Progress:
        output, prompt_logprobs = self._stream.output, None
        metrics = output.metrics
        if self._has_told and not self._has_told_prompt:
            prompt_logprobs, self._has_told_prompt = output.prompt_logprobs, True
        return Progress(
            output.request_id,
            has_ended,
            metrics.first_scheduled_time,
            output.num_cached_tokens,
            metrics.num_processed_tokens,
            metrics.flops,
            metrics.kv_cache_bytes,
            metrics.num_preemptions,
            prompt_logprobs,
        )


def _so_far(add: Add) -> RequestOutput:
    """The request as its caller has it."""
    assert add.params.seed is not None
    return RequestOutput(
        request_id=add.request_id,
        prompt=None,
        prompt_token_ids=add.token_ids,
        seed=add.params.seed,
        outputs=[_completion(index, each) for index, each in enumerate(add.outputs)],
        metrics=RequestMetrics(add.arrival_time),
        prompt_logprobs=add.prompt_logprobs,
    )


def _completion(index: int, so_far: CompletionSoFar) -> CompletionOutput:
    return CompletionOutput(
        index,
        token_ids=so_far.token_ids,
        cumulative_logprob=so_far.cumulative_logprob,
        logprobs=so_far.logprobs,
        finish_reason=so_far.finish_reason,
        stop_reason=so_far.stop_reason,
    )


async def serve(end: socket.socket) -> None:
    """Serves the front at the other end of a socket."""
    channel = await Channel.over(end)
    async for frame in channel.frames():
        (start,) = decode_to_replica(frame)
        assert isinstance(start, Start)
        if start.cores and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, start.cores)  # before there are threads, which inherit it
        await Replica(channel, start).run()
        break
    await channel.drain()


def main(arguments: Sequence[str]) -> None:
    asyncio.run(serve(socket.socket(fileno=int(arguments[0]))))


if __name__ == "__main__":
    main(sys.argv[1:])
