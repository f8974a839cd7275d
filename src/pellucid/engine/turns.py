"""Lets threads use an engine in turn, and delays Ctrl-C until the end of a step."""

# `signal` without its conversions to enums, which take 10 us: a stream defers Ctrl-C for each token.
import _signal  # type: ignore[import-not-found]
import signal
import threading
from collections import deque
from types import FrameType
from typing import Any, final


class FairLock:
    """A lock that waiting threads get in the order in which they asked.

    `threading.Lock` promises no order: a thread that runs step after step would keep it from the others.
    An exception (of a signal handler) may end the wait of a thread.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()  # of the two fields below
        self._owner: int | None = None  # a thread's identifier
        self._waiting: deque[tuple[int, threading.Lock]] = deque()

    @property
    def is_mine(self) -> bool:
        """Whether the calling thread holds the lock."""
        return self._owner == threading.get_ident()

    def acquire(self) -> None:
        with self._guard:
            if self._owner is None:
                self._owner = threading.get_ident()
                return
            own = threading.Lock()
            own.acquire()
            self._waiting.append((threading.get_ident(), own))
        try:
            own.acquire()  # until `release` of another thread
        except BaseException:
            with self._guard:
                was_waiting = (threading.get_ident(), own) in self._waiting
                if was_waiting:
                    self._waiting.remove((threading.get_ident(), own))
            if not was_waiting:
                self.release()
            raise

    def try_acquire(self) -> bool:
        """Takes the lock if that needs no waiting. Garbage collection may call it at any point."""
        if not self._guard.acquire(blocking=False):
            return False
        try:
            if self._owner is not None:
                return False
            self._owner = threading.get_ident()
            return True
        finally:
            self._guard.release()

    def release(self) -> None:
        with self._guard:
            if not self._waiting:
                self._owner = None
                return
            self._owner, next_thread = self._waiting.popleft()
            next_thread.release()


@final
class DeferredInterrupt:
    """A block in which Ctrl-C takes effect only where `check` is called, and at the end.

    An exception in the middle of a step, or between queueing a request and noting it, would leave the
    engine with requests that no caller can end. A second Ctrl-C takes effect at once. Python runs signal
    handlers on the main thread, so on other threads there is nothing to defer.
    """

    def __init__(self) -> None:
        self._handler: Any = None  # the one to call later
        self._is_pending = False

    def check(self) -> None:
        """Lets a Ctrl-C that has arrived take effect: usually raises KeyboardInterrupt."""
        if self._is_pending:
            self._is_pending = False
            self._handler(signal.SIGINT, None)

    def __enter__(self) -> "DeferredInterrupt":
        if threading.current_thread() is threading.main_thread():
            handler = _signal.getsignal(signal.SIGINT)
            if callable(handler):
                self._handler = handler
                _signal.signal(signal.SIGINT, self._defer)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._handler is not None:
            _signal.signal(signal.SIGINT, self._handler)
            self.check()

    def _defer(self, number: int, frame: FrameType | None) -> None:
        if self._is_pending:
            self._handler(number, frame)
        self._is_pending = True
