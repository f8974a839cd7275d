"""A replica: one engine, and the fronts that it serves."""

import asyncio
from collections.abc import Callable

from pellucid.async_engine import AsyncLLMEngine, BlockKey, Inspector
from pellucid.cluster.block_labels import LABELLED_GROUP, label
from pellucid.cluster.front_session import FrontSession
from pellucid.engine import LLMEngine
from pellucid.engine.crash_report import write_crash_report
from pellucid.inputs.config import EngineConfig


def load_engine(
    config: EngineConfig, max_requests: int, on_lost_stage: Callable[[], None] | None = None
) -> AsyncLLMEngine:
    """Loads the engine of a replica: it says nothing on the terminal.

    Args:
        on_lost_stage: called on any thread when a stage has gone, before a request fails for that.

    Raises:
        ValueError, OSError, RuntimeError: it cannot be loaded.
    """
    engine = LLMEngine.from_config(config, on_note=lambda note: None)
    if on_lost_stage is not None and (elsewhere := engine.model.elsewhere) is not None:
        elsewhere.when_lost(on_lost_stage)
    return AsyncLLMEngine(engine, max_requests, write_crash_report)


class Replica:
    """One engine. All but `added`, `removed` and `_watch` runs on the event loop that makes it.

    Args:
        engine: without requests yet.
    """

    def __init__(self, engine: AsyncLLMEngine) -> None:
        self.engine = engine
        self._sessions: list[FrontSession] = []
        self._watching: list[
            FrontSession
        ] = []  # of the prefix index; belongs to the engine's thread
        engine.watch_prefixes(self)

    async def serve(self, send: Callable[[bytes], None]) -> FrontSession:
        """Serves another front from now on.

        Args:
            send: takes frames for the front; called on this event loop.

        Returns:
            To be told what the front sends, and to be closed.
        """
        session = FrontSession(self.engine, send, self._close)
        self._sessions.append(session)
        session.begin()
        await self.engine.inspect(lambda inspector: self._watch(session, inspector))
        self._tell_of_others()
        return session

    @property
    def num_requests(self) -> int:
        """Unfinished requests of all fronts."""
        return sum(session.num_requests for session in self._sessions)

    async def keep_fronts_informed(self, seconds: float = 1.0) -> None:
        """Tells each front again and again that the replica lives, and what it does for other fronts."""
        while True:
            await asyncio.sleep(seconds)
            for session in self._sessions:
                session.show_life()
            self._tell_of_others()

    def _tell_of_others(self) -> None:
        loads = [(each.num_requests, each.num_prompt_tokens) for each in self._sessions]
        all_requests, all_tokens = (
            (sum(numbers) for numbers in zip(*loads, strict=True)) if loads else (0, 0)
        )
        for session, (num_requests, num_tokens) in zip(self._sessions, loads, strict=True):
            session.tell_of_others(all_requests - num_requests, all_tokens - num_tokens)

    def _close(self, session: FrontSession) -> None:
        self._sessions.remove(session)
        self._watching = [each for each in self._watching if each is not session]

    # ---- the prefix index, on the engine's thread

    def _watch(self, session: FrontSession, inspector: Inspector) -> None:
        """A front gets all blocks, and then the changes."""
        for node in inspector.prefix_tree():
            if node.group == LABELLED_GROUP:
                session.block_changed(int(node.block_hash, 16), is_added=True)
        self._watching = [*self._watching, session]

    def added(self, key: BlockKey) -> None:
        self._changed(key, is_added=True)

    def removed(self, key: BlockKey) -> None:
        self._changed(key, is_added=False)

    def _changed(self, key: BlockKey, is_added: bool) -> None:
        if key.group == LABELLED_GROUP:
            for session in self._watching:
                session.block_changed(label(key.block_hash), is_added)
