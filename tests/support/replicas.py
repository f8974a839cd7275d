"""Pools of replicas on the bundled model, requests of all kinds, and what one engine answers to them."""

import asyncio
import os
import random
import signal
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pellucid.async_engine import AsyncTokenStream
from pellucid.cluster.replica_pool import ReplicaPool, plan_replica, plan_replica_of_stages
from pellucid.engine import LLMEngine
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.inputs.structured_outputs import StructuredOutputsParams
from pellucid.loaded_model import load_without_weights
from pellucid.outputs import RequestOutput
from support.bundled import bundled_engine, prompts_of_all_kinds

Result = TypeVar("Result")

READY_SECONDS = 120.0  # in which replicas start, however slow the machine


@dataclass(frozen=True)
class Asked:
    """A request."""

    prompt: str
    params: SamplingParams
    cache_salt: str | None


def random_requests(count: int, seed: int, max_tokens: int = 24) -> list[Asked]:
    """Requests with parameters of all kinds; many begin alike."""
    rng = random.Random(seed)

    def sometimes(value: Any, otherwise: Any) -> Any:
        return value if rng.random() < 0.2 else otherwise

    prompts = prompts_of_all_kinds(40)
    return [
        Asked(
            rng.choice(prompts) + sometimes(f" {rng.randrange(100)} ", ""),
            SamplingParams(
                n=sometimes(2, 1),
                best_of=sometimes(3, None),
                temperature=rng.choice([0.0, 0.7, 1.1]),
                top_p=sometimes(0.9, 1.0),
                top_k=sometimes(20, 0),
                repetition_penalty=sometimes(1.3, 1.0),
                presence_penalty=sometimes(0.7, 0.0),
                frequency_penalty=sometimes(0.7, 0.0),
                min_tokens=sometimes(3, 0),
                max_tokens=rng.randrange(3, max_tokens),
                seed=rng.randrange(2**63),
                logprobs=sometimes(2, None),
                prompt_logprobs=sometimes(0, None),
                stop=sometimes([". ", "the"], []),
                ignore_eos=sometimes(True, False),
                structured_outputs=sometimes(
                    StructuredOutputsParams(regex="[a-z]{2,9}( [a-z]{2,9}){0,3}"), None
                ),
            ),
            sometimes("salt", None),
        )
        for _ in range(count)
    ]


def answers_of_one_engine(requests: Sequence[Asked], **knobs: object) -> list[RequestOutput]:
    engine = bundled_engine(**knobs)
    outputs = []
    for asked in requests:
        outputs.append(engine.add_request(asked.prompt, asked.params, cache_salt=asked.cache_salt))
        engine.step()
    _run_to_the_end(engine)
    return outputs


def _run_to_the_end(engine: LLMEngine) -> None:
    while engine.has_unfinished_requests:
        engine.step()


class RunningPool:
    """A pool, and an event loop for what tests do with it."""

    def __init__(self, pool: ReplicaPool) -> None:
        self.pool = pool
        self._loop = asyncio.new_event_loop()

    @classmethod
    def of_processes(cls, num_replicas: int = 2, **knobs: object) -> "RunningPool":
        config = EngineConfig(**knobs)
        model = load_without_weights(config)
        plan = plan_replica(config, num_replicas, model)
        return cls(ReplicaPool.of_processes(config, model, plan, num_replicas, 100_000))

    @classmethod
    def of_stages(cls, stages: Sequence[str], key: str, **knobs: object) -> "RunningPool":
        """A replica for each group of stages."""
        config = EngineConfig(**knobs, stages=stages[0], stages_key=key)
        model = load_without_weights(config)
        plan, num_replicas = plan_replica_of_stages(config, model), len(stages)
        made = ReplicaPool.of_processes(config, model, plan, num_replicas, 100_000, stages)
        return cls(made)

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self._loop.run_until_complete(work)

    def close(self) -> None:
        self.run(self.pool.shutdown())
        self._loop.close()

    async def add(self, asked: Asked) -> AsyncTokenStream:
        return await self.pool.add_request(asked.prompt, asked.params, cache_salt=asked.cache_salt)

    async def answers(self, requests: Sequence[Asked]) -> list[RequestOutput]:
        """All at once."""
        streams = [await self.add(asked) for asked in requests]
        return [await read_whole(stream) for stream in streams]

    def kill_one(self, rng: random.Random) -> bool:
        """Ends a replica with kill -9, if one is ready."""
        ready = [replica.pid for replica in self.pool.replicas if replica.is_ready]
        if ready:
            os.kill(rng.choice(ready), signal.SIGKILL)
        return bool(ready)

    async def until_tokens(self, num_tokens: int) -> None:
        """Returns when unfinished requests have so many tokens together."""
        while self.num_tokens < num_tokens:
            await asyncio.sleep(0.01)

    @property
    def num_tokens(self) -> int:
        """Of unfinished requests."""
        return sum(
            len(each.token_ids)
            for each_request in [*self.pool._dispatcher.requests.values()]
            for each in each_request.output.outputs
        )

    async def until_all_are_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while not all(replica.is_ready for replica in self.pool.replicas):
            assert time.monotonic() < deadline, self.pool.replicas
            await asyncio.sleep(0.05)


async def read_whole(stream: AsyncTokenStream) -> RequestOutput:
    """Reads a stream to its end, and compares its deltas with its output."""
    texts: dict[int, str] = {}
    token_ids: dict[int, list[int]] = {}
    async for delta in stream:
        texts[delta.index] = texts.get(delta.index, "") + delta.text
        token_ids.setdefault(delta.index, []).extend(delta.token_ids)
    for each in stream.output.outputs:
        assert (texts[each.index], token_ids[each.index]) == (each.text, each.token_ids)
    return stream.output


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def compare(outputs: Sequence[RequestOutput], expected: Sequence[RequestOutput]) -> None:
    """Asserts that answers have the same tokens, texts, log-probabilities and ends."""
    for output, other in zip(outputs, expected, strict=True):
        assert output.outputs == other.outputs, (output.outputs, other.outputs)
        assert output.prompt_logprobs == other.prompt_logprobs, output.prompt
        assert output.prompt_token_ids == other.prompt_token_ids and output.seed == other.seed
        assert len(output.metrics.token_times) >= sum(
            len(each.token_ids) for each in output.outputs
        )
