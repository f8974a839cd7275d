"""lm-eval's local-completions unchanged: log-likelihoods equal `LLM`'s to the last bit, by its remote tokenizer."""

from typing import Any

import pytest
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI

from support.bundled import bundled_model
from support.http_server import RunningServer
from support.offline import offline

PAIRS = [
    ("The capital of France is", " Paris."),
    ("The capital of France is", " made of cheese."),
    ("What is 12 + 7?", " 19"),
    ("Once upon a time", ", there was a small red key 🦊 in the market."),
    ("", "Hello"),
]


@pytest.fixture(scope="module")
def model(server: RunningServer) -> Any:
    url = f"{server.url}/v1/completions"
    return LocalCompletionsAPI(base_url=url, model="tested", max_length=2048, batch_size=3)


def test_loglikelihoods_are_the_engines_own(model: Any) -> None:
    assert model.tokenizer_backend == "remote"
    requests = [
        Instance("loglikelihood", {}, pair, index, ("task", index, 1))
        for index, pair in enumerate(PAIRS)
    ]
    found = model.loglikelihood(requests, disable_tqdm=True)
    for (context, continuation), (total, is_greedy) in zip(PAIRS, found, strict=True):
        context_ids, ids = model._encode_pair(context, continuation) if context else (None, None)
        if not context:  # lm-eval puts the end-of-text token before it
            tokenizer = bundled_model().tokenizer
            context_ids = [tokenizer.eos_token_id]
            ids = tokenizer.encode(continuation, add_special_tokens=False)
        prompt = [*context_ids, *ids]
        expected = offline(prompt, temperature=0, max_tokens=1, prompt_logprobs=1).prompt_logprobs
        assert expected is not None
        behind = list(zip(prompt, expected, strict=True))[len(context_ids) :]
        assert total == sum(at[token_id].logprob for token_id, at in behind)  # type: ignore[index]
        assert is_greedy == all(at[token_id].rank == 1 for token_id, at in behind)  # type: ignore[index]


def test_greedy_generation_until_a_stop_string(model: Any) -> None:
    arguments = ("The capital of France is", {"until": ["."], "max_gen_toks": 8})
    request = Instance("generate_until", {}, arguments, 0, ("task", 0, 1))
    (found,) = model.generate_until([request], disable_tqdm=True)
    expected = offline("The capital of France is", temperature=0, max_tokens=8, stop=["."])
    assert found == expected.outputs[0].text
