"""Shares one engine among threads: threads run steps in turn, and each step computes the requests of all."""

import weakref
from collections import deque
from collections.abc import Sequence
from typing import Protocol, final

from pellucid.engine.llm_engine import LLMEngine
from pellucid.engine.turns import DeferredInterrupt, FairLock
from pellucid.inputs.beam_search_params import RequestParams
from pellucid.inputs.prompts import EncodedPrompt
from pellucid.outputs import CompletionDelta, RequestOutput


class Reader(Protocol):
    """The caller of a request, which gets what each step adds to the answer."""

    def receive(self, delta: CompletionDelta) -> None: ...


@final
class SharedEngine:
    """Lends an engine to one thread at a time, in the order in which threads ask.

        with shared:            # this thread's turn
            shared.add(...)
            shared.step()

    Readers are held weakly. The request of a reader that was collected is aborted.

    Args:
        engine: used by the thread of the `with` block alone while the block runs.
    """

    def __init__(self, engine: LLMEngine) -> None:
        self._engine: LLMEngine | None = engine
        self._turns = FairLock()
        self._readers: weakref.WeakValueDictionary[str, Reader] = weakref.WeakValueDictionary()
        self._abandoned: deque[str] = deque()  # request ids

    @property
    def engine(self) -> LLMEngine:
        """Raises ValueError after `close`."""
        if self._engine is None:
            raise ValueError("this LLM is closed; make another one")
        return self._engine

    def __enter__(self) -> "SharedEngine":
        if self._turns.is_mine:
            raise RuntimeError(
                "the engine is running a step: a subscriber to its events cannot call it"
            )
        self._turns.acquire()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._abort_abandoned()
        self._turns.release()

    def add(
        self,
        reader: Reader,
        prompt: EncodedPrompt,
        params: RequestParams,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> RequestOutput:
        """Queues a request, in this thread's turn. See `LLMEngine.add_request`."""
        output = self.engine.add_request(prompt, params, priority=priority, cache_salt=cache_salt)
        self._readers[output.request_id] = reader
        return output

    def step(self) -> None:
        """Runs one step, in this thread's turn, and gives each reader what the step added."""
        self._deliver(self.engine.step())

    def abort(self, request_id: str) -> None:
        """Ends a request, in this thread's turn. After `close` there is nothing to end."""
        self._readers.pop(request_id, None)
        if self._engine is not None:
            self._deliver(self._engine.abort(request_id))

    def abandon(self, request_id: str) -> None:
        """Ends a request whose reader was collected: now, or at the end of the current turn.

        From any thread, and from a finalizer.
        """
        with DeferredInterrupt():
            self._abandoned.append(request_id)
            if self._turns.try_acquire():
                self._abort_abandoned()
                self._turns.release()

    def close(self) -> None:
        """Aborts all requests and closes the engine, in this thread's turn; then lets go of it."""
        if self._engine is None:
            return
        for request_id in list(self._engine.unfinished_request_ids):
            self.abort(request_id)
        self._engine.close()
        self._engine = None

    def _deliver(self, deltas: Sequence[CompletionDelta]) -> None:
        for delta in deltas:
            reader = self._readers.get(delta.request_id)
            if reader is not None:
                reader.receive(delta)

    def _abort_abandoned(self) -> None:
        while self._abandoned:
            self.abort(self._abandoned.popleft())
