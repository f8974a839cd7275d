"""An answer goes on in another engine with `==` tokens, texts and log-probabilities, wherever it was cut."""

import pytest

from pellucid.inputs.sampling_params import SamplingParams
from pellucid.inputs.structured_outputs import StructuredOutputsParams
from support.bundled import bundled_engine
from support.resuming import answers_so_far, check_every_cut, resume

STORY = "Once upon a time, Mira went to the market. Mira had a small red key."
DRAWN = {"temperature": 0.9, "seed": 5, "max_tokens": 10}
PARAMETERS = {
    "greedy": {"temperature": 0.0, "max_tokens": 10},
    "a seed that the engine draws": {"max_tokens": 12},
    "truncation": {**DRAWN, "top_k": 40, "top_p": 0.9, "min_p": 0.01, "typical_p": 0.95},
    "penalties of the output": {**DRAWN, "presence_penalty": 1.5, "frequency_penalty": 1.0},
    "repetition penalty": {**DRAWN, "repetition_penalty": 1.4},
    "bias and bad words": {**DRAWN, "logit_bias": {5: 3.0}, "bad_words": ["the", "key"]},
    "allowed tokens": {**DRAWN, "allowed_token_ids": list(range(40, 90))},
    "min_tokens": {**DRAWN, "min_tokens": 9, "stop": [" ", "e"], "ignore_eos": True},
    "a stop string over the cut": {"temperature": 0.0, "max_tokens": 24, "stop": ["the market", "the key "]},
    "a stop string that is shown": {
        "temperature": 0.0,
        "max_tokens": 24,
        "stop": ["red", "key", "the"],
        "include_stop_str_in_output": True,
    },
    "logprobs": {**DRAWN, "logprobs": 3},
    "logprobs of the prompt": {**DRAWN, "prompt_logprobs": 2, "logprobs": 0, "n": 2},
    "several completions": {**DRAWN, "n": 3, "logprobs": 1, "stop": ["."]},
    "the best of several": {**DRAWN, "n": 2, "best_of": 4, "stop": ["."]},
    "special tokens": {**DRAWN, "ignore_eos": True, "skip_special_tokens": False},
    "a regular expression": {
        **DRAWN,
        "structured_outputs": StructuredOutputsParams(regex=r"[a-z]{3}-[0-9]{4}(, [a-z]+)?"),
    },
    "json": {
        **DRAWN,
        "max_tokens": 24,
        "structured_outputs": StructuredOutputsParams(
            json={
                "type": "object",
                "properties": {"name": {"enum": ["Mira", "Tom"]}, "age": {"type": "integer"}},
                "required": ["name", "age"],
                "additionalProperties": False,
            }
        ),
    },
    "a choice": {**DRAWN, "structured_outputs": StructuredOutputsParams(choice=["yes please", "no"])},
}  # fmt: skip


@pytest.mark.parametrize("name", PARAMETERS)
def test_another_engine_goes_on(name: str) -> None:
    params = SamplingParams(**PARAMETERS[name])
    others = bundled_engine(max_num_batched_tokens=16, block_size=32, speculation="ngram")
    whole = check_every_cut(bundled_engine(block_size=32), others, STORY, params)
    assert all(len(each.token_ids) > 2 for each in whole.outputs)


def test_a_character_of_several_tokens_is_cut() -> None:
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    whole = check_every_cut(bundled_engine(), bundled_engine(), "🦊 café 🦊 café 🦊 caf", params)
    assert whole.outputs[0].text


@pytest.mark.parametrize(
    "knobs", [{"use_kv_cache": False}, {"num_kv_blocks": 10, "block_size": 16, "max_model_len": 80}]
)
def test_without_the_cache_and_with_few_blocks(knobs: dict[str, int]) -> None:
    params = SamplingParams(**DRAWN, logprobs=1, n=2, prompt_logprobs=0)
    check_every_cut(bundled_engine(), bundled_engine(**knobs), STORY, params)


def test_what_cannot_be_resumed_is_refused() -> None:
    engine = bundled_engine()
    params = SamplingParams(**DRAWN, logprobs=0)
    so_far, _ = answers_so_far(bundled_engine(), STORY, params)[1]

    def refused(match: str, prompt: str = STORY, **fields: object) -> None:
        with pytest.raises(ValueError, match=match):
            resume(engine, prompt, SamplingParams(**{**DRAWN, "logprobs": 0, **fields}), so_far)
        assert not engine.has_unfinished_requests and not engine.unfinished_request_ids

    refused("prompt has other tokens", "Once upon")
    refused("seed=6: the answers have seed 5", seed=6)
    refused("has 1 completions, and the parameters ask for 2", n=2)
    refused("completion 0 ends with token 1 of 1", max_tokens=1)
    refused("prompt_logprobs: lacks", prompt_logprobs=0)
    so_far.outputs[0].logprobs = []
    refused("completion 0 lacks log-probabilities")
    so_far.outputs[0].token_ids = [10**6]
    refused("token id 1000000 is not in")
    so_far.outputs[0].finish_reason = "length"
    refused("have ended")
