"""The deployment that computes: an engine in each of Ray Serve's replicas."""

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import ray
from ray import serve

from pellucid.async_engine import AsyncLLMEngine
from pellucid.cluster.front_session import FrontSession
from pellucid.cluster.messages import decode_to_replica
from pellucid.cluster.replica import Replica, load_engine
from pellucid.cluster.replica_pool import plan_replica
from pellucid.inputs.config import EngineConfig
from pellucid.loaded_model import load_without_weights
from pellucid.serve_ray.settings import Settings

SILENCE_SECONDS = 60.0  # without a frame of a front, after which it is taken to have ended
STALL_SECONDS = 120.0  # without a step while there are requests, after which Ray replaces a replica


@dataclass
class _Conversation:
    session: FrontSession
    outbox: "asyncio.Queue[bytes | None]"  # None: the conversation ends
    heard_at: float


class EngineReplica:
    """One engine, and its conversations with the fronts.

    Args:
        config: of the engine.
        settings: of the application.
    """

    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self, config: EngineConfig, settings: Settings
    ) -> None:
        self._name = serve.get_replica_context().replica_id.unique_id
        self._conversations: dict[str, _Conversation] = {}
        self._loop = asyncio.get_running_loop()
        engine = await asyncio.to_thread(_load, config, settings)
        self._replica = Replica(engine)
        self._tasks = [
            asyncio.create_task(self._replica.keep_fronts_informed()),
            asyncio.create_task(self._forget_silent_fronts()),
        ]

    async def converse(self, conversation: str) -> AsyncIterator[list[bytes]]:
        """Frames for a front, until it cancels the call. First come the replica's name and the number of its process.

        Args:
            conversation: a new id.
        """
        outbox: asyncio.Queue[bytes | None] = asyncio.Queue()
        session = await self._replica.serve(outbox.put_nowait)
        self._conversations[conversation] = _Conversation(session, outbox, self._loop.time())
        try:
            yield [self._name.encode(), str(os.getpid()).encode()]
            while (frame := await outbox.get()) is not None:
                frames = [frame]
                while not outbox.empty() and (frame := outbox.get_nowait()) is not None:
                    frames.append(frame)
                yield frames
                if frame is None:
                    return
        finally:
            del self._conversations[conversation]
            session.close()

    async def tell(self, conversation: str, frame: bytes) -> bool:
        """Takes a frame of a front. An empty one says that the front is there.

        Returns:
            Whether there is such a conversation.
        """
        if (found := self._conversations.get(conversation)) is None:
            return False
        found.heard_at = self._loop.time()
        for message in decode_to_replica(frame) if frame else ():
            found.session.obey(message)
        return True

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What `ReplicasNeeded` goes by."""
        usage = await self._replica.engine.kv_cache_usage()
        return {
            "requests": float(self._replica.num_requests),
            "kv_usage": usage.num_used_blocks / usage.num_blocks,
        }

    def check_health(self) -> None:
        """Ray replaces a replica for which this fails three times.

        Raises:
            RuntimeError: no step has ended for too long.
        """
        if (seconds := self._replica.engine.seconds_without_step) > STALL_SECONDS:
            raise RuntimeError(f"no step has ended for {seconds:.0f} seconds")

    async def _forget_silent_fronts(self) -> None:
        while True:
            await asyncio.sleep(SILENCE_SECONDS / 10)
            for conversation in self._conversations.values():
                if self._loop.time() - conversation.heard_at > SILENCE_SECONDS:
                    conversation.outbox.put_nowait(None)


def _load(config: EngineConfig, settings: Settings) -> AsyncLLMEngine:
    """Loads the engine. On a machine with room for several by its cores, each gets an equal share of the memory."""
    if not settings.num_gpus:
        here = ray.get_runtime_context().get_node_id()
        (node,) = [each for each in ray.nodes() if each["NodeID"] == here]
        num_shares = max(1, int(node["Resources"].get("CPU", 1)) // settings.num_cpus)
        plan = plan_replica(config, num_shares, load_without_weights(config))
        config = replace(config, num_kv_blocks=plan.memory.num_blocks)
    return load_engine(config, settings.max_queue * settings.num_fronts)
