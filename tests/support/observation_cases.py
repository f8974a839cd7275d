"""Observations of tokens by summaries of their rows, against the definition in NumPy."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pytest

from pellucid.backends.base import RowQuestion, RowSummary
from pellucid.execution.candidates import Candidates
from pellucid.execution.sampler import Sampler, SamplingRow
from pellucid.execution.sampling_order import sampling_stages
from pellucid.execution.token_observation import (
    TokenObservation,
    observe_drawn,
    observe_token,
    question_about,
)
from pellucid.inputs.sampling_params import SamplingParams

Summarize: TypeAlias = Callable[[np.ndarray, RowQuestion], RowSummary | None]

SIZES = (9, 40, 5_000)
TOLERANCE = 1e-6  # weights are float32
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
    {"top_k": 3, "min_p": 1.0},
    {"temperature": 1e60, "top_p": 0.5},
]


def by_definition(logits: np.ndarray, row: SamplingRow, token_id: int) -> TokenObservation:
    passed = [("logits", Candidates.of(logits))]
    for stage in sampling_stages(row):
        passed.append((stage.name, stage.apply(passed[-1][1])))
    return observe_token(logits, passed, token_id)


def row_of(params: dict[str, float]) -> SamplingRow:
    return SamplingRow(SamplingParams(**params), [1, 2, 3], [4, 5], seed=7, stream=0)


def assert_alike(found: TokenObservation, expected: TokenObservation) -> None:
    assert [(stage.name, stage.num_kept) for stage in found.funnel] == [
        (stage.name, stage.num_kept) for stage in expected.funnel
    ]
    assert np.allclose(
        [stage.kept_mass for stage in found.funnel],
        [stage.kept_mass for stage in expected.funnel],
        rtol=TOLERANCE,
    )
    assert found.entropy_bits == pytest.approx(expected.entropy_bits, rel=TOLERANCE)
    assert found.rest == pytest.approx(expected.rest, abs=TOLERANCE)
    pairs = zip(
        (found.logprobs.chosen, *found.logprobs.top),
        (expected.logprobs.chosen, *expected.logprobs.top),
        strict=True,
    )
    for own, other in pairs:
        assert (own.token_id, own.rank) == (other.token_id, other.rank)
        assert own.logprob == pytest.approx(other.logprob, rel=TOLERANCE, abs=TOLERANCE)
        assert own.final_logprob == pytest.approx(other.final_logprob, rel=TOLERANCE, abs=TOLERANCE)


def observed(
    logits: np.ndarray, row: SamplingRow, token_id: int, summarize: Summarize
) -> TokenObservation:
    stages = list(sampling_stages(row))
    question = question_about(row.params, stages, token_id, len(logits))
    assert question is not None
    summary = summarize(logits, question)
    assert summary is not None
    return observe_drawn(summary, row.params, stages, token_id)


def check_observations(summarize: Summarize, params: dict[str, float]) -> None:
    """Observations of drawn tokens, and of the least likely ones, equal the definition."""
    for size in SIZES:
        rng = np.random.default_rng(size)
        row = row_of(params)
        for spread in (0.0, 0.5, 2.0, 6.0):
            logits = (rng.standard_normal(size) * spread).astype(np.float32)
            logits[rng.integers(0, size, 8)] = logits.max()  # equals at the top
            drawn = Sampler().sample(logits, row).token_id
            for token_id in (drawn, int(logits.argmin())):
                found = observed(logits, row, token_id, summarize)
                assert_alike(found, by_definition(logits, row, token_id))
