"""Same request, same answer, on the bundled model: prompts of all kinds, `==` on tokens and log-probabilities."""

import pytest
from threadpoolctl import threadpool_limits

from pellucid.engine import LLMEngine
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.outputs import RequestOutput
from support.bundled import bundled_engine, prompts_of_all_kinds

PROMPTS = prompts_of_all_kinds(15)


def params_of(index: int) -> SamplingParams:
    """Greedy for every second prompt, sampled in different ways for the others."""
    if index % 2 == 0:
        return SamplingParams(temperature=0.0, max_tokens=20, logprobs=3)
    return SamplingParams(
        temperature=0.9,
        top_p=0.95 if index % 3 else 1.0,
        top_k=40 if index % 5 else 0,
        repetition_penalty=1.1,
        seed=index,
        max_tokens=20,
        logprobs=3,
    )


def small_engine(**knobs: object) -> LLMEngine:
    """With room for all prompts at once, and few blocks to check after each step."""
    return bundled_engine(max_model_len=256, num_kv_blocks=200, **knobs)


def one_by_one(engine: LLMEngine) -> list[RequestOutput]:
    outputs = []
    for index, prompt in enumerate(PROMPTS):
        outputs.append(engine.add_request(prompt, params_of(index)))
        run(engine)
    return outputs


def run(engine: LLMEngine) -> None:
    while engine.has_unfinished_requests:
        engine.step()
        engine.scheduler.kv_cache_manager.check_integrity()


@pytest.fixture(scope="module")
def cached() -> list[RequestOutput]:
    return one_by_one(small_engine(enable_prefix_caching=False))


def assert_same(outputs: list[RequestOutput], reference: list[RequestOutput]) -> None:
    for output, wanted in zip(outputs, reference, strict=True):
        assert output.outputs == wanted.outputs


def test_the_reference_is_worth_comparing_with(cached: list[RequestOutput]) -> None:
    token_ids = [tuple(output.outputs[0].token_ids) for output in cached]
    assert len(set(token_ids)) > 9
    assert sum(map(len, token_ids)) > 150


def test_naive_is_cached(cached: list[RequestOutput]) -> None:
    naive = one_by_one(bundled_engine(use_kv_cache=False))
    assert_same(naive, cached)
    for output in naive:
        prompt, made = len(output.prompt_token_ids), len(output.outputs[0].token_ids)
        assert output.metrics.num_processed_tokens == prompt * made + made * (made - 1) // 2
        assert output.metrics.kv_cache_bytes == 0


@pytest.mark.parametrize("chunk", [1, 7])
def test_chunked_is_cached(cached: list[RequestOutput], chunk: int) -> None:
    assert_same(one_by_one(small_engine(max_num_batched_tokens=chunk)), cached)


@pytest.mark.parametrize("block_size", [16, 64, 128])
def test_all_together_is_one_by_one(cached: list[RequestOutput], block_size: int) -> None:
    engine = small_engine(block_size=block_size, max_num_seqs=25, max_num_batched_tokens=100)
    outputs = [engine.add_request(prompt, params_of(i)) for i, prompt in enumerate(PROMPTS)]
    with threadpool_limits(2, user_api="blas"):
        run(engine)
    assert_same(outputs, cached)


def test_a_prefix_hit_is_no_hit(cached: list[RequestOutput]) -> None:
    engine = small_engine(block_size=16)
    one_by_one(engine)
    again = one_by_one(engine)
    assert sum(output.num_cached_tokens for output in again) > 50
    assert_same(again, cached)


def test_preempted_is_undisturbed(cached: list[RequestOutput]) -> None:
    engine = bundled_engine(block_size=16, max_model_len=256, num_kv_blocks=20)
    outputs = [engine.add_request(prompt, params_of(i)) for i, prompt in enumerate(PROMPTS)]
    run(engine)
    assert sum(output.metrics.num_preemptions for output in outputs) > 0
    assert_same(outputs, cached)


def test_the_cache_holds_n_plus_m_minus_1_positions() -> None:
    engine = bundled_engine(block_size=16)
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    output = engine.add_request(PROMPTS[0], params)
    num_prompt_tokens = len(output.prompt_token_ids)
    for num_made in range(1, 40):
        engine.step()
        (request,) = engine.scheduler.running
        assert request.num_output_tokens == num_made
        assert request.num_computed_tokens == num_prompt_tokens + num_made - 1
