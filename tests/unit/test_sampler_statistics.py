"""Draws of the sampler, compared with the exact distribution.

A sampler draws a few of them; the others are drawn at once from the same distribution and noise. 6,000
draws each tell a temperature of 1.15 from one of 1.0; what the distributions themselves are is
compared to 12 digits in test_sampler.py.
"""

import numpy as np
import pytest
import scipy  # `stats` takes a second, and comes when it is used

from pellucid.execution.randomness import exponential_noise
from pellucid.execution.sampler import Sampler, SamplingRow
from pellucid.inputs.sampling_params import SamplingParams
from support.sampling_reference import final_distribution

NUM_SEEDS, NUM_POSITIONS = 150, 40
LOGITS = np.array([0.3, 1.9, -0.8, 1.2, 0.9, -1.4, 0.0, 1.5, 0.6, -0.2, 1.1, -2.0])
VOCAB_SIZE = len(LOGITS)

# Prompts repeat token 3, so that the position moves and the set of tokens seen does not.
OUTPUT = [1, 5, 5, 7, 1, 5]

GIVEN = {
    "defaults": {},
    "temperature": {"temperature": 1.7},
    "truncations": {"top_k": 9, "top_p": 0.93, "min_p": 0.2, "typical_p": 0.7},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": -0.3},
    "bias": {"logit_bias": {2: 1.5, 6: -0.7, 11: -100}},
    "masks": {"allowed_token_ids": [0, 1, 2, 3, 4, 5], "bad_words": ["word"], "min_tokens": 7},
}


def make_row(params: SamplingParams, seed: int, num_prompt_tokens: int) -> SamplingRow:
    return SamplingRow(
        params=params,
        prompt_token_ids=(3,) * num_prompt_tokens,
        output_token_ids=OUTPUT,
        seed=seed,
        stream=0,
        stop_token_ids=frozenset({4, 8}),
        bad_words_token_ids=((0,), (1, 5, 2), (7, 9)) if params.bad_words else (),
    )


def draw(params: SamplingParams, seeds: range) -> np.ndarray:
    """Counts by token id over all seeds and positions."""
    sampler = Sampler()
    final = sampler.distribution(LOGITS, make_row(params, 0, 1))
    positions = np.arange(1, NUM_POSITIONS + 1)[:, None] + len(OUTPUT)
    noise = np.array([exponential_noise(seed, 0, positions, final.token_ids) for seed in seeds])
    with np.errstate(divide="ignore"):
        drawn = (noise / final.odds.weights).argmin(-1)
    token_ids = final.token_ids[drawn]  # [seeds, positions]
    for seed in seeds[:2]:
        for num_prompt_tokens in range(1, 6):
            own = sampler.sample(LOGITS, make_row(params, seed, num_prompt_tokens)).token_id
            assert own == token_ids[seed - seeds[0], num_prompt_tokens - 1]
    return np.bincount(token_ids.ravel(), minlength=VOCAB_SIZE)


def p_value(counts: np.ndarray, probabilities: dict[int, float]) -> float:
    """Chi-square of counts against probabilities, cells that expect fewer than 5 taken together."""
    excluded = [token_id for token_id in range(VOCAB_SIZE) if token_id not in probabilities]
    if counts[excluded].any():
        return 0.0
    expected = counts.sum() * np.array(list(probabilities.values()))
    observed = counts[list(probabilities)]
    rare = expected < 5
    if rare.any():
        expected = np.append(expected[~rare], expected[rare].sum())
        observed = np.append(observed[~rare], observed[rare].sum())
    return float(scipy.stats.chisquare(observed, expected).pvalue)


@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
def test_draws_follow_the_exact_distribution(given: dict) -> None:
    params = SamplingParams(**given)
    exact = final_distribution(LOGITS.tolist(), make_row(params, 0, 1))
    if given:
        assert exact != final_distribution(LOGITS.tolist(), make_row(SamplingParams(), 0, 1))
    assert p_value(draw(params, range(NUM_SEEDS)), exact) > 1e-4


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({}, {"temperature": 1.15}),
        ({"top_k": 4}, {"top_k": 5}),
        ({"frequency_penalty": -0.5}, {"presence_penalty": -0.5}),
    ],
)
def test_the_test_detects_a_slightly_different_distribution(given: dict, wrong: dict) -> None:
    exact = final_distribution(LOGITS.tolist(), make_row(SamplingParams(**given), 0, 1))
    assert p_value(draw(SamplingParams(**wrong), range(NUM_SEEDS)), exact) < 1e-6


def test_streams_of_a_seed_are_independent() -> None:
    sampler, params = Sampler(), SamplingParams(allowed_token_ids=[0, 1, 2])
    pairs = np.zeros((3, 3))
    for seed in range(1_000):
        first, second = (
            sampler.sample(LOGITS, SamplingRow(params, (3,), (), seed, stream)).token_id
            for stream in (0, 1)
        )
        pairs[first, second] += 1
    assert scipy.stats.chi2_contingency(pairs).pvalue > 1e-3
