"""The asynchronous facade: streams of many tasks and loops, cancelled, slow, refused and failing."""

import asyncio
import dataclasses
import functools
import gc
import itertools
import random
import sys
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from pellucid.async_engine import (
    AsyncLLMEngine,
    AsyncTokenStream,
    EngineStoppedError,
    Signal,
    TooManyRequestsError,
)
from pellucid.engine.text_threads import TextThreads
from pellucid.inputs.beam_search_params import RequestParams
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.observing.events import Level
from pellucid.outputs import CompletionDelta, RequestOutput
from support.fake_model import VOCAB_SIZE, fake_engine
from support.step_gate import StepGate
from support.wake_ups import idle_wake_ups

PROMPT = [3, 1, 4]
LONG = SamplingParams(max_tokens=60, ignore_eos=True, seed=1)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = threading.enumerate()  # an engine of another file may be about to end
    yield
    gc.collect()
    left = [t.name for t in threading.enumerate() if t not in before]
    assert [name for name in left if name.startswith("pellucid")] == []


def run(
    serve: Callable[[AsyncLLMEngine], Awaitable[None]], *, max_requests: int = 10_000, **knobs
) -> None:
    """Runs `serve` around an engine; afterwards nothing may be left in it."""
    engine = fake_engine(**knobs)
    closed, close = [], engine.close
    engine.close = lambda: closed.append(close())

    async def main() -> None:
        async with AsyncLLMEngine(engine, max_requests) as async_engine:
            await serve(async_engine)
        assert async_engine.num_unfinished_requests == 0

    asyncio.run(asyncio.wait_for(main(), 180))
    assert len(closed) == 1
    assert not engine.has_unfinished_requests
    assert not engine.unfinished_request_ids and not engine._completions
    pool = engine.scheduler.kv_cache_manager.block_pool
    assert pool.num_free_blocks == pool.num_blocks
    engine.scheduler.kv_cache_manager.check_integrity()


def around_an_engine(**knobs: Any) -> Callable[..., Callable[[], None]]:
    """Makes a test of a coroutine that takes an engine: see `run`."""

    def made(serve: Callable[[AsyncLLMEngine], Awaitable[None]]) -> Callable[[], None]:
        def test() -> None:
            run(serve, **knobs)

        return test

    return made


def alone(prompt: list[int], params: RequestParams) -> RequestOutput:
    engine = fake_engine()
    output = engine.add_request(prompt, params)
    while engine.has_unfinished_requests:
        engine.step()
    return output


def random_request(rng: random.Random) -> tuple[list[int], SamplingParams]:
    prompt = [rng.randrange(1, VOCAB_SIZE) for _ in range(rng.randrange(1, 20))]
    params = SamplingParams(
        n=rng.choice([1, 1, 2]),
        max_tokens=rng.randrange(1, 12),
        seed=rng.randrange(10),
        logprobs=rng.choice([None, 1]),
        stop=rng.choice([(), ("a",)]),
    )
    return prompt, params


def assert_joined(deltas: list[CompletionDelta], output: RequestOutput) -> None:
    """The deltas of each answer, one after the other, are the answer."""
    for completion in output.outputs:
        own = [delta for delta in deltas if delta.index == completion.index]
        assert "".join(delta.text for delta in own) == completion.text
        assert [i for delta in own for i in delta.token_ids] == completion.token_ids
        if completion.logprobs is not None:
            assert [at for delta in own for at in delta.logprobs or []] == completion.logprobs
        assert [delta.finish_reason for delta in own[:-1]] == [None] * (len(own) - 1)
        assert own[-1].finish_reason == completion.finish_reason
        assert own[-1].stop_reason == completion.stop_reason


@pytest.mark.skipif(sys.platform != "linux", reason="counted as Linux does")
@around_an_engine()
async def test_an_idle_engine_does_not_wake_up(engine: AsyncLLMEngine) -> None:
    async for _ in engine.generate(PROMPT, SamplingParams(max_tokens=3)):
        pass
    (thread,) = [t for t in threading.enumerate() if t.name == "pellucid-engine"]
    assert await asyncio.to_thread(idle_wake_ups, [thread.native_id]) == 0


@around_an_engine()
async def test_an_engine_whose_requests_have_ended_is_not_stuck(engine: AsyncLLMEngine) -> None:
    for _ in range(2):
        async for _ in engine.generate(PROMPT, SamplingParams(max_tokens=3)):
            pass
        assert engine.seconds_without_step == 0


@around_an_engine(max_num_seqs=8)
async def test_streams_are_the_answers(engine: AsyncLLMEngine) -> None:
    rng = random.Random(0)
    requests = [random_request(rng) for _ in range(40)]

    async def one(engine: AsyncLLMEngine, prompt: list[int], params: SamplingParams) -> None:
        async with await engine.add_request(prompt, params) as stream:
            deltas = [delta async for delta in stream]
        assert_joined(deltas, stream.output)
        assert stream.output.outputs == alone(prompt, params).outputs

    await asyncio.gather(*(one(engine, *request) for request in requests))


@around_an_engine(max_num_seqs=8)
async def test_a_reader_that_is_called_back_gets_the_same_whatever_it_leaves_unread(
    engine: AsyncLLMEngine,
) -> None:
    rng = random.Random(2)
    requests = [random_request(rng) for _ in range(50)]

    async def one(engine: AsyncLLMEngine, prompt: list[int], params: SamplingParams) -> None:
        stream = await engine.add_request(prompt, params)
        deltas: list[CompletionDelta] = []
        num_ends = 0

        def on_end() -> None:
            nonlocal num_ends
            num_ends += 1

        def on_delta(delta: CompletionDelta) -> bool:
            if rng.random() < 0.5:
                return False  # the reader is busy
            deltas.append(delta)
            return True

        stream.call_back(on_delta, on_end)
        while not stream.has_ended:
            deltas += stream.take()
            await asyncio.sleep(0.001)
        await stream.aclose()
        assert num_ends <= 1  # 0: it had ended before
        assert_joined(deltas, stream.output)
        assert stream.output.outputs == alone(prompt, params).outputs

    await asyncio.gather(*(one(engine, *request) for request in requests))


def test_hundreds_of_requests_that_end_at_any_moment() -> None:
    rng = random.Random(1)
    ended = {"read": 0, "closed": 0, "aborted": 0, "cancelled": 0}

    async def one(engine: AsyncLLMEngine, number: int) -> None:
        prompt, params = random_request(rng)
        await asyncio.sleep(rng.random())
        stream = await engine.add_request(prompt, params, f"r{number}")
        how, after = rng.choice(["read", "read", "closed", "aborted"]), rng.randrange(5)
        deltas = []
        async for delta in stream:
            deltas.append(delta)
            if len(deltas) == after and how == "aborted":
                engine.abort(f"r{number}")
            if len(deltas) == after and how == "closed":
                break
        await stream.aclose()
        if how == "read":
            assert_joined(deltas, stream.output)
        ended[how] += 1

    async def serve(engine: AsyncLLMEngine) -> None:
        tasks = [asyncio.create_task(one(engine, number)) for number in range(400)]
        victims = rng.sample(tasks, 80)
        for victim in victims:
            await asyncio.sleep(rng.random() / 400)
            if victim.cancel():
                ended["cancelled"] += 1
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert result is None or isinstance(result, asyncio.CancelledError)

    run(serve, max_num_seqs=32, num_kv_blocks=40)
    assert all(ended.values())
    assert sum(ended.values()) == 400


@around_an_engine()
async def test_a_reader_that_sleeps_gets_all_at_once(engine: AsyncLLMEngine) -> None:
    params = SamplingParams(max_tokens=50, ignore_eos=True, seed=1, n=2, logprobs=0)
    slow = await engine.add_request(PROMPT, params)
    for _ in range(3):  # readers that are not slow are not held up
        await (await engine.add_request(PROMPT, LONG)).complete()
    deltas = [delta async for delta in slow]
    assert [delta.index for delta in deltas] == [0, 1]
    assert_joined(deltas, slow.output)
    assert slow.output.outputs == alone(PROMPT, params).outputs


def test_two_event_loops_share_an_engine() -> None:
    engine = fake_engine(max_num_seqs=4)
    async_engine = AsyncLLMEngine(engine)
    failures: list[BaseException] = []

    async def read(seed: int) -> None:
        params = SamplingParams(max_tokens=10, seed=seed, ignore_eos=True)
        async with await async_engine.add_request(PROMPT, params) as stream:
            deltas = [delta async for delta in stream]
        assert_joined(deltas, alone(PROMPT, params))

    async def read_all(first: int) -> None:
        await asyncio.gather(*(read(seed) for seed in range(first, first + 15)))

    def loop(first: int) -> None:
        try:
            asyncio.run(read_all(first))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=loop, args=(first,)) for first in (0, 100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    asyncio.run(async_engine.shutdown())
    assert not engine.has_unfinished_requests


def test_a_loop_that_was_closed_takes_its_requests_along() -> None:
    engine, left = fake_engine(), []
    gate = StepGate(engine)  # until their loop is closed
    async_engine = AsyncLLMEngine(engine)

    async def leave_behind() -> None:
        streams = [await async_engine.add_request(PROMPT, LONG) for _ in range(3)]
        left.extend(stream.output.outputs[0] for stream in streams)

    async def go_on() -> None:
        output = await (await async_engine.add_request(PROMPT, LONG)).complete()
        assert output.outputs == alone(PROMPT, LONG).outputs
        await async_engine.shutdown(drain=True)

    asyncio.run(leave_behind())
    gate.open()
    asyncio.run(go_on())
    # By the first step that had something for them
    assert [(each.finish_reason, len(each.token_ids)) for each in left] == [("abort", 1)] * 3
    assert not engine.unfinished_request_ids
    assert async_engine.num_unfinished_requests == 0


def test_a_reader_of_the_whole_wakes_at_the_end_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def serve(engine: AsyncLLMEngine) -> None:
        gate = StepGate(engine._thread.engine, num_steps=1)
        stream = await engine.add_request(PROMPT, LONG)
        await anext(stream)
        num_wakes = 0
        wait = Signal.wait

        async def counted(self: Signal) -> None:
            nonlocal num_wakes
            await wait(self)
            num_wakes += 1

        monkeypatch.setattr(Signal, "wait", counted)
        gate.open()
        assert (await stream.complete()).outputs == alone(PROMPT, LONG).outputs
        assert num_wakes <= 2  # one of them for the first delta, which was read before

    run(serve)


@around_an_engine()
async def test_closing_the_iterator_aborts(engine: AsyncLLMEngine) -> None:
    deltas = engine.generate(PROMPT, LONG, "mine")
    await anext(deltas)
    await deltas.aclose()
    # In the order of the calls: the id is free again.
    stream = await engine.add_request(PROMPT, LONG, "mine")
    assert (await stream.complete()).outputs == alone(PROMPT, LONG).outputs


@around_an_engine()
async def test_a_stream_that_its_reader_closes_ends_once(engine: AsyncLLMEngine) -> None:
    stream, ends = await engine.add_request(PROMPT, LONG), []
    stream.when_ended(lambda: ends.append("stream"))
    stream.call_back(lambda delta: True, lambda: ends.append("reader"))
    assert ends == []
    await stream.aclose()
    await engine._thread.ask(int)  # the engine has aborted it, and said so
    stream.when_ended(lambda: ends.append("late"))
    assert ends == ["stream", "reader", "late"] and stream.take() == []


def test_what_a_stream_says_of_itself() -> None:
    delta = CompletionDelta("r", 0, "a", [1], None, None, None)
    aborted: list[AsyncTokenStream] = []

    def says(stream: AsyncTokenStream) -> tuple[bool, bool, bool]:
        return stream.is_readable, stream.has_all_deltas, stream.has_ended

    async def walk() -> None:
        read, closed, failed = (AsyncTokenStream(aborted.append) for _ in range(3))
        assert says(read) == (False, False, False)
        for stream in (read, closed, failed):
            stream.receive(delta)
            assert says(stream) == (True, False, False)
        read.end()
        read.end(RuntimeError("too late"))
        assert says(read) == (True, True, False) and read.take() == [delta]
        assert says(read) == (True, True, True) and read.take() == []
        await closed.aclose()
        closed.receive(delta)
        assert says(closed) == (True, True, True) and closed.take() == []
        failed.end(RuntimeError("of the engine"))
        assert await anext(failed) == delta and says(failed) == (True, True, False)
        for reading in (failed.complete(), anext(failed), asyncio.to_thread(failed.take)):
            with pytest.raises(RuntimeError, match="of the engine"):
                await reading
        await read.aclose()
        await failed.aclose()
        assert aborted == [closed]
        whole, output = AsyncTokenStream(aborted.append), alone(PROMPT, LONG)
        whole.start(output)
        whole.receive(delta)
        whole.end()
        assert await whole.complete() is output and says(whole) == (True, True, True)
        for stream in (read, closed):
            with pytest.raises(StopAsyncIteration):
                await anext(stream)

    asyncio.run(walk())


@around_an_engine()
async def test_a_closed_stream_leaves_the_next_owner_of_its_id_alone(
    engine: AsyncLLMEngine,
) -> None:
    first = await engine.add_request(PROMPT, SamplingParams(max_tokens=1), "mine")
    while engine.num_unfinished_requests:
        await asyncio.sleep(0)
    second = await engine.add_request(PROMPT, LONG, "mine")
    engine._abort_stream(first)
    assert (await second.complete()).outputs[0].finish_reason == "length"


@around_an_engine()
async def test_abort_ends_the_stream_with_what_there_is(engine: AsyncLLMEngine) -> None:
    StepGate(engine._thread.engine, num_steps=3)
    stream = await engine.add_request(PROMPT, LONG)
    deltas = [await anext(stream)]
    engine.abort(stream.request_id)
    engine.abort("unknown")
    deltas += [delta async for delta in stream]
    assert deltas[-1].finish_reason == "abort"
    assert_joined(deltas, stream.output)
    assert 0 < len(stream.output.outputs[0].token_ids) <= 3


@around_an_engine()
async def test_cancelled_while_it_is_added(engine: AsyncLLMEngine) -> None:
    is_held, go_on = threading.Event(), threading.Event()
    engine._thread.call(lambda: (is_held.set(), go_on.wait(60)))
    await asyncio.to_thread(is_held.wait, 60)
    task = asyncio.create_task(engine.add_request(PROMPT, LONG))
    refused = asyncio.create_task(engine.add_request([VOCAB_SIZE - 1] * 300, LONG))
    while engine._thread._calls.qsize() < 1:
        await asyncio.sleep(0.001)
    task.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(ValueError, match="prompt"):
        await refused
    stream = await engine.add_request(PROMPT, LONG)
    assert engine.num_unfinished_requests == 1
    await stream.complete()


@around_an_engine()
async def test_errors_are_raised_where_the_request_was_made(engine: AsyncLLMEngine) -> None:
    gate = StepGate(engine._thread.engine)
    with pytest.raises(ValueError, match="prompt: is empty"):
        await engine.add_request([], LONG)
    with pytest.raises(ValueError, match="stop_token_ids"):
        await engine.add_request(PROMPT, SamplingParams(stop_token_ids=[VOCAB_SIZE]))
    with pytest.raises(ValueError, match="prompt: is empty"):
        await anext(engine.generate(""))
    stream = await engine.add_request(PROMPT, LONG, "mine")
    with pytest.raises(ValueError, match="request_id='mine'"):
        await engine.add_request(PROMPT, LONG, "mine")
    gate.open()
    assert len((await stream.complete()).outputs[0].token_ids) == 60


def test_what_add_request_takes_reaches_the_engine() -> None:
    order = []

    async def serve(engine: AsyncLLMEngine) -> None:
        gate = StepGate(engine._thread.engine)  # so that both wait together
        running = asyncio.create_task((await engine.add_request(PROMPT, LONG)).complete())
        completing = []
        for request_id, given in (("late", {}), ("soon", {"priority": -3, "cache_salt": "x"})):
            stream = await engine.add_request(PROMPT * 20, LONG, request_id, **given)
            task = asyncio.create_task(stream.complete())
            task.add_done_callback(
                lambda _, stream=stream: order.append((stream.request_id, stream.output))
            )
            completing.append(task)
        with pytest.raises(ValueError, match="priority"):
            await anext(engine.generate(PROMPT, priority="high"))
        gate.open()
        await asyncio.gather(running, *completing)

    run(serve, max_num_seqs=1)
    assert [request_id for request_id, _ in order] == ["soon", "late"]
    assert order[1][1].num_cached_tokens == 0  # of another salt


def test_too_many_requests_are_refused() -> None:
    async def serve(engine: AsyncLLMEngine) -> None:
        gate = StepGate(engine._thread.engine)
        streams = [await engine.add_request(PROMPT, LONG) for _ in range(3)]
        with pytest.raises(TooManyRequestsError, match="max_requests is 3"):
            await engine.add_request(PROMPT, LONG)
        await streams[1].aclose()
        while engine.num_unfinished_requests == 3:
            await asyncio.sleep(0)
        gate.open()
        await (await engine.add_request(PROMPT, LONG)).complete()

    run(serve, max_requests=3)
    with pytest.raises(ValueError, match="max_requests=0"):
        AsyncLLMEngine(fake_engine(), 0)


def test_an_engine_with_requests_of_its_own_is_refused() -> None:
    engine = fake_engine()
    engine.add_request(PROMPT, LONG)
    with pytest.raises(ValueError, match="engine: has unfinished requests"):
        AsyncLLMEngine(engine)


@around_an_engine()
async def test_a_slow_tokenizer_holds_nobody_up(engine: AsyncLLMEngine) -> None:
    encoding, go_on = threading.Event(), threading.Event()
    plain = engine.tokenizer.encode

    def encode(text: str, **limits: int) -> list[int]:
        encoding.set()
        assert go_on.wait(120)
        return plain(text)

    engine.tokenizer.encode = encode
    slow = asyncio.create_task(engine.add_request("abc", LONG))
    await asyncio.to_thread(encoding.wait)
    await (await engine.add_request(PROMPT, LONG)).complete()
    go_on.set()
    await (await slow).complete()


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(max_tokens=1, thinking_token_budget=3),
        SamplingParams(max_tokens=1, stop=["x"], stop_in_reasoning=False),
        SamplingParams(max_tokens=1, bad_words=["x"]),
    ],
)
def test_no_text_is_decoded_or_encoded_on_the_event_loop(params: SamplingParams) -> None:
    threads: set[threading.Thread] = set()

    async def main(engine: AsyncLLMEngine) -> None:
        tokenizer = engine.tokenizer

        def watched(do: Callable[..., Any], *args: object, **options: object) -> Any:
            threads.add(threading.current_thread())
            return do(*args, **options)

        for name in ("encode", "decode", "bad_words_token_ids"):
            setattr(tokenizer, name, functools.partial(watched, getattr(tokenizer, name)))
        prompt = await engine.encode(PROMPT)
        async with await engine.add_request(prompt, params) as stream:
            async for _ in stream:
                pass

    run(main)
    assert threads and threading.main_thread() not in threads


@around_an_engine(max_num_seqs=2)
async def test_draining_lets_requests_end_and_takes_no_others(engine: AsyncLLMEngine) -> None:
    own, closed = engine._thread.engine, []
    close = own.close
    own.close = lambda: (time.sleep(0.1), closed.append(close()))
    streams = [await engine.add_request(PROMPT, LONG) for _ in range(4)]
    shutdown = asyncio.create_task(engine.shutdown(drain=True))
    await asyncio.sleep(0)
    assert not engine.is_healthy
    with pytest.raises(EngineStoppedError, match="shut down"):
        await engine.add_request(PROMPT, LONG)
    for stream in streams:
        assert (await stream.complete()).outputs[0].finish_reason == "length"
    await shutdown
    assert closed and engine.last_step_time is not None
    engine.abort("anything")  # and nothing happens


@around_an_engine()
async def test_a_step_is_progress(engine: AsyncLLMEngine) -> None:
    gate = StepGate(engine._thread.engine)
    stream = await engine.add_request(PROMPT, LONG)
    added = time.monotonic()
    gate.let(3)
    await anext(stream)
    assert 0 < engine.seconds_without_step < time.monotonic() - added
    await stream.aclose()


@around_an_engine(max_num_seqs=2)
async def test_an_engine_may_be_stuck_after_the_end_of_one_of_two_requests(
    engine: AsyncLLMEngine,
) -> None:
    own, seconds = engine._thread.engine, list[float]()
    step = own.step
    own.step = lambda: (seconds.append(engine.seconds_without_step), step())[1]
    async with await engine.add_request(PROMPT, LONG) as stream:
        await (await engine.add_request(PROMPT, SamplingParams(max_tokens=1))).complete()
        await stream.complete()
    assert min(seconds) > 0


@around_an_engine(max_num_seqs=2)
async def test_shutting_down_aborts(engine: AsyncLLMEngine) -> None:
    StepGate(engine._thread.engine, num_steps=10)
    streams = [await engine.add_request(PROMPT, LONG) for _ in range(4)]
    await anext(streams[0])
    draining = asyncio.create_task(engine.shutdown(drain=True))
    await asyncio.gather(draining, engine.shutdown())  # the impatient one wins
    assert [(await stream.complete()).outputs[0].finish_reason for stream in streams] == [
        "abort"
    ] * 4


@around_an_engine()
async def test_shut_down_while_a_prompt_is_encoded(engine: AsyncLLMEngine) -> None:
    encoding, go_on = threading.Event(), threading.Event()

    def encode(text: str, **limits: int) -> list[int]:
        encoding.set()
        assert go_on.wait(120)
        return PROMPT

    engine.tokenizer.encode = encode
    late = asyncio.create_task(engine.add_request("abc", LONG))
    await asyncio.to_thread(encoding.wait)
    stream = await engine.add_request(PROMPT, LONG)
    draining = asyncio.create_task(engine.shutdown(drain=True))
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(EngineStoppedError, match="shut down"):
        await late
    assert (await stream.complete()).outputs[0].finish_reason == "length"
    await draining


def test_a_forgotten_engine_ends() -> None:
    async def leave_behind() -> AsyncLLMEngine:
        engine = AsyncLLMEngine(fake_engine())
        await engine.add_request(PROMPT, LONG)
        return engine

    gone = weakref.ref(engine := asyncio.run(leave_behind()))
    thread = engine._thread._thread
    del engine
    for _ in range(1000):  # until its request has ended it is not forgotten
        gc.collect()
        if gone() is None:
            break
        thread.join(0.05)
    assert gone() is None
    thread.join(120)  # it may have been the one that forgot it
    assert not thread.is_alive()


def test_without_parameters_the_checkpoints_own_are_taken() -> None:
    engine = fake_engine()
    own = SamplingParams(temperature=0.0, max_tokens=5)
    engine.model = dataclasses.replace(engine.model, default_sampling_params=own)

    async def main() -> RequestOutput:
        async with AsyncLLMEngine(engine) as async_engine:
            stream = await async_engine.add_request(PROMPT)
            return await stream.complete()

    assert asyncio.run(main()).outputs == alone(PROMPT, own).outputs


async def _complete(engine: AsyncLLMEngine, prompt: list[int]) -> RequestOutput:
    return await (await engine.add_request(prompt, LONG)).complete()


class Panic(BaseException):
    """As a panic of a Rust library: no Exception."""


ENDINGS = (Panic("of Rust"), SystemExit(3), KeyboardInterrupt())


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("step", ZeroDivisionError("of the engine")),
        *itertools.product(("step", "add_prepared", "subscriber"), ENDINGS),
    ],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_whatever_ends_the_engines_thread_ends_every_stream(
    where: str, error: BaseException
) -> None:
    engine = fake_engine()
    StepGate(engine)  # the requests are under way when it fails

    async def main() -> None:
        async_engine = AsyncLLMEngine(engine)
        calls: list[Future[int]] = []

        def fail(*args: object, **kwargs: object) -> None:
            calls.append(async_engine._thread.call(int))
            raise error

        forever = SamplingParams(max_tokens=None, ignore_eos=True)
        streams = [await async_engine.add_request(PROMPT, forever) for _ in range(3)]
        if where == "subscriber":
            async_engine._thread.call(lambda: async_engine.events.subscribe(fail, Level.STEP))
        else:
            setattr(engine, where, fail)
        late = asyncio.create_task(_complete(async_engine, PROMPT))
        for end in (*(stream.complete() for stream in streams), late):
            with pytest.raises(EngineStoppedError) as caught:
                await end
            assert caught.value.__cause__ is error
        with pytest.raises(EngineStoppedError):  # a call that waited meanwhile
            await asyncio.wrap_future(calls[0])
        with pytest.raises(EngineStoppedError):
            await async_engine._thread.ask(int)
        assert not async_engine.is_healthy
        assert async_engine.failure is error
        assert async_engine.num_unfinished_requests == 0
        with pytest.raises(EngineStoppedError, match=type(error).__name__):
            await async_engine.add_request(PROMPT, LONG)
        await async_engine.shutdown()

    asyncio.run(asyncio.wait_for(main(), 180))


def test_texts_are_encoded_by_a_bounded_pool() -> None:
    threads, go_on = set(), threading.Event()

    async def serve(engine: AsyncLLMEngine) -> None:
        plain = engine.tokenizer.encode

        def encode(text: str, **limits: int) -> list[int]:
            threads.add(threading.current_thread().name)
            assert go_on.wait(120)
            return plain(text)

        engine.tokenizer.encode = encode
        texts = [asyncio.create_task(engine.encode("abc")) for _ in range(20)]
        await asyncio.sleep(0)  # each has begun
        with pytest.raises(TooManyRequestsError, match="20 texts wait to be encoded"):
            await engine.encode("abc")
        go_on.set()
        assert {(await text).token_ids for text in texts} == {(1, 2, 3)}

    run(serve, max_requests=20)
    assert 1 <= len(threads) <= 4
    assert all(name.startswith("pellucid-text") for name in threads)


@pytest.mark.parametrize(("num_cpus", "most"), [(None, 2), (1, 2), (3, 3), (64, 4)])
def test_as_many_texts_at_a_time_as_processors_within_bounds(
    num_cpus: int | None, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: num_cpus)
    threads = TextThreads(max_waiting=20)
    assert threads._executor._max_workers == most
    threads.stop()


@around_an_engine()
async def test_a_tokenizers_failure_is_that_requests_alone(engine: AsyncLLMEngine) -> None:
    other = await engine.add_request(PROMPT, LONG)

    def fail(words: object) -> None:
        raise ValueError("the tokenizer gave up")

    engine.tokenizer.bad_words_token_ids = fail
    with pytest.raises(ValueError, match="gave up"):
        await engine.add_request(PROMPT, SamplingParams(bad_words=["x"]))
    assert (await other.complete()).outputs[0].finish_reason == "length"
    assert engine.is_healthy


@around_an_engine()
async def test_a_look_that_its_caller_gives_up_leaves_the_engine_running(
    engine: AsyncLLMEngine,
) -> None:
    began, go_on = threading.Event(), threading.Event()

    def slow(_: object) -> None:
        began.set()
        go_on.wait(60)

    first = asyncio.create_task(engine.inspect(slow))
    await asyncio.to_thread(began.wait, 60)
    # These wait for their turn.
    others = [asyncio.create_task(ask()) for ask in (engine.snapshot, engine.kv_cache_usage)]
    await asyncio.sleep(0)
    for task in (first, *others):
        task.cancel()
    await asyncio.gather(first, *others, return_exceptions=True)
    go_on.set()
    assert (await engine.snapshot()).requests == ()
    assert engine.is_healthy
