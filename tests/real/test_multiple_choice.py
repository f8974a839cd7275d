"""The score of a small multiple-choice set: `LLM`, the server and transformers agree."""

from collections.abc import Sequence

import numpy as np

from pellucid.inputs.sampling_params import SamplingParams
from support.http_server import running_server
from support.real_models import (
    EXACT,
    multiple_choice,
    real_engine,
    real_tokenizer,
    run_together,
    their_log_probs,
)

QUESTIONS = multiple_choice()


def prompts() -> list[tuple[int, list[int]]]:
    """For each question its answers in order: the number of tokens that all share, and all tokens."""
    encode = real_tokenizer("smollm2").encode
    return [
        (len(encode(item["question"])), encode(f"{item['question']} {choice}"))
        for item in QUESTIONS
        for choice in item["choices"]
    ]


def chosen(scores: Sequence[float]) -> list[int]:
    return np.array(scores).reshape(len(QUESTIONS), -1).argmax(axis=-1).tolist()


def test_scores_agree() -> None:
    texts = prompts()
    ours, theirs = [], []
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    engine = real_engine("smollm2", EXACT, kv_cache_dtype="f32")
    outputs = run_together(engine, [(token_ids, params) for _, token_ids in texts])
    expected = their_log_probs("smollm2", [token_ids for _, token_ids in texts])
    for (start, token_ids), output, found in zip(texts, outputs, expected, strict=True):
        assert output.prompt_logprobs is not None
        at = list(zip(token_ids, output.prompt_logprobs, strict=True))[start:]
        ours.append(sum(entry[token_id].logprob for token_id, entry in at))  # type: ignore[index]
        theirs.append(sum(found[np.arange(start - 1, len(token_ids) - 1), token_ids[start:]]))
    assert np.allclose(ours, theirs, atol=2e-3)
    assert chosen(ours) == chosen(theirs)
    right = sum(a == item["answer"] for a, item in zip(chosen(ours), QUESTIONS, strict=True))
    assert right >= 24

    engine = real_engine("smollm2", EXACT, kv_cache_dtype="f32")
    with running_server(engine) as server:
        body = {
            "model": "tested",
            "prompt": [token_ids for _, token_ids in texts],
            "max_tokens": 1,
            "temperature": 0,
            "echo": True,
            "logprobs": 1,
        }
        reply = server.post("/v1/completions", body).json
    served = [
        sum(choice["logprobs"]["token_logprobs"][start : len(token_ids)])
        for (start, token_ids), choice in zip(texts, reply["choices"], strict=True)
    ]
    assert served == ours
