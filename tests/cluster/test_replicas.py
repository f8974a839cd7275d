"""Replicas answer like one engine, whichever of them answers, and whichever ends."""

import asyncio
import os
import random
import signal
from collections.abc import Callable, Sequence

import pytest

from pellucid.cluster import dispatcher
from pellucid.cluster.replica_pool import plan_replica
from pellucid.cluster.router import Placement, Router
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.loaded_model import load_without_weights
from support.replicas import (
    RunningPool,
    answers_of_one_engine,
    compare,
    is_running,
    random_requests,
)

MakePool = Callable[..., RunningPool]


class RandomRouter(Router):
    """Sends requests anywhere."""

    rng = random.Random(1)

    def place(self, request_id: str, keys: Sequence[int], num_tokens: int) -> Placement:
        others = [*self.replicas]
        chosen = self.rng.choice(others)
        self._replicas, everyone = {chosen: self._replicas[chosen]}, self._replicas
        placement = super().place(request_id, keys, num_tokens)
        self._replicas = everyone
        return placement


@pytest.mark.parametrize("router", [Router, RandomRouter])
def test_two_replicas_answer_like_one_engine(
    router: type[Router],
    make_pool: MakePool,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.setattr(dispatcher, "Router", router)
    asked = random_requests(request.config.getoption("--cluster-requests"), seed=1)
    expected = answers_of_one_engine(asked)
    pool = make_pool(speculation="auto", max_num_batched_tokens=256, block_size=16)
    outputs = pool.run(pool.answers(asked))
    compare(outputs, expected)
    assert sum(output.num_cached_tokens > 0 for output in outputs) > len(asked) // 20
    assert pool.pool.num_failovers == 0


def test_answers_go_on_when_replicas_are_killed(
    make_pool: MakePool, request: pytest.FixtureRequest
) -> None:
    """kill -9 of a replica again and again, also of both at a time, in the middle of many streams."""
    asked = random_requests(request.config.getoption("--cluster-streams"), seed=2, max_tokens=200)
    expected = answers_of_one_engine(asked)
    pool = make_pool()
    rng = random.Random(3)

    async def kill(outputs: "asyncio.Task[object]") -> int:
        num_killed = 0
        while not outputs.done():
            if pool.num_tokens > 20 * num_killed and num_killed < 6:
                num_killed += pool.kill_one(rng)
            await asyncio.sleep(0.1)
        return num_killed

    async def test() -> None:
        answering = asyncio.create_task(pool.answers(asked))
        killing = asyncio.create_task(kill(answering))
        compare(await answering, expected)
        assert await killing > 0
        await pool.until_all_are_ready()

    pool.run(test())
    assert pool.pool.num_failovers > 0 and pool.pool.num_restarts > 0


def test_the_router_knows_the_blocks_of_each_replica(make_pool: MakePool) -> None:
    """Also where blocks are evicted all the time, and of a replica that joined late."""
    knobs = {"num_kv_blocks": 40, "block_size": 16, "max_model_len": 256}
    pool = make_pool(**knobs)

    async def blocks_agree() -> int:
        answers = await pool.pool.answers(with_blocks=True)
        routed = await pool.pool.routed_blocks()
        assert {number: set(answer.blocks) for number, answer in answers.items()} == routed
        return sum(map(len, routed.values()))

    async def test() -> None:
        for seed in range(4):
            compare(
                await pool.answers(random_requests(40, seed)),
                answers_of_one_engine(random_requests(40, seed), **knobs),
            )
            assert await blocks_agree() > 10
            if seed == 1:
                pool.kill_one(random.Random(seed))
                await asyncio.sleep(0.5)
                await pool.until_all_are_ready()
                await blocks_agree()

    pool.run(test())


def test_cancelled_requests_and_what_a_pool_refuses(make_pool: MakePool) -> None:
    pool = make_pool()

    async def test() -> None:
        params = SamplingParams(max_tokens=None, ignore_eos=True)
        cancelled = await pool.pool.add_request("Once", params, "cancelled")
        left = await pool.pool.add_request("Once upon", params)
        async for _ in cancelled:
            pool.pool.abort("cancelled")
        assert cancelled.output.outputs[0].finish_reason == "abort"
        await left.aclose()
        with pytest.raises(ValueError, match="is empty"):
            await pool.pool.add_request("", params)
        with pytest.raises(ValueError, match="continues: needs one engine"):
            await pool.pool.add_request("a", params, continues=("r/0", 1))
        (output,) = await pool.answers(random_requests(1, 5))
        assert output.finished and pool.pool.seconds_without_step == 0
        for _ in range(100):
            usage = await pool.pool.kv_cache_usage()
            if usage.num_used_blocks == 0:
                return
            await asyncio.sleep(0.1)
        raise AssertionError("a request that nobody reads goes on")

    pool.run(test())


def test_a_stopped_pool_leaves_no_process(make_pool: MakePool) -> None:
    pool = make_pool(3)
    pids = [replica.pid for replica in pool.pool.replicas]
    assert len(set(pids)) == 3 and all(map(is_running, pids))
    os.kill(pids[0], signal.SIGSTOP)  # hangs: it is ended all the same


def test_each_replica_is_planned_a_share_of_the_memory() -> None:
    config = EngineConfig(max_num_seqs=1024)
    model = load_without_weights(config)
    one, two, eight = (plan_replica(config, num, model).memory for num in (1, 2, 8))
    assert one.available is not None and two.available is not None and eight.available is not None
    assert 0.4 < two.available / one.available < 0.6
    assert eight.num_blocks <= two.num_blocks <= one.num_blocks
    with pytest.raises(ValueError, match=r"replicas=1000000000: each has 0\.00 GiB"):
        plan_replica(config, 10**9, model)


def test_a_replica_that_cannot_start_says_why(make_pool: MakePool) -> None:
    """The front does not read weights, and so does not know of what type they are."""
    with pytest.raises(ValueError, match=r"dtype='float32': the weights of .* are bfloat16"):
        make_pool(dtype="float32")
