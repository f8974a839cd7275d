"""Two local Ray nodes with an engine each, a front that Ray runs, and one in this process."""

import asyncio
import http.client
import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("ray", reason="needs pellucid[ray]; `make test-cluster` installs it")
import ray
from ray import serve
from ray.cluster_utils import Cluster

from pellucid.cluster.replica_pool import ReplicaPool, plan_without_memory
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.loaded_model import load_without_weights
from pellucid.outputs import RequestOutput
from pellucid.serve_ray import build
from pellucid.serve_ray.application import ENGINE
from pellucid.serve_ray.serve_replicas import ServeReplicas
from pellucid.serve_ray.settings import parse
from support.replicas import (
    Asked,
    RunningPool,
    answers_of_one_engine,
    compare,
    random_requests,
    read_whole,
)

WAIT_SECONDS = 300.0
KNOBS: dict[str, object] = {"block_size": 16, "num_kv_blocks": 600}
ARGUMENTS: dict[str, object] = {
    **KNOBS,
    "num_replicas": "2",  # as text, as Ray's command line gives it
    "max_replicas": "3",
    "target_requests": "2",
    "allow_anyone": "true",
    "model_name": "tested",
}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class RayServed:
    """A running application."""

    def __init__(self) -> None:
        self.cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 1,
                "include_dashboard": False,
                "include_log_monitor": False,
            },
        )
        self.add_node()
        ray.init(address=self.cluster.address, log_to_driver=False)
        self.port = free_port()
        serve.start(http_options={"host": "127.0.0.1", "port": self.port})
        serve.run(build(ARGUMENTS), name="default", route_prefix="/")

    def add_node(self, num_attempts: int = 5, **arguments: object) -> None:
        """Ray gives a node 30 seconds to start, which a busy machine may exceed."""
        try:
            self.cluster.add_node(num_cpus=1, **arguments)
        except Exception:
            if num_attempts == 1:
                raise
            self.add_node(num_attempts - 1, **arguments)

    def front(self) -> RunningPool:
        """A front in this process."""
        config, _ = parse(ARGUMENTS)
        model = load_without_weights(config)
        plan = plan_without_memory(config, model)
        engines = serve.get_deployment_handle(ENGINE, "default")
        return RunningPool(ReplicaPool(config, model, plan, lambda: ServeReplicas(engines)))

    def close(self) -> None:
        serve.shutdown()
        ray.shutdown()
        self.cluster.shutdown()

    def call(self, path: str, body: Any = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_SECONDS)
        with closing(connection):
            connection.request("GET" if body is None else "POST", path, body and json.dumps(body))
            reply = connection.getresponse()
            return reply.status, reply.read()


@pytest.fixture(scope="module")
def served() -> Iterator[RayServed]:
    with pytest.MonkeyPatch.context() as patch:
        # Nothing is sent to Ray's makers, and a slow or busy machine may take its time.
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")
        patch.setenv("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", str(WAIT_SECONDS))
        patch.setenv("RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S", str(WAIT_SECONDS))
        patch.setattr("ray.serve._private.api.HTTP_PROXY_TIMEOUT", WAIT_SECONDS)
        made = RayServed()
        try:
            yield made
        finally:
            made.close()


@pytest.fixture(scope="module")
def pool(served: RayServed) -> Iterator[RunningPool]:
    """Another front, in this process."""
    made = served.front()
    try:
        until(lambda: sum(each.is_ready for each in made.pool.replicas) == 2)
        yield made
    finally:
        made.close()


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def num_of_others(pool: ReplicaPool, number: int) -> int:
    """Requests that other fronts have on a replica."""
    return pool._dispatcher.router._replicas[number].num_requests_of_others


def test_engines_on_two_nodes_answer_like_one(pool: RunningPool) -> None:
    asked = random_requests(60, seed=1)
    compare(pool.run(pool.answers(asked)), answers_of_one_engine(asked, **KNOBS))
    assert pool.pool.num_failovers == 0


def test_requests_go_where_their_prompts_begin(pool: RunningPool) -> None:
    """As many tokens are found as by one engine that has all prompts."""
    beginnings = [f"{name} went to the river. " * 8 for name in ("Tom", "Mira", "Ben", "Zoe")]
    params = SamplingParams(temperature=0.0, max_tokens=2, seed=1)
    asked = [
        Asked(beginning + end, params, None)
        for end in ("He", "She", "Then", "It was")
        for beginning in beginnings
    ]
    expected = answers_of_one_engine(asked, **KNOBS)

    async def in_turn() -> list[RequestOutput]:
        return [await read_whole(await pool.add(each)) for each in asked]

    outputs = pool.run(in_turn())
    compare(outputs, expected)
    assert [each.num_cached_tokens for each in outputs] == [
        each.num_cached_tokens for each in expected
    ]
    assert all(pool.run(pool.pool.routed_blocks()).values())  # both have some


def test_a_front_that_comes_late_knows_all_blocks(served: RayServed, pool: RunningPool) -> None:
    body = {"model": "tested", "prompt": "The last front came late. " * 9, "max_tokens": 2}
    assert served.call("/v1/completions", body)[0] == 200

    def blocks(front: RunningPool) -> list[list[int]]:
        return sorted(sorted(each) for each in front.run(front.pool.routed_blocks()).values())

    def held() -> list[list[int]]:
        answers = pool.run(pool.pool.answers(with_blocks=True))
        return sorted(sorted(answer.blocks) for answer in answers.values())

    until(lambda: blocks(pool) == held())
    late = served.front()
    try:
        until(lambda: blocks(late) == held())
    finally:
        late.close()


def test_answers_go_on_when_a_replica_is_killed(pool: RunningPool) -> None:
    asked = random_requests(30, seed=2, max_tokens=200)
    expected = answers_of_one_engine(asked, **KNOBS)

    async def test() -> list[RequestOutput]:
        answering = asyncio.create_task(pool.answers(asked))
        while not any(each.num_requests > 2 for each in pool.pool.replicas):
            await asyncio.sleep(0.01)
        busiest = max(pool.pool.replicas, key=lambda each: each.num_requests)
        os.kill(busiest.pid, signal.SIGKILL)
        return await answering

    compare(pool.run(test()), expected)
    assert (
        pool.pool.num_failovers > 0 and pool.pool.num_restarts == 1
    )  # some may have ended by then
    until(lambda: sum(each.is_ready for each in pool.pool.replicas) == 2)  # Ray starts another


def test_a_stream_of_the_front_goes_on(served: RayServed, pool: RunningPool) -> None:
    """Through Ray's proxy; the replica that computes it is killed in the middle."""
    defaults = pool.pool.default_sampling_params
    asked = Asked("Once", replace(defaults, max_tokens=500, ignore_eos=True, seed=7), None)
    (expected,) = answers_of_one_engine([asked], **KNOBS)
    body = {"model": "tested", "prompt": "Once", "max_tokens": 500, "ignore_eos": True, "seed": 7}
    replies: list[tuple[int, bytes]] = []
    caller = threading.Thread(
        target=lambda: replies.append(served.call("/v1/completions", {**body, "stream": True}))
    )
    caller.start()
    is_killed = False
    while caller.is_alive() and not is_killed:
        for replica in pool.pool.replicas:
            if replica.is_ready and num_of_others(pool.pool, replica.number):
                os.kill(replica.pid, signal.SIGKILL)
                is_killed = True
        time.sleep(0.01)
    caller.join()
    ((status, reply),) = replies
    lines = [line for line in reply.decode().splitlines() if line.startswith("data: {")]
    frames = [json.loads(line.removeprefix("data: ")) for line in lines]
    spoken = "".join(frame["choices"][0]["text"] for frame in frames)
    assert (status, spoken) == (200, expected.outputs[0].text)
    assert is_killed


def test_another_identity_gets_no_requests(served: RayServed, pool: RunningPool) -> None:
    """Ray adds an engine for so many requests; on the third node it has another instruction set."""
    until(lambda: sum(each.is_ready for each in pool.pool.replicas) == 2)
    served.add_node(env_vars={"PELLUCID_ISA": "portable"})
    asked = random_requests(60, seed=3, max_tokens=200)
    expected = answers_of_one_engine(asked, **KNOBS)
    deadline = time.monotonic() + WAIT_SECONDS
    while not (refused := [link for link in pool.pool._source.links if link.refusal is not None]):
        assert time.monotonic() < deadline, pool.pool.replicas
        compare(pool.run(pool.answers(asked)), expected)
    assert re.search("backend '.*portable.*' instead of", str(refused[0].refusal))
    compare(pool.run(pool.answers(asked)), expected)
    assert served.call("/health")[0] == 200
    ready = [each.is_ready for each in pool.pool.replicas if each.pid == refused[0].pid]
    assert ready == [False]
