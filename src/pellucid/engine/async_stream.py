"""The stream of one request's deltas on an asyncio event loop."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import final

from pellucid.outputs import CompletionDelta, RequestOutput


class Signal:
    """Wakes the one task that waits for it: an `asyncio.Event`, which wakes many, takes three times as long.

    Args:
        loop: that the task runs on, and `set` is called on.
    """

    __slots__ = ("_is_set", "_loop", "_waiter")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._is_set = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        self._is_set = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self) -> None:
        """Returns once it is set, at once if it was set since the last return."""
        while not self._is_set:
            self._waiter = self._loop.create_future()
            await self._waiter
        self._is_set = False


@final
class AsyncTokenStream:
    """The deltas of one request, for one reader. `AsyncLLMEngine.add_request` makes it.

    Iterate with `async for`; leaving an `async with` block aborts the request if it has not ended. A reader
    slower than the engine gets the tokens of several steps in one delta: nothing is lost, the engine never
    waits, and unread deltas take no more memory than the completions.

    Its fields belong to the event loop that it was made on; the engine's thread reaches them through
    that loop alone.

    Args:
        abort: tells the engine that no task reads the stream any more.

    Attributes:
        loop: the event loop it was made on.
    """

    __slots__ = (
        "__weakref__",
        "_abort",
        "_changed",
        "_ended",
        "_error",
        "_on_delta",
        "_on_end",
        "_output",
        "_unread",
        "_when_ended",
        "loop",
    )

    def __init__(self, abort: Callable[["AsyncTokenStream"], None]) -> None:
        self.loop = asyncio.get_running_loop()
        self._changed = Signal(self.loop)
        self._on_delta: Callable[[CompletionDelta], bool] | None = None
        self._on_end: Callable[[], None] | None = None
        self._when_ended: Callable[[], None] | None = None
        self._abort = abort
        self._output: RequestOutput | None = None
        # By completion, the one unread for longest first.
        self._unread: dict[int, CompletionDelta | _MergedDeltas] = {}
        self._ended = False
        self._error: Exception | None = None

    @property
    def output(self) -> RequestOutput:
        """The request so far. The engine's thread fills it: complete once the stream has ended."""
        assert self._output is not None  # set before a caller gets the stream
        return self._output

    @property
    def is_started(self) -> bool:
        return self._output is not None

    @property
    def request_id(self) -> str:
        return self.output.request_id

    def __aiter__(self) -> "AsyncTokenStream":
        return self

    async def __anext__(self) -> CompletionDelta:
        """What steps have added to one completion since its last delta.

        Raises:
            EngineStoppedError: the engine failed before the request ended.
        """
        while not self._unread:
            if self._error is not None:
                raise self._error
            if self._ended:
                raise StopAsyncIteration
            await self._changed.wait()
        return _whole(self._unread.pop(next(iter(self._unread))))

    def call_back(
        self, on_delta: Callable[[CompletionDelta], bool], on_end: Callable[[], None]
    ) -> None:
        """Calls `on_delta` and `on_end` from now on, in the event loop's callback that brings the deltas of a
        step: for readers for which waking a task for each delta is too slow.

        Args:
            on_delta: is given each delta, unless an earlier one is unread. Returns whether it has read the delta;
                otherwise `take` returns the delta. Must not raise.
            on_end: called after the last delta. Must not raise.
        """
        self._on_delta = on_delta
        self._on_end = on_end

    def when_ended(self, callback: Callable[[], None]) -> None:
        """Calls `callback` when the engine has nothing more to add, whether or not everything was read; at once if
        that is so already. Must not raise."""
        if self._ended:
            callback()
        else:
            self._when_ended = callback

    @property
    def has_all_deltas(self) -> bool:
        """Whether the engine has nothing more to add."""
        return self._ended

    @property
    def has_ended(self) -> bool:
        """Whether everything was read."""
        return self._ended and not self._unread and self._error is None

    @property
    def is_readable(self) -> bool:
        """Whether a delta is unread, or the stream has ended."""
        return bool(self._unread) or self._ended

    def take(self) -> list[CompletionDelta]:
        """The unread deltas, without waiting: at most one for each completion.

        Raises:
            EngineStoppedError: nothing is unread, and the engine failed before the request ended.
        """
        if not self._unread:
            if self._error is not None:
                raise self._error
            return []
        unread, self._unread = self._unread, {}
        return [_whole(each) for each in unread.values()]

    async def complete(self) -> RequestOutput:
        """Reads to the end; the whole output. Its task wakes once, not for every delta.

        Raises:
            EngineStoppedError: the engine failed before the request ended.
        """
        self._on_delta = lambda delta: True
        self._unread.clear()
        while not self._ended:
            await self._changed.wait()
        if self._error is not None:
            raise self._error
        return self.output

    async def aclose(self) -> None:
        """Ends the stream, and aborts the request if it has not ended."""
        if not self._ended:
            self._abort(self)
        self.end()
        self._unread.clear()

    async def __aenter__(self) -> "AsyncTokenStream":
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    # Of the engine. `start` is called on its thread, before the stream is handed out; the others on
    # the stream's loop.

    def start(self, output: RequestOutput) -> None:
        self._output = output

    def receive(self, delta: CompletionDelta) -> None:
        if self._ended:
            return  # closed by its reader
        if self._on_delta is not None and not self._unread and self._on_delta(delta):
            return
        unread = self._unread.get(delta.index)
        if unread is None:
            self._unread[delta.index] = delta
        elif isinstance(unread, _MergedDeltas):
            unread.add(delta)
        else:
            self._unread[delta.index] = _MergedDeltas(unread, delta)
        self._changed.set()

    def end(self, error: Exception | None = None) -> None:
        """Marks the stream as ended; `error`: the engine failed with it."""
        if not self._ended:
            self._ended = True
            self._error = error
            self._changed.set()
            if self._when_ended is not None:
                self._when_ended()
            if self._on_end is not None:
                self._on_end()


class _MergedDeltas:
    """Deltas of one completion whose reader is slower than the engine."""

    def __init__(self, first: CompletionDelta, second: CompletionDelta) -> None:
        self._last = first
        self._texts = [first.text]
        self._token_ids = list(first.token_ids)
        self._logprobs = None if first.logprobs is None else list(first.logprobs)
        self.add(second)

    def add(self, delta: CompletionDelta) -> None:
        self._last = delta
        self._texts.append(delta.text)
        self._token_ids += delta.token_ids
        if delta.logprobs is not None:
            self._logprobs = self._logprobs or []
            self._logprobs += delta.logprobs

    def delta(self) -> CompletionDelta:
        return replace(
            self._last,
            text="".join(self._texts),
            token_ids=self._token_ids,
            logprobs=self._logprobs,
        )


def _whole(unread: CompletionDelta | _MergedDeltas) -> CompletionDelta:
    return unread.delta() if isinstance(unread, _MergedDeltas) else unread


def call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> bool:
    """Schedules a callback on a loop. Returns False if the loop was closed."""
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:
        if loop.is_closed():
            return False
        raise
    return True
