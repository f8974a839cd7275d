"""benchmarks/cluster_simulation.py: what its model says where the answer is known."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

from pellucid.benchmark.planned_model import plan_shape
from pellucid.benchmark.step_work import KINDS
from pellucid.cluster.router import Router
from pellucid.inputs.config import EngineConfig
from pellucid.shapes import find_shape

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
BLOCK = 4
SETTINGS = EngineConfig(backend="numpy", quantization="int8", speculation="off", max_num_seqs=256)
Positions = tuple[int, int]


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import simulated_cluster

    return simulated_cluster


@pytest.fixture
def simulation(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import cluster_simulation

    return cluster_simulation


class ASecond:
    """A step takes a second."""

    num_stages = 1

    def end(self, batch: Sequence[Positions], now: float, free_at: list[float]) -> float:
        return now + 1.0


def cluster_of(
    simulated: ModuleType,
    num_replicas: int,
    router: type[Router] = Router,
    num_blocks: int = 100,
    latency: float = 0.0,
    times: object = None,
):  # type: ignore[no-untyped-def]
    sizes = simulated.EngineSizes(num_blocks, BLOCK)
    engines = [simulated.SimulatedEngine(sizes, times or ASecond()) for _ in range(num_replicas)]
    return simulated.SimulatedCluster(router(BLOCK), engines, BLOCK, latency)


def test_requests_wait_for_the_step_that_is_under_way(simulated: ModuleType) -> None:
    requests = [
        simulated.SimulatedRequest((1,) * 5, 3),
        simulated.SimulatedRequest((2,) * 5, 2, due=0.5),
        simulated.SimulatedRequest((3,) * 5, 1, due=7.25),
    ]
    assert cluster_of(simulated, 1).run(requests) == 8.25
    assert [each.first_token_at for each in requests] == [1.0, 2.0, 8.25]
    assert [each.ended_at for each in requests] == [3.0, 3.0, 8.25]
    assert [each.token_seconds for each in requests] == [1.0, 1.0, None]
    assert requests[1].first_token_seconds == 1.5


def test_a_message_takes_its_time_each_way(simulated: ModuleType) -> None:
    (request,) = requests = [simulated.SimulatedRequest((1,) * 5, 2)]
    assert cluster_of(simulated, 1, latency=0.25).run(requests) == 2.5
    assert (request.first_token_at, request.ended_at) == (1.5, 2.5)


def test_requests_follow_each_other(simulated: ModuleType) -> None:
    requests = [simulated.SimulatedRequest((number,) * 5, 2) for number in range(5)]
    assert cluster_of(simulated, 2).run(requests, concurrency=2) == 6.0
    assert [each.due for each in requests] == [0, 0, 2, 2, 4]
    assert sorted(each.replica for each in requests) == [0, 0, 0, 1, 1]


def test_a_beginning_is_computed_once_by_the_router_and_by_each_replica_in_turn(
    simulated: ModuleType,
) -> None:
    """With room for all: of 30 prompts with 3 beginnings of 10 blocks, 27 find theirs; in turn 24."""
    for router, num_found in ((Router, 27), (simulated.InTurn, 24)):
        prompts = [
            ((1 + index // 2 % 3,) * 10 * BLOCK, (9 + index,) * BLOCK) for index in range(30)
        ]
        requests = [
            simulated.SimulatedRequest(shared + own, 1, due=10.0 * index)
            for index, (shared, own) in enumerate(prompts)
        ]
        cluster_of(simulated, 2, router).run(requests)
        assert simulated.hit_rate(requests) == num_found * 10 / (30 * 11)


def test_what_is_evicted_is_computed_again(simulated: ModuleType) -> None:
    """20 blocks have room for a prompt of 12 blocks, and for the first 8 of another one."""
    for num_blocks, num_found in ((20, 8), (40, 11)):  # the last block of 12 is always computed
        requests = [
            simulated.SimulatedRequest((1 + index % 2,) * 12 * BLOCK, 1, due=10.0 * index)
            for index in range(6)
        ]
        cluster_of(simulated, 1, num_blocks=num_blocks).run(requests)
        found = [each.num_cached_tokens // BLOCK for each in requests]
        assert found == [0, 0, *[num_found] * 4]


class Rows:
    """The work of a stage: a unit for each row."""

    def of_tokens(self, num_tokens: int, num_requests: int) -> dict[str, float]:
        return {"rows": num_tokens}

    def of_context(self, start: int, end: int) -> dict[str, float]:
        return {}


def test_stages_compute_pieces_of_a_prompt_at_the_same_time(simulated: ModuleType) -> None:
    def end(num_stages: int, *batches: Sequence[Positions], boundary: Positions = (0, 0)) -> float:
        seconds = simulated.StepSeconds(
            [Rows()] * num_stages, {"rows": 1.0}, simulated.Boundary(*boundary)
        )
        free_at = [0.0] * num_stages
        return [seconds.end(batch, 0.0, free_at) for batch in batches][-1]

    prompt, token = [(0, 2048)], [(7, 8)]
    assert end(1, prompt) == 2048
    assert end(2, prompt) == (4 + 1) * 512
    assert end(4, prompt) == (4 + 3) * 512
    assert end(2, [(0, 600), (7, 8)]) == 512 + max(512, 89) + 89
    assert end(3, token) == 3  # a token passes one after the other
    assert end(3, token, token, token) == 5  # of different steps at the same time
    assert end(1, token, token, token) == 3
    assert end(2, token, boundary=(10, 2)) == 2 + 10 + 2
    assert end(3, token, boundary=(10, 2)) == 3 + 2 * 10 + 3 * 2  # by way of the engine


def test_as_many_steps_are_under_way_as_there_are_stages(simulated: ModuleType) -> None:
    """Three stages, a second for each row. The first prompt is alone: 15 s. With its first decoded token the others
    make a step of 11 rows: 33 s. Then each request has steps of its own, of 3 s each, a second apart; in steps for
    all, which take 9 s, the last of five tokens would come after 84 s."""
    for num_requests, seconds in ((1, 15 + 4 * 3), (3, 15 + 33 + 4 * 3 + 2)):
        requests = [simulated.SimulatedRequest((number,) * 5, 5) for number in range(num_requests)]
        times = simulated.StepSeconds([Rows()] * 3, {"rows": 1.0})
        assert cluster_of(simulated, 1, times=times).run(requests) == seconds


def test_pieces_have_all_rows_in_order(simulated: ModuleType) -> None:
    cut = simulated.cut_into_pieces([(5, 6), (0, 7), (2, 4)], 4)
    assert cut == [[(5, 6), (0, 3)], [(3, 7)], [(2, 4)]]


def test_stages_do_the_work_of_the_model_and_share_its_memory(simulation: ModuleType) -> None:
    model = plan_shape("smollm2-135m", find_shape("smollm2-135m"), SETTINGS)
    memory = 2 << 30
    whole, (all_work,) = simulation.plan_replica(model, 1, memory)
    cut, parts = simulation.plan_replica(model, 3, memory)
    # Three machines have thrice the memory, of which weights leave more
    assert cut.num_blocks > 2 * whole.num_blocks
    assert cut.windows == whole.windows
    for kind in {*KINDS} - {"steps", "requests"}:
        for name, args in (("of_tokens", (70, 5)), ("of_context", (100, 170))):
            expected = getattr(all_work, name)(*args).get(kind, 0.0)
            total = sum(getattr(part, name)(*args).get(kind, 0.0) for part in parts)
            assert total == pytest.approx(expected), kind
    hybrid = plan_shape("lfm2-1.2b", find_shape("lfm2-1.2b"), SETTINGS)
    with pytest.raises(ValueError, match="recurrent layers are not simulated"):
        simulation.plan_replica(hybrid, 1, memory)


def test_traces_are_read_as_they_were_recorded(simulation: ModuleType, tmp_path: Path) -> None:
    lines = [
        {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [3, 4]},
        {"timestamp": 1500, "input_length": 700, "output_length": 0, "hash_ids": [3, 5]},
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    first, other = simulation.recorded(path)
    assert first.prompt_token_ids == (3,) * 512 + (4,) * 88
    assert other.prompt_token_ids == (3,) * 512 + (5,) * 188
    assert [(each.due, each.num_output_tokens) for each in (first, other)] == [(0, 5), (1.5, 1)]
    path.write_text(
        '{"timestamp": 0, "input_length": 1025, "output_length": 5, "hash_ids": [3, 4]}'
    )
    with pytest.raises(ValueError, match=r"line 1: .*input_length=1025 with 2 hash_ids"):
        list(simulation.recorded(path))
