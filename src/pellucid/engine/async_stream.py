"""The stream of one request's deltas on an asyncio event loop."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import final

from pellucid.outputs import CompletionDelta, LogprobsAt, RequestOutput


@final
class AsyncTokenStream:
    """What steps add to one request, for one reader. `AsyncLLMEngine.add_request` makes it.

    Iterate with `async for`; leaving an `async with` block aborts what is still under way. A reader
    slower than the engine is given the tokens of several steps in one delta: nothing is lost, the
    engine never waits, and what is unread is never more than the completions.

    Its fields belong to the event loop that it was made on; the engine's thread reaches them through
    that loop alone.

    Args:
        abort: tells the engine that nobody reads this any more.

    Attributes:
        loop: the event loop it was made on.
    """

    def __init__(self, abort: Callable[["AsyncTokenStream"], None]) -> None:
        self.loop = asyncio.get_running_loop()
        self._abort = abort
        self._output: RequestOutput | None = None
        self._unread: dict[int, _Unread] = {}  # by completion, the one unread for longest first
        self._ended = False
        self._error: Exception | None = None
        self._changed = asyncio.Event()

    @property
    def output(self) -> RequestOutput:
        """The request so far. The engine's thread fills it: complete once the stream has ended."""
        assert self._output is not None  # set before anybody is given the stream
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
        """What was added to one completion since its last delta.

        Raises:
            EngineStoppedError: the engine failed before the request ended.
        """
        while not self._unread:
            if self._error is not None:
                raise self._error
            if self._ended:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        return self._unread.pop(next(iter(self._unread))).delta()

    async def complete(self) -> RequestOutput:
        """Reads to the end; the whole output.

        Raises:
            EngineStoppedError: the engine failed before the request ended.
        """
        async for _ in self:
            pass
        return self.output

    async def aclose(self) -> None:
        """Ends the stream, and the request if it is still under way."""
        if not self._ended:
            self._abort(self)
        self.end()
        self._unread.clear()

    async def __aenter__(self) -> "AsyncTokenStream":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    # Of the engine. `start` is called on its thread, before the stream is handed out; the others on
    # the stream's loop.

    def start(self, output: RequestOutput) -> None:
        self._output = output

    def receive(self, delta: CompletionDelta) -> None:
        if self._ended:
            return  # closed by its reader
        unread = self._unread.get(delta.index)
        if unread is None:
            self._unread[delta.index] = _Unread(delta)
        else:
            unread.add(delta)
        self._changed.set()

    def end(self, error: Exception | None = None) -> None:
        """Nothing comes any more; with `error`, because the engine failed."""
        if not self._ended:
            self._ended = True
            self._error = error
            self._changed.set()


class _Unread:
    """Deltas of one completion, merged."""

    def __init__(self, delta: CompletionDelta) -> None:
        self._last = delta
        self._texts = [delta.text]
        self._token_ids = list(delta.token_ids)
        self._logprobs: list[LogprobsAt] | None = delta.logprobs and list(delta.logprobs)

    def add(self, delta: CompletionDelta) -> None:
        self._last = delta
        self._texts.append(delta.text)
        self._token_ids += delta.token_ids
        if delta.logprobs is not None:
            self._logprobs = (self._logprobs or []) + delta.logprobs

    def delta(self) -> CompletionDelta:
        if len(self._texts) == 1:  # its reader keeps up
            return self._last
        return replace(
            self._last,
            text="".join(self._texts),
            token_ids=self._token_ids,
            logprobs=self._logprobs,
        )
