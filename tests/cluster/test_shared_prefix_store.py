"""Engines that share their blocks through redis-server: the same answers, whatever stands there, and without it."""

import hashlib
import random
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import redis

from pellucid.engine import LLMEngine
from pellucid.execution.block_file import BlockFileFormat
from pellucid.execution.block_server import BlockServer
from pellucid.execution.prefix_store import PrefixStore
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.outputs import RequestOutput
from support.bundled import bundled_engine
from support.redis_server import RedisServer, running_redis, slow_connection

PROMPT = [5 + number % 900 for number in range(400)]
PARAMS = SamplingParams(temperature=0.8, seed=3, max_tokens=8, logprobs=2, ignore_eos=True)
NUM_VALUES = 10_000


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running_redis() as running:
        yield running


@pytest.fixture
def client(server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis(port=server.port) as made:
        made.flushall()
        yield made


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text("a secret of all servers\n")
    return path


def engine(url: str, key: Path) -> LLMEngine:
    return bundled_engine(prefix_store=url, prefix_store_key=str(key), block_size=16, num_threads=1)


def answer(engine: LLMEngine, prompt: list[int] = PROMPT) -> RequestOutput:
    output = engine.add_request(prompt, PARAMS)
    while engine.has_unfinished_requests:
        engine.step()
    return output


@pytest.fixture(scope="module")
def expected() -> RequestOutput:
    with closing(bundled_engine(block_size=16, num_threads=1)) as alone:
        return answer(alone)


def fill(server: RedisServer, key: Path) -> None:
    with closing(engine(server.url, key)) as first:
        answer(first)


def test_another_engine_finds_the_blocks_and_answers_alike(
    server: RedisServer, client: redis.Redis, key: Path, expected: RequestOutput
) -> None:
    fill(server, key)
    names = client.keys()
    assert len(names) == len(PROMPT) // 16
    with closing(engine(server.url, key)) as second:
        fingerprint = second.identity.digest.hex()[:32].encode()
        assert all(name.startswith(fingerprint + b"/") and len(name) == 97 for name in names)
        found = answer(second)
        assert (found.outputs, found.num_cached_tokens) == (expected.outputs, 384)


def test_engines_with_another_secret_share_nothing(
    server: RedisServer, client: redis.Redis, key: Path, expected: RequestOutput
) -> None:
    fill(server, key)
    key.write_text("a secret of somebody else")
    with closing(engine(server.url, key)) as other:
        found = answer(other)
        assert (found.outputs, found.num_cached_tokens) == (expected.outputs, 0)


def damaged(value: bytes, rng: random.Random, others: list[bytes], forged: bytes) -> bytes:
    kind = rng.randrange(6)
    if kind == 0:
        flipped = bytearray(value)
        flipped[rng.randrange(len(value))] ^= 1 << rng.randrange(8)
        return bytes(flipped)
    if kind == 1:
        return value[: rng.randrange(len(value))]
    if kind == 2:
        return value + rng.randbytes(rng.randrange(1, 5000))
    if kind == 3:
        return rng.choice(others)
    if kind == 4:
        return rng.randbytes(len(value))
    return forged


def test_no_value_that_others_change_is_taken_for_a_block(
    server: RedisServer, client: redis.Redis
) -> None:
    """Flipped, cut, longer, foreign, random and forged values: a block is the one that was written, or is not there."""
    block_size, num_bytes = 16, 600
    fingerprint = hashlib.sha256(b"model").digest()
    keyed = BlockFileFormat(fingerprint, block_size, num_bytes, b"a secret of all servers")
    unkeyed = BlockFileFormat(fingerprint, block_size, num_bytes)
    rng, reports = random.Random(24), []
    blocks = BlockServer(server.url, fingerprint, keyed.file_bytes, reports.append)
    store = PrefixStore(blocks, keyed, 1000, reports.append, 0)
    hashes = [hashlib.sha256(b"%d" % number).digest() for number in range(20)]
    tokens = [tuple(range(number, number + block_size)) for number in range(20)]
    contents = [np.frombuffer(rng.randbytes(num_bytes), np.uint8) for _ in hashes]
    evil = np.frombuffer(rng.randbytes(num_bytes), np.uint8)
    values = [
        b"".join(keyed.encode(*block)) for block in zip(hashes, tokens, contents, strict=True)
    ]
    num_sound = 0
    for number in range(NUM_VALUES):
        index = number % len(hashes)
        name = f"{fingerprint.hex()[:32]}/{hashes[index].hex()}"
        forged = b"".join(unkeyed.encode(hashes[index], tokens[index], evil))
        others = values[:index] + values[index + 1 :]
        is_sound = rng.random() < 0.05
        value = values[index] if is_sound else damaged(values[index], rng, others, forged)
        if value:
            client.set(name, value)
        else:
            client.delete(name)
        found = store.find(hashes[index], tokens[index])
        assert (found is not None) == (value == values[index]), number
        if found is not None:
            assert (found == contents[index]).all()
            num_sound += 1
    client.delete(name)
    client.rpush(name, "a list")
    assert store.find(hashes[index], tokens[index]) is None
    assert client.type(name) == b"list" and num_sound > 300
    store.close()


def test_answers_stay_the_same_over_damaged_values(
    server: RedisServer, client: redis.Redis, key: Path, expected: RequestOutput
) -> None:
    rng = random.Random(7)
    for _ in range(3):
        fill(server, key)
        names = client.keys()
        values = [client.get(name) for name in names]
        for name, value in zip(names, values, strict=True):
            if rng.random() < 0.3:
                client.set(name, damaged(value, rng, values, values[0]) or b"x")
        with closing(engine(server.url, key)) as again:
            assert answer(again).outputs == expected.outputs


def test_requests_are_answered_while_the_server_is_away_and_it_is_used_when_it_is_back(
    server: RedisServer, client: redis.Redis, key: Path, expected: RequestOutput
) -> None:
    fill(server, key)
    with closing(engine(server.url, key)) as second:
        server.stop()
        assert answer(second).outputs == expected.outputs
        assert answer(second, PROMPT[::-1]).finished
        server.start()
        second._core.prefix_store._store._calls_again_at = 0.0  # the pause is over
        second._core.prefix_store.flush()
        answer(second, PROMPT[5:])
        second._core.prefix_store.flush()
        assert len(client.keys()) >= len(PROMPT[5:]) // 16
    server.stop()
    with closing(engine(server.url, key)) as third:  # away from the first moment on
        assert answer(third).outputs == expected.outputs
    server.start()


def test_a_server_that_does_not_answer_delays_only_who_waits_for_it(
    server: RedisServer, client: redis.Redis, key: Path, expected: RequestOutput
) -> None:
    fill(server, key)
    goes_on = threading.Event()
    with (
        slow_connection(server.port, goes_on) as port,
        closing(engine(f"redis://127.0.0.1:{port}/0", key)) as second,
    ):
        waiting = second.add_request(PROMPT, PARAMS)
        second.step()
        other = second.add_request([9] * 5, PARAMS)
        while not other.finished:
            second.step()
        while second.has_unfinished_requests:
            second.step()
        assert (waiting.outputs, waiting.num_cached_tokens) == (expected.outputs, 0)
        goes_on.set()


def test_calls_pause_after_a_failure_for_longer_each_time(server: RedisServer) -> None:
    now, reports = [0.0], []
    blocks = BlockServer(
        "redis://127.0.0.1:1/0", b"f" * 32, 100, reports.append, clock=lambda: now[0]
    )
    calls: list[float] = []
    real = blocks._client.exists
    blocks._client.exists = lambda *names: calls.append(now[0]) or real(*names)
    for second in range(40):
        now[0] = float(second)
        assert not blocks.has(b"h" * 32)
    assert calls == [0, 1, 3, 7, 15, 31]
    assert len(reports) == 1 and "no blocks are shared until it answers" in reports[0]
    blocks.close()
