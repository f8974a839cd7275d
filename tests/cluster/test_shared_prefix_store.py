"""Engines that share their blocks through redis-server or Mooncake answer alike, whatever is there, and without."""

import hashlib
import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest
import redis

from pellucid.engine import LLMEngine
from pellucid.execution import block_server, mooncake_values
from pellucid.execution.block_file import BlockFileFormat, ForeignBlockError
from pellucid.execution.block_server import BlockServer, ServerAwayError
from pellucid.execution.prefix_store import PrefixStore
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.outputs import RequestOutput
from support.bundled import bundled_engine
from support.mooncake_store import MooncakeStore, running_mooncake
from support.redis_server import RedisServer, running_redis, slow_connection

PROMPT = [5 + number % 900 for number in range(400)]
PARAMS = SamplingParams(temperature=0.8, seed=3, max_tokens=8, logprobs=2, ignore_eos=True)
NUM_VALUES = {RedisServer: 10_000, MooncakeStore: 1_000}

Server: TypeAlias = RedisServer | MooncakeStore


@pytest.fixture(scope="module", params=["redis", "mooncake"])
def running(request: pytest.FixtureRequest) -> Iterator[Server]:
    with running_redis() if request.param == "redis" else running_mooncake() as server:
        yield server


@pytest.fixture
def server(running: Server) -> Server:
    running.clear()
    return running


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


def fill(server: Server, key: Path) -> None:
    with closing(engine(server.url, key)) as first:
        answer(first)


def test_another_engine_finds_the_blocks_and_answers_alike(
    server: Server, key: Path, expected: RequestOutput
) -> None:
    fill(server, key)
    names = server.names()
    assert len(names) == len(PROMPT) // 16
    with closing(engine(server.url, key)) as second:
        fingerprint = second.identity.digest.hex()[:32]
        assert all(name.startswith(f"{fingerprint}/") and len(name) == 97 for name in names)
        found = answer(second)
        assert (found.outputs, found.num_cached_tokens) == (expected.outputs, 384)


def test_engines_with_another_secret_share_nothing(
    server: Server, key: Path, expected: RequestOutput
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


def test_no_value_that_others_change_is_taken_for_a_block(server: Server) -> None:
    """Flipped, cut, longer, foreign, random and forged values: a block is the one that was written, or is not there."""
    block_size, num_bytes = 16, 600
    fingerprint = hashlib.sha256(b"model").digest()
    keyed = BlockFileFormat(fingerprint, block_size, num_bytes, b"a secret of all servers")
    unkeyed = BlockFileFormat(fingerprint, block_size, num_bytes)
    rng, reports = random.Random(24), []
    served = server.values(keyed.file_bytes)
    blocks = BlockServer(served, fingerprint, keyed.file_bytes, reports.append)
    store = PrefixStore(blocks, keyed, 1000, reports.append, 0)
    hashes = [hashlib.sha256(b"%d" % number).digest() for number in range(20)]
    tokens = [tuple(range(number, number + block_size)) for number in range(20)]
    contents = [np.frombuffer(rng.randbytes(num_bytes), np.uint8) for _ in hashes]
    evil = np.frombuffer(rng.randbytes(num_bytes), np.uint8)
    values = [
        b"".join(keyed.encode(*block)) for block in zip(hashes, tokens, contents, strict=True)
    ]
    num_sound = 0
    for number in range(NUM_VALUES[type(server)]):
        index = number % len(hashes)
        name = f"{fingerprint.hex()[:32]}/{hashes[index].hex()}"
        forged = b"".join(unkeyed.encode(hashes[index], tokens[index], evil))
        others = values[:index] + values[index + 1 :]
        is_sound = rng.random() < 0.05
        value = values[index] if is_sound else damaged(values[index], rng, others, forged)
        served.remove(name)
        if value:
            served.put(name, value)
        found = store.find(hashes[index], tokens[index])
        assert (found is not None) == (value == values[index]), number
        if found is not None:
            assert (found == contents[index]).all()
            num_sound += 1
    assert num_sound > NUM_VALUES[type(server)] * 0.03
    store.close()


def test_what_is_no_string_in_redis_is_no_block_and_stays() -> None:
    with running_redis() as server, redis.Redis(port=server.port) as client:
        client.rpush("name", "a list")
        with pytest.raises(ForeignBlockError, match="is not a string"):
            server.values(10).get("name", 10)
        assert client.type("name") == b"list"


def test_answers_stay_the_same_over_damaged_values(
    server: Server, key: Path, expected: RequestOutput
) -> None:
    rng = random.Random(7)
    for _ in range(3):
        server.clear()
        fill(server, key)
        with closing(engine(server.url, key)) as other:
            num_bytes = other._core.prefix_store._store.file_bytes
        with closing(server.values(num_bytes)) as served:
            names = server.names()
            values = [served.get(name, num_bytes) for name in names]
            for name, value in zip(names, values, strict=True):
                if rng.random() < 0.3:
                    served.remove(name)
                    served.put(name, damaged(value, rng, values, values[0]) or b"x")
        with closing(engine(server.url, key)) as again:
            assert answer(again).outputs == expected.outputs


def test_requests_are_answered_while_the_server_is_away_and_it_is_used_when_it_is_back(
    server: Server, key: Path, expected: RequestOutput
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
        assert len(server.names()) >= len(PROMPT[5:]) // 16
    server.stop()
    with closing(engine(server.url, key)) as third:  # away from the first moment on
        assert answer(third).outputs == expected.outputs
    server.start()


def test_what_mooncake_loses_with_a_machine_is_computed(
    server: Server, key: Path, expected: RequestOutput
) -> None:
    if isinstance(server, RedisServer):
        return
    fill(server, key)
    with closing(engine(server.url, key)) as second:
        server.processes[1].kill()
        assert answer(second).outputs == expected.outputs
    server.stop()
    server.start()


def test_another_process_takes_the_place_of_one_that_ended(server: Server) -> None:
    if isinstance(server, RedisServer):
        return
    with closing(server.values(3)) as values:
        values.put("name", b"abc")
        os.kill(values._process.pid, signal.SIGKILL)
        with pytest.raises(ServerAwayError):
            values.get("name", 3)
        assert values.get("name", 3) == b"abc"


def test_a_server_that_does_not_answer_delays_only_who_waits_for_it(
    server: Server, key: Path, expected: RequestOutput, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(server, key)
    monkeypatch.setattr(block_server, "ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(mooncake_values, "START_SECONDS", 1.0)
    goes_on = threading.Event()
    with (
        slow_connection(server.port, goes_on) as port,
        closing(engine(server.url.replace(str(server.port), str(port)), key)) as second,
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
