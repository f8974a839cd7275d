"""The worker process of an engine: runs one test for each line that it reads from stdin.

It is told in lines of JSON on stdin and answers in lines of JSON on stdout; what the engine's library
prints goes to stderr. Needs nothing but the standard library, so that every engine can have its own
environment.
"""

import argparse
import json
import os
import random
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, TextIO

from engines.traffic import MAX_POSITIONS, Served, TrafficRequest, mixed_traffic

_TEST = re.compile(
    r"pp(?P<prompt>\d+)|tg(?P<gen>\d+)@(?P<depth>\d+)(?:x(?P<batch>\d+))?|mix(?P<requests>\d+)"
)


@dataclass(frozen=True)
class Test:
    """A test by the names of `pellucid bench`: "pp512", "tg32@512", "tg16@128x32"; or "mix32", that many
    requests of mixed lengths at once."""

    name: str
    num_prompt_tokens: int  # of a prefill, else 0
    num_output_tokens: int  # of one sequence of a decode, else 0
    depth: int
    batch: int
    num_requests: int = 0  # of a mix, else 0

    @classmethod
    def parse(cls, name: str) -> "Test":
        """Raises ValueError if it is no such name."""
        match = _TEST.fullmatch(name)
        if match is None:
            raise ValueError(f"test={name!r}: must look like pp512, tg32@512, tg16@128x32 or mix32")
        prompt, gen, depth, batch, requests = (int(value or 0) for value in match.groups())
        return cls(name, prompt, gen, depth, batch or requests or 1, requests)

    @property
    def num_tokens(self) -> int:
        """Whose rate is reported."""
        if self.num_requests:
            return sum(each.num_output_tokens for each in mixed_traffic(self.num_requests))
        return self.num_prompt_tokens or self.batch * self.num_output_tokens

    @property
    def num_positions(self) -> int:
        """Of the longest sequence, at its end."""
        if self.num_requests:
            return MAX_POSITIONS
        return self.num_prompt_tokens or self.depth + self.num_output_tokens


class Engine(Protocol):
    """What each script here implements."""

    settings: str  # version and what matters for speed, for the report

    def prefill(self, num_tokens: int) -> float:
        """Seconds from nothing to the logits after a prompt."""
        ...

    def decode(self, num_tokens: int, depth: int, batch: int) -> float:
        """Seconds for `num_tokens` steps of `batch` sequences that hold `depth` tokens already."""
        ...

    def serve(self, requests: Sequence[TrafficRequest]) -> Served:
        """Answers requests that are all there at once, as many together as the engine can; only asked of
        engines that batch continuously."""
        ...


@dataclass(frozen=True)
class Task:
    """What a worker is started for."""

    weights: Path  # as written by make_weights.py
    weight_format: str  # a key of `options.FORMATS`
    num_threads: int
    tests: tuple[Test, ...]
    program: Path | None = None  # of an engine that is a program and no library


def serve(make_engine: Callable[[Task], Engine]) -> None:
    """Loads the engine, then runs tests until stdin ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--format", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--tests", nargs="+", type=Test.parse, required=True)
    parser.add_argument("--program", type=Path)
    arguments = parser.parse_args()
    answers = _stdout_for_answers()
    task = Task(
        arguments.weights,
        arguments.format,
        arguments.threads,
        tuple(arguments.tests),
        arguments.program,
    )
    engine = make_engine(task)
    _answer(answers, {"settings": engine.settings})
    for line in sys.stdin:
        test = Test.parse(json.loads(line)["test"])
        if test.num_requests:
            _answer(answers, asdict(engine.serve(mixed_traffic(test.num_requests))))
            continue
        if test.num_prompt_tokens:
            seconds = engine.prefill(test.num_prompt_tokens)
        else:
            seconds = engine.decode(test.num_output_tokens, test.depth, test.batch)
        _answer(answers, {"seconds": seconds})


def random_tokens(count: int) -> list[int]:
    """Ids that every vocabulary has, the same in each call."""
    rng = random.Random(0)
    return [rng.randrange(1000, 40_000) for _ in range(count)]


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._start


def _stdout_for_answers() -> TextIO:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print where they like
    return answers


def _answer(answers: TextIO, values: dict[str, Any]) -> None:
    answers.write(json.dumps(values) + "\n")
    answers.flush()
