"""From the naive loop to continuous batching, on the same requests."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pellucid.benchmark.ablation.requests import MixedRequest, Times, run_groups
from pellucid.engine import LLMEngine
from pellucid.inputs.config import EngineConfig
from pellucid.loaded_model import LoadedModel

NUM_SEATS = 8  # requests that run together, in a static and in a continuous batch


@dataclass(frozen=True)
class Discipline:
    """A way to run many requests.

    Args:
        num_seats: requests that may run together.
        use_kv_cache: False computes the whole text again for every token.
        is_static: no request starts before the whole batch has ended.
    """

    name: str
    num_seats: int
    use_kv_cache: bool = True
    is_static: bool = False


@dataclass(frozen=True)
class BatchingResult:
    """One discipline, measured on `num_requests`."""

    discipline: Discipline
    num_requests: int
    num_output_tokens: int
    times: Times

    @property
    def tokens_per_second(self) -> float:
        return self.num_output_tokens / self.times.total


def disciplines(num_requests: int) -> tuple[Discipline, ...]:
    """From the slowest to the fastest. Few requests fit one static batch, which then is a continuous one."""
    seats = min(NUM_SEATS, num_requests)
    found = (
        Discipline("naive loop", 1, use_kv_cache=False),
        Discipline("KV cache, one by one", 1),
        Discipline(f"static batches of {seats}", seats, is_static=True),
        Discipline(f"continuous, {seats} seats", seats),
        Discipline(f"continuous, {num_requests} seats", num_requests),
    )
    return tuple(dict.fromkeys(found))


def measure_batching(
    model: LoadedModel,
    config: EngineConfig,
    requests: Sequence[MixedRequest],
    on_discipline: Callable[[Discipline], None],
) -> tuple[BatchingResult, ...]:
    """Runs each discipline once. The naive loop gets the requests at the quartiles of length only: it takes
    more than ten times as long for each.

    Args:
        config: `max_num_seqs` and `use_kv_cache` are those of each discipline.
    """
    results = []
    for discipline in disciplines(len(requests)):
        on_discipline(discipline)
        own = requests if discipline.use_kv_cache else quartiles(requests)
        engine = LLMEngine(
            replace(
                config,
                max_num_seqs=discipline.num_seats,
                use_kv_cache=discipline.use_kv_cache,
                enable_prefix_caching=False,
            ),
            model,
        )
        size = discipline.num_seats if discipline.is_static else len(own)
        groups = [own[start : start + size] for start in range(0, len(own), size)]
        run_groups(engine, [[replace(own[0], num_output_tokens=1)]])  # warms up
        times = run_groups(engine, groups)
        num_output_tokens = sum(request.num_output_tokens for request in own)
        results.append(BatchingResult(discipline, len(own), num_output_tokens, times))
    return tuple(results)


def quartiles(requests: Sequence[MixedRequest]) -> list[MixedRequest]:
    """The requests at the first and third quartiles of length."""
    by_length = sorted(requests, key=lambda request: request.num_tokens)
    return [by_length[len(requests) * quarter // 4] for quarter in (1, 3)]
