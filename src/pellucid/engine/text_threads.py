"""Text threads: encode prompts and render chat templates beside the engine thread."""

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from pellucid.engine.engine_thread import EngineStoppedError, TooManyRequestsError

Result = TypeVar("Result")

MAX_THREADS = 4  # as many as chat templates are rendered at a time


class TextThreads:
    """A bounded pool of threads with a bounded queue: a slow text delays only texts that wait in this queue.

    Args:
        max_waiting: texts that are encoded or wait for it.
        num_threads: left out, as many as there are processors, within bounds.
    """

    def __init__(self, max_waiting: int, num_threads: int | None = None) -> None:
        self._max_waiting = max_waiting
        self._num_waiting = 0
        self._lock = threading.Lock()
        self._executor = ThreadPoolExecutor(
            num_threads or min(MAX_THREADS, max(2, os.cpu_count() or 2)), "pellucid-text"
        )

    async def run(self, function: Callable[[], Result]) -> Result:
        """Calls `function` on one of the threads.

        Raises:
            TooManyRequestsError: the queue is full.
        """
        with self._lock:
            if self._num_waiting == self._max_waiting:
                raise TooManyRequestsError(
                    f"{self._max_waiting} texts wait to be encoded: try again later"
                )
            self._num_waiting += 1
        try:
            future = self._executor.submit(function)
        except RuntimeError:
            self._leave()
            raise EngineStoppedError("the engine was shut down") from None
        future.add_done_callback(lambda _: self._leave())
        return await asyncio.wrap_future(future)

    def stop(self) -> None:
        """Ends the threads after what they are doing, and cancels what waits. From any thread."""
        with suppress(RuntimeError):  # one of them cannot wait for itself
            self._executor.shutdown(cancel_futures=True)

    def _leave(self) -> None:
        with self._lock:
            self._num_waiting -= 1
