"""`pellucid ablate`: what it runs, counts and shows; not the speed."""

import json
from typing import Any

import pytest

from pellucid.benchmark.ablation.batching import disciplines, measure_batching, quartiles
from pellucid.benchmark.ablation.capacity import measure_capacity
from pellucid.benchmark.ablation.kv_formats import measure_kv_formats
from pellucid.benchmark.ablation.prefix import measure_prefix
from pellucid.benchmark.ablation.requests import MixedRequest, mixed_requests
from pellucid.benchmark.random_model import random_model
from pellucid.benchmark.workloads import Prefill
from pellucid.facts.formulas import BlockNeeds
from pellucid.inputs.config import EngineConfig
from pellucid.loaded_model import LoadedModel
from pellucid.shapes import SHAPES
from support.command_line import CommandLine
from support.tiny_shape import TINY_SHAPE

CONFIG = EngineConfig(backend="numpy", num_kv_blocks=64)


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> LoadedModel:
    monkeypatch.setitem(SHAPES, "tiny", TINY_SHAPE)  # type: ignore[arg-type]
    return random_model("tiny", CONFIG, [Prefill(64)])


def requests(*lengths: tuple[int, int]) -> list[MixedRequest]:
    return [MixedRequest(tuple(range(prompt)), output) for prompt, output in lengths]


def test_requests_are_the_same_in_every_run_and_fit_the_context() -> None:
    few, many = (mixed_requests(count, vocab_size=96, context_length=256) for count in (3, 40))
    assert few == many[:3]
    assert all(32 <= len(each.prompt_token_ids) <= 128 for each in many)
    assert all(16 <= each.num_output_tokens <= 128 for each in many)
    with pytest.raises(ValueError, match="a context of 100 tokens is too short: at least 160"):
        mixed_requests(2, 96, 100)


def test_each_discipline_answers_every_request(model: LoadedModel) -> None:
    mix = requests(*((4 + index, 2 + index % 3) for index in range(12)))
    announced: list[str] = []
    results = measure_batching(model, CONFIG, mix, lambda each: announced.append(each.name))
    names = [
        "naive loop",
        "KV cache, one by one",
        "static batches of 8",
        "continuous, 8 seats",
        "continuous, 12 seats",
    ]
    assert [result.discipline.name for result in results] == announced == names
    assert [result.num_requests for result in results] == [2, 12, 12, 12, 12]
    assert results[1].num_output_tokens == sum(request.num_output_tokens for request in mix)
    for result in results:
        assert 0 < result.times.median_first_token <= result.times.total


def test_few_requests_are_not_measured_twice() -> None:
    names = [discipline.name for discipline in disciplines(4)]
    assert names[2:] == ["static batches of 4", "continuous, 4 seats"]


def test_the_naive_loop_gets_a_short_and_a_long_one() -> None:
    mix = requests((10, 1), (40, 1), (20, 1), (30, 1))
    assert [request.num_tokens for request in quartiles(mix)] == [21, 41]


def test_capacity_by_hand() -> None:
    # 4 contexts of 100 tokens in blocks of 16: 28 blocks. The two take 1 and 3 blocks: 2 for each, paged.
    result = measure_capacity(
        requests((10, 5), (30, 10)), 100, BlockNeeds(16), bytes_per_block=1000
    )
    assert result.num_bytes == 28_000
    whole, longest, paged = result.capacities
    assert (whole.num_requests, longest.num_requests, paged.num_requests) == (4, 9, 14)
    assert whole.used_share == (15 + 40) * 2 / (28 * 16)
    assert paged.used_share == (15 + 40) * 7 / (28 * 16)


def test_a_prompt_is_found_again_up_to_its_end(model: LoadedModel) -> None:
    result = measure_prefix(model, CONFIG, max_model_len=300)
    assert result.num_prompt_tokens == 299
    assert result.num_cached_tokens == (299 - 16) // 32 * 32
    assert min(result.off, result.unseen, result.seen) > 0


def test_kv_formats_count_their_scales(model: LoadedModel) -> None:
    results = measure_kv_formats(model, CONFIG, max_model_len=100)
    heads = 2 * 2 * 2  # K and V, layers, heads
    assert {result.kv_cache_dtype: result.bytes_per_token for result in results} == {
        "bf16": heads * 8 * 2,
        "int8": heads // 2 * (32 + 2) + heads // 2 * (8 + 2),  # keys: a group of 32, of a head of 8
        # Keys: a scale and a minimum of each dimension, padded to 32, for 32 tokens.
        "int4": heads // 2 * (16 + 4) + heads // 2 * (16 + 2),
    }
    assert all(result.depth == 84 and result.tokens_per_second > 0 for result in results)


@pytest.fixture
def ablate(pellucid: CommandLine, model: LoadedModel) -> Any:
    common = ("ablate", "--shape", "tiny", "--backend", "numpy", "--max-model-len", "180")
    return lambda *arguments: pellucid(*common, *arguments)


def test_json_has_every_part(ablate: Any) -> None:
    ran = ablate("--requests", "2", "--json")
    assert ran.status == 0
    report = json.loads(ran.out)
    assert set(report) == {"batching", "capacity", "prefix", "kv_formats"}
    first = report["batching"][0]
    assert first["discipline"]["name"] == "naive loop"
    assert first["num_output_tokens"] > 0 and first["times"]["total"] > 0
    assert report["capacity"]["capacities"][2]["name"] == "paged"
    assert "measuring prefix sharing" in ran.err


def test_a_table_for_each_part(ablate: Any) -> None:
    ran = ablate("--requests", "2")
    assert ran.status == 0
    for words in ("naive loop", "paged", "never seen", "bf16"):
        assert words in ran.out


def test_one_request_is_no_mix(ablate: Any) -> None:
    ran = ablate("--requests", "1")
    assert ran.status == 2
    assert "--requests=1: must be a whole number of at least 2" in ran.err
