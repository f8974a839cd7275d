"""The cost of events: processor time of decode steps without subscribers and at each level of events, in turn.

    python benchmarks/observing.py [MODEL | --shape qwen2.5-0.5b] [--quantization int8] [--batch 1,8] [--arm page ...]

All arms run on the same engine and the same work, in rotating order, so that a machine that slows down slows all of
them; processor time of all threads, so that other work on the machine counts little. "recorded" writes NDJSON to the
null device; "page" is a reader as the live page is one: it makes frames of what a feed has 20 times a second, and of
the rest at the end of a turn, which counts as well. What is saved up for the observation of tokens is used up before a
turn, so that long loads are measured: a turn should last some of these twentieths. The ledgers are always kept: what
that takes is the first line, measured inside of steps that nobody watches.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from threading import Event, Thread
from typing import TypeAlias

from pellucid.benchmark.random_model import random_model
from pellucid.benchmark.workloads import Decode
from pellucid.engine import LLMEngine
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.observing.event_feed import POLL_SECONDS, EventFeed
from pellucid.observing.event_recording import recording
from pellucid.observing.events import EventRecord, Level
from pellucid.observing.observation_budget import SAVED_SECONDS, SHARE

PROMPT_TOKENS = 32
WARM_UP_STEPS = 10
BOOKED = "ledgers, always"
Arm: TypeAlias = Callable[[LLMEngine], AbstractContextManager[object]]
BOOKKEEPING = ("observe_schedule", "observe_tokens", "end_step")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("--shape")
    parser.add_argument("--quantization", default="none")
    parser.add_argument("--batch", default="1,8,32")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=300, help="of a turn")
    parser.add_argument("--num-threads", type=int)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--arm", action="append", choices=list(ARMS)[2:], help="left out: all")
    args = parser.parse_args()
    for batch in map(int, args.batch.split(",")):
        measure(args, batch)


def measure(args: argparse.Namespace, batch: int) -> None:
    engine = make_engine(args, batch)
    params = SamplingParams(
        temperature=args.temperature,
        top_p=0.95,
        seed=1,
        max_tokens=WARM_UP_STEPS + args.steps + 1,
        ignore_eos=True,
    )
    chosen = [*list(ARMS)[:2], *(args.arm or list(ARMS)[2:])]
    seconds: dict[str, list[float]] = {name: [] for name in chosen}
    booked: list[float] = []
    for turn in range(args.rounds):
        names = chosen
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            for index in range(batch):
                engine.add_request([index % 100 + 5] * PROMPT_TOKENS, params, f"turn/{index}")
            for _ in range(WARM_UP_STEPS):
                engine.step()
            engine.events.settle_observations(0, SHARE * SAVED_SECONDS)
            with timing_bookkeeping(engine, name, args.steps, booked):
                seconds[name].append(step_seconds(engine, args.steps, ARMS[name]))
            while engine.has_unfinished_requests:
                engine.step()
    print_arms(batch, seconds, statistics.median(booked))


def make_engine(args: argparse.Namespace, batch: int) -> LLMEngine:
    config = EngineConfig(
        speculation="off",
        model=args.model,
        backend="cpu",
        quantization=args.quantization,
        num_threads=args.num_threads,
        max_num_seqs=batch,
    )
    if args.shape is None:
        return LLMEngine.from_config(config)
    return LLMEngine(config, random_model(args.shape, config, [Decode(1)]))


def step_seconds(engine: LLMEngine, num_steps: int, arm: Arm) -> float:
    start = time.process_time()
    with arm(engine):
        for _ in range(num_steps):
            engine.step()
    return (time.process_time() - start) / num_steps


@contextmanager
def timing_bookkeeping(
    engine: LLMEngine, name: str, num_steps: int, booked: list[float]
) -> Iterator[None]:
    """Adds to `booked` what the recorder takes of a step that nobody watches."""
    if name != BOOKED:
        yield
        return
    recorder = engine._recorder  # noqa: SLF001
    spent = 0.0

    def timed(method: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            nonlocal spent
            start = time.perf_counter()
            try:
                return method(*arguments)
            finally:
                spent += time.perf_counter() - start

        return call

    for method in BOOKKEEPING:
        setattr(recorder, method, timed(getattr(recorder, method)))
    yield
    for method in BOOKKEEPING:
        delattr(recorder, method)
    booked.append(spent / num_steps)


@contextmanager
def listening(
    engine: LLMEngine, level: Level, tokens_of: list[str] | None = None
) -> Iterator[None]:
    def hear(record: EventRecord) -> None:
        pass

    unsubscribe = engine.events.subscribe(hear, level, tokens_of)
    yield
    unsubscribe()


@contextmanager
def page(engine: LLMEngine) -> Iterator[None]:
    """A reader as the live page is one."""
    feed, left = EventFeed(engine.events), Event()
    reader = feed.read(Level.TEXT)

    def read() -> None:
        is_last = False
        while not is_last:
            is_last = left.wait(POLL_SECONDS)
            while records := reader.take():
                feed.encode(records)

    thread = Thread(target=read)
    thread.start()
    yield
    left.set()
    thread.join()
    reader.close()


ARMS: dict[str, Arm] = {
    "nobody": lambda engine: nullcontext(),
    BOOKED: lambda engine: nullcontext(),
    "stat": lambda engine: listening(engine, Level.STAT),
    "step": lambda engine: listening(engine, Level.STEP),
    "step, recorded": lambda engine: recording(engine.events, Path(os.devnull), Level.STEP),
    "text": lambda engine: listening(engine, Level.TEXT),
    "page": page,
    "token, one request": lambda engine: listening(engine, Level.TOKEN, ["turn/0/0"]),
    "token": lambda engine: listening(engine, Level.TOKEN),
    "token, recorded": lambda engine: recording(engine.events, Path(os.devnull), Level.TOKEN),
}


def print_arms(batch: int, seconds: dict[str, list[float]], booked: float) -> None:
    base = statistics.median(seconds["nobody"])
    print(f"\n{batch} requests, step of {base * 1e6:.0f} us")
    print(f"  {BOOKED:20}{booked * 1e6:8.0f} us  {booked / base:7.2%}")
    for name, turns in seconds.items():
        if name not in ("nobody", BOOKED):
            # Of the same turn, so that what changes from turn to turn cancels.
            extra = statistics.median(
                own - other for own, other in zip(turns, seconds["nobody"], strict=True)
            )
            print(f"  {name:20}{extra * 1e6:8.0f} us  {extra / base:7.2%}")


if __name__ == "__main__":
    main()
