"""The dispatcher of a pool with replicas that say what a test has them say."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from pellucid.async_engine import AsyncTokenStream, EngineStoppedError
from pellucid.cluster import local_replicas
from pellucid.cluster.dispatcher import Dispatcher
from pellucid.cluster.local_replicas import LocalReplicas
from pellucid.cluster.messages import (
    Abort,
    Add,
    Added,
    Answer,
    BlocksChanged,
    Delta,
    FromReplica,
    OtherFronts,
    Progress,
    Ready,
    Refused,
    Start,
    ToReplica,
    decode_from_replica,
    decode_to_replica,
    encode,
)
from pellucid.cluster.request_on_replica import MAX_CRASHES, RequestOnReplica
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.prompts import EncodedPrompt
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.observing.event_bus import EventBus
from pellucid.outputs import Logprob

IDENTITY = {"identity": "abc", "version": "1", "weights": "w"}


class FakeProcess:
    """In place of a `ReplicaProcess`: what it is sent goes over the wire format into `sent`."""

    def __init__(
        self,
        number: int,
        start: Start,
        on_message: Callable[["FakeProcess", FromReplica], None],
        on_end: Callable[["FakeProcess"], None],
    ) -> None:
        self.number, self.pid = number, 100 + number
        self.ready: Ready | None = None
        self.refusal: str | None = None
        self.stalled_since: float | None = None
        self.clock_lead = 0.0
        self.was_killed = False
        self.sent: list[ToReplica] = []
        self._on_message, self._on_end = on_message, on_end
        ALL.append(self)

    async def begin(self) -> None: ...

    async def stop(self) -> None: ...

    async def ask(self, *, with_blocks: bool = False) -> Answer | None:
        return None

    def send(self, message: ToReplica) -> None:
        self.sent += decode_to_replica(encode([message]))

    def kill(self) -> None:
        self._on_end(self)

    def refuse(self, reason: str) -> None:
        self.refusal = f"replica {self.number} is refused: {reason}"
        self.kill()

    def say(self, message: FromReplica) -> None:
        for each in decode_from_replica(encode([message])):
            if isinstance(each, Ready):
                self.ready = each
            self._on_message(self, each)

    def get_ready(self, **facts: str) -> None:
        self.say(Ready({**IDENTITY, **facts}, 1, 0.0))


class FakeLink(FakeProcess):
    """A replica that the pool has not started: who refuses it does not end it."""

    def refuse(self, reason: str) -> None:
        self.refusal = reason


ALL: list[FakeProcess] = []


@pytest.fixture(autouse=True)
def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    ALL.clear()
    monkeypatch.setattr(local_replicas, "ReplicaProcess", FakeProcess)


async def pool(num_replicas: int = 2) -> Dispatcher:
    """A dispatcher whose replicas are ready."""
    made = Dispatcher(EngineConfig.block_size, EventBus())
    replicas = LocalReplicas([Start(EngineConfig(), 10, [])] * num_replicas)
    beginning = asyncio.create_task(replicas.begin(made))
    await asyncio.sleep(0)
    for process in [*ALL]:
        process.get_ready()
    await beginning
    return made


def request(name: str = "r", **params: Any) -> RequestOnReplica:
    prompt = EncodedPrompt("hi", False, (1, 2, 3), frozenset({0}), 0.0, 0.0)
    stream = AsyncTokenStream(lambda stream: None)
    made = RequestOnReplica(
        name, prompt, SamplingParams(seed=7, **params), stream, 0, None, "", 1.0, []
    )
    stream.start(made.output)
    return made


def delta(token_ids: list[int], finish: str | None = None, name: str = "r") -> Delta:
    logprobs = [{token_id: Logprob(-0.5, -0.5, 1, "x")} for token_id in token_ids]
    return Delta(name, 0, "x" * len(token_ids), token_ids, logprobs, finish, None, -0.5)


def progress(name: str = "r", *, has_ended: bool = False, num_processed: int = 4) -> Progress:
    return Progress(name, has_ended, 1.0, 2, num_processed, 10, 20, 0, None)


def on_a_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @functools.wraps(test)
    def run() -> None:
        asyncio.run(asyncio.wait_for(test(), 30))

    return run


async def added(made: Dispatcher, asked: RequestOnReplica) -> FakeProcess:
    """Adds a request; the replica that has taken it."""
    adding = asyncio.create_task(made.add(asked))
    await asyncio.sleep(0)
    assert asked.replica is not None
    process = [each for each in ALL if each.number == asked.replica][-1]
    process.say(Added(asked.request_id))
    await adding
    return process


@on_a_loop
async def test_a_request_goes_on_where_its_replica_has_ended() -> None:
    made, asked = await pool(), request(logprobs=0)
    first = await added(made, asked)
    first.say(progress())
    first.say(delta([5, 6]))
    first.kill()
    other = next(each for each in ALL if each.number != first.number)
    (message,) = other.sent
    assert isinstance(message, Add) and message.params.seed == 7
    (so_far,) = message.outputs
    assert so_far.token_ids == [5, 6] and so_far.cumulative_logprob == -1.0
    assert so_far.logprobs == [
        {5: Logprob(-0.5, -0.5, 1, "x")},
        {6: Logprob(-0.5, -0.5, 1, "x")},
    ]
    first.say(delta([9]))  # nobody hears it
    other.say(Added("r"))
    other.say(progress(num_processed=3))
    other.say(delta([7], "stop"))
    other.say(progress(has_ended=True, num_processed=5))
    output = await asked.stream.complete()
    assert output.outputs[0].token_ids == [5, 6, 7] and output.outputs[0].text == "xxx"
    assert output.outputs[0].finish_reason == "stop" and len(output.metrics.token_times) == 3
    assert (output.num_cached_tokens, output.metrics.num_processed_tokens) == (2, 9)
    assert made.num_failovers == 1 and not made.requests
    assert len(ALL) == 3 and ALL[2].number == first.number  # another process is loading


@on_a_loop
async def test_requests_wait_while_no_replica_is_there() -> None:
    made, asked = await pool(1), request()
    process = await added(made, asked)
    process.kill()
    late = request("late")
    await made.add(late)  # at once: it waits with the other one
    assert asked.replica is None and late.replica is None
    made.abort("late")
    assert (await late.stream.complete()).outputs[0].finish_reason == "abort"
    await asyncio.sleep(0)
    ALL[-1].get_ready()
    assert [each.request_id for each in ALL[-1].sent if isinstance(each, Add)] == ["r"]


@on_a_loop
async def test_an_aborted_request_does_not_go_on() -> None:
    made, asked = await pool(), request()
    process = await added(made, asked)
    made.abort("r")
    made.abort("unknown")
    assert isinstance(process.sent[-1], Abort)
    process.kill()
    assert (await asked.stream.complete()).outputs[0].finish_reason == "abort"
    assert made.num_failovers == 1 and not made.requests


@on_a_loop
async def test_a_request_whose_replicas_crash_is_ended() -> None:
    made, asked = await pool(), request()
    process = await added(made, asked)
    process.say(delta([5]))
    was_killed = [True] * 10 + [False] * MAX_CRASHES
    for each in was_killed:
        assert asked.stream.has_all_deltas is False
        number = asked.replica
        process = [each for each in ALL if each.number == number][-1]
        process.was_killed = each
        process.kill()
        await asyncio.sleep(0)
        ALL[-1].get_ready()
    completion = (await asked.stream.complete()).outputs[0]
    assert completion.finish_reason == "error" and completion.token_ids == [5]
    assert completion.stop_reason == "3 replicas have crashed while they computed it"


@on_a_loop
async def test_a_refused_request_is_an_error_of_its_caller() -> None:
    made, asked = await pool(), request()
    adding = asyncio.create_task(made.add(asked))
    await asyncio.sleep(0)
    with pytest.raises(ValueError, match="is the id of an unfinished request"):
        await made.add(request())
    assert asked.replica is not None
    ALL[asked.replica].say(Refused("r", "max_tokens: too many"))
    with pytest.raises(ValueError, match="max_tokens: too many"):
        await adding
    assert not made.requests and made.router.num_requests(asked.replica) == 0


@on_a_loop
async def test_pools_never_mix_identities() -> None:
    made = Dispatcher(EngineConfig.block_size, EventBus())
    replicas = LocalReplicas([Start(EngineConfig(), 10, [])] * 2)
    beginning = asyncio.create_task(replicas.begin(made))
    await asyncio.sleep(0)
    ALL[0].get_ready()
    ALL[1].get_ready(identity="other", weights="v")
    with pytest.raises(ValueError, match=r"replica 1 is refused: .* weights 'v' instead of 'w'"):
        await beginning
    assert made.router.replicas == {0} and len(ALL) == 2  # it is not started again


async def joined(made: Dispatcher, number: int, **facts: str) -> FakeProcess:
    """A replica that nobody starts again."""
    process = FakeProcess(number, Start(EngineConfig(), 10, []), made.take, made.lose)
    process.get_ready(**facts)
    return process


@on_a_loop
async def test_a_replica_that_is_to_end_answers_what_it_has() -> None:
    made = Dispatcher(EngineConfig.block_size, EventBus())
    old, asked = await joined(made, 0), request()
    await added(made, asked)
    made.retire(old)
    late = request("late")
    await made.add(late)
    assert (asked.replica, late.replica) == (0, None)
    old.say(BlocksChanged([(1, True)]))  # nobody is interested any more
    old.say(delta([5], "stop"))
    old.say(progress(has_ended=True))
    assert (await asked.stream.complete()).outputs[0].token_ids == [5]
    new = await joined(made, 1)
    assert late.replica == 1 and isinstance(new.sent[-1], Add)
    made.lose(old)
    assert made.num_failovers == 0


@on_a_loop
async def test_another_identity_follows_the_last_replica_of_this_one() -> None:
    """As in an update: an answer that has begun ends on its own identity, or not at all."""
    made = Dispatcher(EngineConfig.block_size, EventBus())
    old = await joined(made, 0)
    asked, fresh = request(), request("fresh")
    for each in (asked, fresh):
        await added(made, each)
    old.say(delta([5]))
    new = FakeLink(1, Start(EngineConfig(), 10, []), made.take, made.lose)
    new.get_ready(version="2")
    assert made.router.replicas == {0} and "version '2' instead of '1'" in str(new.refusal)
    made.lose(old)
    assert made.router.replicas == {1} and new.refusal is None
    completion = (await asked.stream.complete()).outputs[0]
    assert (completion.token_ids, completion.finish_reason) == ([5], "error")
    assert completion.stop_reason == "only engines of another identity are left"
    assert fresh.replica == 1 and [each.request_id for each in new.sent] == ["fresh"]


@on_a_loop
async def test_another_model_is_never_let_in() -> None:
    """A front has the tokenizer of one model."""
    made = Dispatcher(EngineConfig.block_size, EventBus(), {"model": "m"})
    other = FakeLink(0, Start(EngineConfig(), 10, []), made.take, made.lose)
    other.get_ready(model="n")
    assert "model 'n' instead of 'm'" in str(other.refusal)
    right = await joined(made, 1, model="m")
    made.retire(right)
    assert not made.router.replicas and made.identity is not None


@on_a_loop
async def test_work_for_other_fronts_counts() -> None:
    made = Dispatcher(EngineConfig.block_size, EventBus())
    busy, _ = await joined(made, 0), await joined(made, 1)
    busy.say(OtherFronts(num_requests=4, num_tokens=900))
    for name in "abc":
        await added(made, asked := request(name))
        assert asked.replica == 1
    busy.say(OtherFronts(num_requests=0, num_tokens=0))
    await added(made, asked := request("d"))
    assert asked.replica == 0


@on_a_loop
async def test_times_of_a_replica_are_those_of_the_front() -> None:
    """Whose machine may have been started at another time."""
    made = Dispatcher(EngineConfig.block_size, EventBus())
    far, asked = await joined(made, 0), request()
    far.clock_lead = -100.0
    await added(made, asked)
    (message,) = far.sent
    assert isinstance(message, Add)
    assert (message.arrival_time, message.encoded_time) == (100.0, 100.0)
    far.say(progress())
    assert asked.output.metrics.first_scheduled_time == -99.0


@on_a_loop
async def test_without_any_replica_requests_fail() -> None:
    made, asked = await pool(1), request()
    (await added(made, asked)).kill()
    for _ in range(local_replicas.MAX_FAILED_STARTS):
        await asyncio.sleep(0)
        ALL[-1].kill()
    with pytest.raises(EngineStoppedError, match="no replica is left"):
        await asked.stream.complete()
    with pytest.raises(EngineStoppedError):
        await made.add(request())
    assert not made.is_alive and len(ALL) == 1 + local_replicas.MAX_FAILED_STARTS


@on_a_loop
async def test_the_router_follows_what_replicas_have() -> None:
    made = await pool()
    ALL[0].say(BlocksChanged([(1, True), (2, True), (1, False), (3, True), (1, True)]))
    ALL[1].say(BlocksChanged([(9, True)]))
    assert made.router.blocks(0) == {1, 2, 3} and made.router.blocks(1) == {9}
    ALL[0].kill()
    await asyncio.sleep(0)
    ALL[-1].get_ready()
    assert made.router.blocks(0) == set()
    made.stop()
    assert made.is_stopping
