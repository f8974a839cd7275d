"""The engine thread: the only thread that uses the engine of an AsyncLLMEngine."""

import asyncio
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TypeAlias, TypeVar

from pellucid.engine import LLMEngine
from pellucid.engine.async_stream import AsyncTokenStream, call_soon
from pellucid.outputs import CompletionDelta, RequestOutput

Result = TypeVar("Result")


class EngineStoppedError(RuntimeError):
    """The engine was shut down, or failed: `__cause__` says with what."""


class TooManyRequestsError(RuntimeError):
    """The engine has as many unfinished requests as it may have. Try again later."""


class EngineThread:
    """Owns an engine: runs steps while there are requests, and runs calls of other threads between steps.

    Args:
        engine: from now on used by this thread alone.
        max_requests: most unfinished requests, running and waiting together.
        on_failure: called on this thread with the error that ended it; not called after `stop`.

    Attributes:
        last_step_time: when the last step ended, on the engine's clock; None before the first.
        progress_time: when the last step ended, or when it got the first of its unfinished requests if that was
            later, by `time.monotonic`; None: it has none.
        failure: the error that ended the thread; None after `stop`.
    """

    def __init__(
        self,
        engine: LLMEngine,
        max_requests: int,
        on_failure: Callable[[LLMEngine, BaseException], object] | None = None,
    ) -> None:
        self.engine = engine
        self.max_requests = max_requests
        self._on_failure = on_failure
        self.last_step_time: float | None = None
        self.progress_time: float | None = None
        self._streams: dict[str, AsyncTokenStream] = {}  # by request_id, unfinished
        self._stopping = False
        # Other threads write the fields below under this lock. Once `_stopped` is set, nobody waits for what is put
        # into `_calls`. Re-entrant, because garbage collection while the lock is held may call `stop`.
        self._lock = threading.RLock()
        self._num_requests = 0  # unfinished, or admitted and not added yet
        self._num_added = 0  # of these, those that were added
        self._accepting = True
        self._stopped = False
        self.failure: BaseException | None = None
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        # A daemon, so that the interpreter can exit: see AsyncLLMEngine.
        self._thread = threading.Thread(target=self._run, name="pellucid-engine", daemon=True)
        self._thread.start()

    # For any thread.

    @property
    def is_accepting(self) -> bool:
        return self._accepting

    @property
    def num_requests(self) -> int:
        return self._num_requests

    def admit(self) -> None:
        """Reserves one of the `max_requests` places. Call `add` or `give_up` afterwards.

        Raises:
            EngineStoppedError: the engine has ended or is about to.
            TooManyRequestsError: there is no place.
        """
        with self._lock:
            if not self._accepting:
                raise self._stopped_error()
            if self._num_requests == self.max_requests:
                raise TooManyRequestsError(
                    f"{self.max_requests} requests are unfinished, and max_requests is"
                    f" {self.max_requests}: try again later"
                )
            self._num_requests += 1

    def give_up(self) -> None:
        """Gives back the place of one request."""
        with self._lock:
            self._num_requests -= 1

    def call(self, function: Callable[[], Result]) -> Future[Result]:
        """Calls `function` on this thread after the current step. Calls run in the order in which they were made.

        Returns:
            The function's result or exception; an EngineStoppedError if the thread ends before the call. If
            the future is cancelled before its turn, `function` is not called.
        """
        future: Future[Result] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return  # the caller gave up before its turn
            try:
                if self._stopped:
                    raise self._stopped_error()
                future.set_result(function())
            except Exception as error:
                future.set_exception(error)
            except BaseException as error:  # a panic, or SystemExit: ends the thread
                self.failure = error
                future.set_exception(self._stopped_error())
                raise

        with self._lock:
            if not self._stopped:
                self._calls.put(run)
                return future
        run()
        return future

    async def ask(self, function: Callable[[], Result]) -> Result:
        """As `call`, for a task of an event loop."""
        return await asyncio.wrap_future(self.call(function))

    def add(
        self, stream: AsyncTokenStream, add_request: Callable[[], RequestOutput]
    ) -> Future[None]:
        """Starts a request that was admitted; its deltas go to `stream`.

        Returns:
            As `call`. If `add_request` fails, the place is given back.
        """
        with self._lock:
            if not self._num_added:
                self.progress_time = time.monotonic()
            self._num_added += 1
        added = self.call(partial(self._add, stream, add_request))
        added.add_done_callback(lambda _: self._end_one() if added.exception() else None)
        return added

    def stop(self, *, drain: bool) -> None:
        """Ends the thread, once the requests have ended (`drain`) or at once, aborting them."""
        with self._lock:
            self._accepting = False
            self._calls.put(lambda: self._begin_to_stop(drain))  # never called if it has stopped

    def join(self) -> None:
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # For this thread alone, through `call`.

    def abort(self, request_id: str) -> None:
        if request_id in self._streams:
            self._deliver(self.engine.abort(request_id))

    def abort_stream(self, stream: AsyncTokenStream) -> None:
        """As `abort`, unless the stream was never started or another request has its id now."""
        if stream.is_started and self._streams.get(stream.request_id) is stream:
            self.abort(stream.request_id)

    def _add(self, stream: AsyncTokenStream, add_request: Callable[[], RequestOutput]) -> None:
        if self._stopping:
            raise self._stopped_error()
        output = add_request()
        stream.start(output)
        self._streams[output.request_id] = stream

    def _begin_to_stop(self, drain: bool) -> None:
        self._stopping = True
        if not drain:
            for request_id in tuple(self._streams):
                self.abort(request_id)

    def _run(self) -> None:
        try:
            while not self._stopping or self.engine.has_unfinished_requests:
                self._answer_calls()
                if self.engine.has_unfinished_requests:
                    deltas = self.engine.step()
                    self.last_step_time = self.engine.clock()
                    self.progress_time = time.monotonic()
                    self._deliver(deltas)
            self.engine.close()
        except BaseException as error:  # panics of Rust and SystemExit are no Exceptions
            self.failure = error
            if self._on_failure is not None:
                with suppress(Exception):
                    self._on_failure(self.engine, error)
        finally:
            self._end()

    def _end(self) -> None:
        """Ends every stream, and fails every call that has not run."""
        with self._lock:
            self._accepting = False
            self._stopped = True
        for request_id, stream in tuple(self._streams.items()):
            self._forget(request_id)
            with suppress(Exception):  # the other streams must end too
                call_soon(stream.loop, partial(stream.end, self._stopped_error()))
        while not self._calls.empty():
            self._calls.get()()

    def _answer_calls(self) -> None:
        """Runs all waiting calls; if there are no requests, waits for the next call."""
        if not self._stopping and not self.engine.has_unfinished_requests:
            self._calls.get()()
        while not self._calls.empty():
            self._calls.get()()

    def _deliver(self, deltas: Sequence[CompletionDelta]) -> None:
        """Hands deltas to the event loops of their streams, in one call for each loop."""
        # By request: only a request all of whose deltas have an end can have ended
        last = {delta.request_id: delta for delta in deltas if delta.finish_reason is not None}
        by_loop: dict[asyncio.AbstractEventLoop, list[_Delivery]] = defaultdict(list)
        unread: set[str] = set()  # their loops were closed
        for delta in deltas:
            stream = self._streams[delta.request_id]
            ends = last.get(delta.request_id) is delta and stream.output.finished
            if ends:
                self._forget(delta.request_id)
            by_loop[stream.loop].append((stream, delta, ends))
        for loop, deliveries in by_loop.items():
            if not call_soon(loop, partial(_receive, deliveries)):
                unread |= {delta.request_id for _, delta, ends in deliveries if not ends}
        for request_id in unread:
            self.abort(request_id)

    def _forget(self, request_id: str) -> None:
        del self._streams[request_id]
        self._end_one()

    def _end_one(self) -> None:
        """Counts a request that was added and has ended."""
        with self._lock:
            self._num_added -= 1
            if not self._num_added:
                self.progress_time = None
        self.give_up()

    def _stopped_error(self) -> EngineStoppedError:
        if self.failure is None:
            return EngineStoppedError("the engine was shut down")
        error = EngineStoppedError(f"the engine failed: {self.failure!r}")
        error.__cause__ = self.failure
        return error


# True: the stream's last delta.
_Delivery: TypeAlias = tuple[AsyncTokenStream, CompletionDelta, bool]


def _receive(deliveries: Sequence[_Delivery]) -> None:
    for stream, delta, ends in deliveries:
        stream.receive(delta)
        if ends:
            stream.end()
