"""A token that was drawn natively is observed quickly, and what is said of it is what the definition says."""

import numpy as np
import pytest

from pellucid.execution import token_observation
from pellucid.execution.candidates import Candidates
from pellucid.execution.sampler import Sampler, SamplingRow
from pellucid.execution.sampling_order import sampling_stages
from pellucid.execution.token_observation import TokenObservation, observe_drawn, observe_token
from pellucid.sampling_params import SamplingParams

SIZES = (40, 5_000, 50_000)
PARAMS = [
    {"temperature": 0},
    {"temperature": 0, "top_k": 5, "top_p": 0.5},
    {},
    {"temperature": 0.6},
    {"top_k": 20},
    {"temperature": 0.7, "top_k": 40, "top_p": 0.9, "min_p": 0.02},
    {"temperature": 0.8, "top_p": 0.95},
    {"top_p": 0.5},
    {"temperature": 1.5, "min_p": 0.1},
    {"temperature": 0.9, "min_p": 0.05, "top_p": 0.8},
    {"temperature": 0.9, "top_k": 10**6},
    {"temperature": 0.9, "top_k": 30, "typical_p": 0.7},
]


def by_definition(logits: np.ndarray, row: SamplingRow, token_id: int) -> TokenObservation:
    passed = [("logits", Candidates.of(logits))]
    for stage in sampling_stages(row):
        passed.append((stage.name, stage.apply(passed[-1][1])))
    return observe_token(logits, passed, token_id)


def row_of(params: dict[str, float]) -> SamplingRow:
    return SamplingRow(SamplingParams(**params), [1, 2, 3], [4, 5], seed=7)


def assert_alike(found: TokenObservation, expected: TokenObservation) -> None:
    assert [(stage.name, stage.num_kept) for stage in found.funnel] == [
        (stage.name, stage.num_kept) for stage in expected.funnel
    ]
    assert np.allclose(
        [stage.kept_mass for stage in found.funnel],
        [stage.kept_mass for stage in expected.funnel],
        rtol=1e-9,
    )
    assert found.entropy_bits == pytest.approx(expected.entropy_bits, rel=1e-9)
    assert found.rest == pytest.approx(expected.rest, abs=1e-12)
    pairs = zip(
        (found.logprobs.chosen, *found.logprobs.top),
        (expected.logprobs.chosen, *expected.logprobs.top),
        strict=True,
    )
    for own, other in pairs:
        assert (own.token_id, own.rank) == (other.token_id, other.rank)
        assert own.logprob == pytest.approx(other.logprob, rel=1e-9, abs=1e-12)
        assert own.final_logprob == pytest.approx(other.final_logprob, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("params", PARAMS, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_the_quick_look_says_what_the_definition_says(size: int, params: dict[str, float]) -> None:
    rng = np.random.default_rng(size)
    row, num_quick = row_of(params), 0
    for spread in (0.5, 2.0, 6.0):
        logits = (rng.standard_normal(size) * spread).astype(np.float32)
        logits[rng.integers(0, size, 8)] = logits.max()  # equals at the top
        drawn = Sampler().sample(logits, row).token_id
        for token_id in (drawn, int(logits.argmin())):
            quick = observe_drawn(logits, row.params, sampling_stages(row), token_id)
            if quick is not None:
                num_quick += 1
                assert_alike(quick, by_definition(logits, row, token_id))
    # Only a nucleus that may reach beyond the likeliest tokens is left to the definition.
    assert num_quick == 6 or params.keys() & {"top_p", "min_p"}
    assert num_quick > 0 or size <= token_observation.NUM_LIKELIEST


def test_what_the_quick_look_does_not_know_is_left_to_the_definition() -> None:
    logits = np.linspace(-1, 1, 6_000).astype(np.float32)  # nearly all alike
    row = row_of({"top_p": 0.99})
    quick = observe_drawn(logits, row.params, sampling_stages(row), 3)
    assert quick is not None and quick.funnel[1].num_kept > token_observation.NUM_LIKELIEST
    assert_alike(quick, by_definition(logits, row, 3))
    row = row_of({"min_p": 0.05})
    assert observe_drawn(logits, row.params, sampling_stages(row), 3) is None
    sampled, observation = Sampler().observe(logits, row, 3)
    assert sampled.token_id == 3
    assert_alike(observation, by_definition(logits, row, 3))
    row = row_of({"repetition_penalty": 1.2})
    assert observe_drawn(logits, row.params, sampling_stages(row), 3) is None
    logits[5] = -np.inf
    row = row_of({})
    assert observe_drawn(logits, row.params, sampling_stages(row), 3) is None
    _, observation = Sampler().observe(logits, row, 3)
    assert observation.funnel[0].num_kept == 5_999
