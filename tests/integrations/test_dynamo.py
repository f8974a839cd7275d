"""Dynamo's router reads the KV events: how much of a prompt it believes the server to hold."""

import asyncio
import time
from typing import Any

from dynamo._core import SelectionService

from pellucid.async_engine import AsyncLLMEngine
from pellucid.engine import LLMEngine
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.server.config import KVEventsConfig
from pellucid.server.kv_events.publisher import KVEventPublisher
from support.fake_model import fake_engine
from support.http_server import TIMEOUT

BLOCK_SIZE = 16
PROMPT = [1, 2, 3, 4, 5] * 20  # six blocks


def generate(engine: LLMEngine, prompt: list[int], salt: str | None = None) -> None:
    engine.add_request(prompt, SamplingParams(max_tokens=1), cache_salt=salt)
    while engine.has_unfinished_requests:
        engine.step()


async def blocks_known(router: SelectionService, prompt: list[int], **fields: Any) -> int:
    found = await router.overlap_scores({"model_name": "m", "token_ids": prompt, **fields})
    return int(found["workers"][0]["device_blocks"])


async def wait_for_blocks(
    router: SelectionService, number: int, prompt: list[int], **fields: Any
) -> None:
    deadline = time.monotonic() + TIMEOUT
    while (known := await blocks_known(router, prompt, **fields)) != number:
        assert time.monotonic() < deadline, known
        await asyncio.sleep(0.02)


def worker_of(publisher: KVEventPublisher) -> dict[str, Any]:
    return {
        "worker_id": 1,
        "model_name": "m",
        "endpoint": "http://127.0.0.1:1",  # the router sends nothing there
        "block_size": BLOCK_SIZE,
        "kv_events_endpoint": publisher.endpoint,
        "replay_endpoint": publisher.replay_endpoint,
    }


async def follow(engine: LLMEngine, publisher: KVEventPublisher) -> None:
    generate(engine, PROMPT)
    router = SelectionService(indexer_threads=1)
    try:
        await router.upsert_worker(worker_of(publisher))
        await wait_for_blocks(router, 6, PROMPT)  # what was stored before the router came
        generate(engine, [9] * 64, salt="blue")
        await wait_for_blocks(router, 4, [9] * 64, cache_salt="blue")
        assert await blocks_known(router, [9] * 64) == 0  # no other salt finds them
        for first in range(10, 20):  # the pool is full: the oldest blocks go
            generate(engine, [first] * 64)
        await wait_for_blocks(router, 0, PROMPT)
        await wait_for_blocks(router, 4, [19] * 64)
    finally:
        router.shutdown()


def test_the_router_knows_the_blocks_that_can_be_found() -> None:
    engine = fake_engine(block_size=BLOCK_SIZE, num_kv_blocks=16, max_model_len=256)
    config = KVEventsConfig(endpoint="tcp://127.0.0.1:*", replay_endpoint="tcp://127.0.0.1:*")
    publisher = KVEventPublisher.of(AsyncLLMEngine(engine), config)
    try:
        asyncio.run(follow(engine, publisher))
    finally:
        publisher.close()
