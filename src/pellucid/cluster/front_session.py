"""What one front has asked of an engine, and what the engine says to it."""

import asyncio
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import msgspec

from pellucid.async_engine import (
    AsyncLLMEngine,
    AsyncTokenStream,
    EngineStoppedError,
    Inspector,
    TooManyRequestsError,
)
from pellucid.cluster.block_labels import LABELLED_GROUP
from pellucid.cluster.messages import (
    Abort,
    Add,
    Added,
    Alive,
    Answer,
    Ask,
    BlocksChanged,
    CompletionSoFar,
    Delta,
    Emitted,
    FromReplica,
    OtherFronts,
    Progress,
    Ready,
    Refused,
    Start,
    Stop,
    encode,
)
from pellucid.inputs.prompts import EncodedPrompt
from pellucid.observing.events import EventRecord, Hello, Level
from pellucid.outputs import CompletionDelta, CompletionOutput, RequestMetrics, RequestOutput


class FrontSession:
    """The requests of one front. All but `block_changed` and `_hear` runs on the event loop that makes it.

    Args:
        engine: computes the requests.
        send: takes frames for the front.
        on_close: called when the front is not served any more.

    Attributes:
        num_requests: unfinished.
    """

    def __init__(
        self,
        engine: AsyncLLMEngine,
        send: Callable[[bytes], None],
        on_close: Callable[["FrontSession"], None],
    ) -> None:
        self._engine = engine
        self._send = send
        self._on_close = on_close
        self._loop = asyncio.get_running_loop()
        self._unsent: list[FromReplica] = []
        self._changes: deque[tuple[int, bool]] = deque()
        self._events: deque[EventRecord] = deque()
        self._is_woken = False
        self._streams: dict[str, _Stream] = {}
        self._adding: dict[str, bool] = {}  # whether it is to be aborted
        self._others = (0, 0)
        self._tasks: set[asyncio.Task[None]] = set()
        self._unsubscribe: Callable[[], None]

    def begin(self) -> None:
        """Says what the engine is, before all else."""
        facts, num_threads = self._engine.identity.facts(), self._engine.num_compute_threads
        self._send(encode([Ready(facts, num_threads, time.monotonic())]))
        self._unsubscribe = self._engine.events.subscribe(self._hear, Level.STAT)

    def close(self) -> None:
        """The front has ended: nobody waits for its requests."""
        self._unsubscribe()
        self._on_close(self)
        self._send = lambda frame: None
        for request_id in self._adding:
            self._adding[request_id] = True
        for request_id in self._streams:
            self._engine.abort(request_id)

    @property
    def num_requests(self) -> int:
        return len(self._adding) + len(self._streams)

    @property
    def num_prompt_tokens(self) -> int:
        """Of prompts that are not computed yet."""
        return sum(each.num_prompt_tokens for each in self._streams.values())

    def show_life(self) -> None:
        """Says how far the requests are, if there are any."""
        end_if_failed(self._engine)
        if self._streams:
            for stream in self._streams.values():
                stream.tell_progress()
            self._tell(Alive(self._engine.seconds_without_step))

    def tell_of_others(self, num_requests: int, num_tokens: int) -> None:
        """Says what the engine has to do for other fronts."""
        if (num_requests, num_tokens) != self._others:
            self._others = num_requests, num_tokens
            self._tell(OtherFronts(num_requests, num_tokens))

    # ---- on the engine's thread

    def block_changed(self, block: int, is_added: bool) -> None:
        """The prefix index has got or lost a block: its label."""
        self._changes.append((block, is_added))
        self._wake()

    def _hear(self, record: EventRecord) -> None:
        request = getattr(record.event, "req", "").partition("/")[0]
        is_own = request in self._adding or request in self._streams
        if is_own or isinstance(record.event, Hello):
            self._events.append(record)
            self._wake()

    def _wake(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            self._loop.call_soon_threadsafe(self._flush)

    # ---- requests

    def obey(self, message: Add | Abort | Ask | Start | Stop) -> None:
        """Obeys a message of the front about requests."""
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
            end_if_failed(self._engine)
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
            end_if_failed(self._engine)
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

    # ---- messages to the front

    def tell(self, message: FromReplica) -> None:
        """Sends a message with the others of this turn of the event loop."""
        self._tell(message)

    def forget(self, request_id: str) -> None:
        """A request has ended."""
        del self._streams[request_id]
        end_if_failed(self._engine)

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
            self._send(encode(messages))


class _Stream:
    """The stream of one request, on its way to the front."""

    def __init__(self, session: FrontSession, stream: AsyncTokenStream) -> None:
        self._session = session
        self._stream = stream
        self._has_told = self._has_told_prompt = False

    @property
    def num_prompt_tokens(self) -> int:
        """That are not computed yet."""
        return 0 if self._has_told else len(self._stream.output.prompt_token_ids)

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
            self._session.tell(self._progress(has_ended=False))

    def _on_delta(self, delta: CompletionDelta) -> bool:
        if not self._has_told:
            self._has_told = True
            self._session.tell(self._progress(has_ended=False))
        total = None
        if delta.finish_reason is not None:
            total = self._stream.output.outputs[delta.index].cumulative_logprob
        self._session.tell(
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
            self._session.tell(self._progress(has_ended=True))
        self._session.forget(self._stream.request_id)

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


def end_if_failed(engine: AsyncLLMEngine) -> None:
    """A process whose engine has failed is of no use: another one takes its place."""
    if engine.failure is not None:
        sys.stderr.write(f"the engine of a replica failed: {engine.failure!r}\n")
        os._exit(1)
