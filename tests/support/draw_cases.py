"""Random requests and rows of logits, and the token that the sampler draws for them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pellucid.execution.sampler import Sampler, SamplingRow
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.scheduling.request import Request


def make_request(rng: np.random.Generator, vocab_size: int, params: SamplingParams) -> Request:
    # A tokenizer may have more tokens than the model.
    words = [rng.integers(vocab_size + 1, size=rng.integers(1, 4)) for _ in range(3)]
    request = Request(
        request_id="r",
        prompt_token_ids=tuple(rng.integers(vocab_size, size=rng.integers(1, 40)).tolist()),
        params=params,
        seed=int(rng.integers(2**63)) * 2 + 1,
        arrival_time=0.0,
        max_tokens=1000,
        eos_token_ids=frozenset(rng.integers(vocab_size + 1, size=2).tolist()),
        bad_words_token_ids=tuple(tuple(word.tolist()) for word in words)
        if params.bad_words
        else (),
        index=int(rng.integers(64)),
    )
    request.output_token_ids = rng.integers(vocab_size, size=rng.integers(20)).tolist()
    return request


def defined(logits: np.ndarray, request: Request, drafts: Sequence[int] = ()) -> int:
    row = SamplingRow(
        params=request.params,
        prompt_token_ids=request.prompt_token_ids,
        output_token_ids=[*request.output_token_ids, *drafts],
        seed=request.seed,
        stream=request.index,
        stop_token_ids=request.end_rule.stop_token_ids,
        bad_words_token_ids=request.bad_words_token_ids,
    )
    try:
        return Sampler().sample(logits, row).token_id
    except ValueError:
        return -1


def random_params(rng: np.random.Generator, vocab_size: int) -> SamplingParams:
    """Every parameter, each of them at its default more often than not."""

    def sometimes(*values: Any) -> Any:
        return values[rng.integers(len(values))] if rng.random() < 0.35 else None

    token_ids = rng.integers(vocab_size, size=4).tolist()
    chosen = {
        "temperature": sometimes(0, 0.2, 0.7, 1.5, 1e-300, 1e30),
        "top_k": sometimes(1, 3, 50, vocab_size),
        "top_p": sometimes(1e-9, 0.1, 0.5, 0.95, 0.999999),
        "min_p": sometimes(0.001, 0.1, 1.0),
        "typical_p": sometimes(0.1, 0.6, 0.95),
        "repetition_penalty": sometimes(0.5, 1.3, 1e-6, 1e6),
        "presence_penalty": sometimes(-1.1, 0.7),
        "frequency_penalty": sometimes(-0.6, 1.9),
        "logit_bias": sometimes({token_ids[0]: -100, token_ids[1]: 2.7}),
        "allowed_token_ids": sometimes(
            token_ids[:1], token_ids, np.unique(rng.integers(vocab_size, size=900)).tolist()
        ),
        "bad_words": sometimes(["word"]),
        "min_tokens": sometimes(10),
    }
    return SamplingParams(
        max_tokens=None, **{name: value for name, value in chosen.items() if value is not None}
    )


def random_logits(rng: np.random.Generator, vocab_size: int) -> np.ndarray:
    """Peaked or flat, with or without equals, tokens that the model excludes, and rarely a NaN."""
    logits = rng.normal(0, rng.choice([0.01, 1, 5, 40, 1e33], p=[0.24] * 4 + [0.04]), vocab_size)
    if rng.random() < 0.3:
        logits = np.round(logits)
    if rng.random() < 0.2:
        logits[rng.random(vocab_size) < 0.5] = -np.inf
    if rng.random() < 0.05:
        logits[rng.integers(vocab_size)] = rng.choice([np.nan, np.inf])
    return logits.astype(np.float32)
