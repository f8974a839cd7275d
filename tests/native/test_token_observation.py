"""The observation of a token that was drawn natively equals the definition in NumPy, on every level."""

from functools import partial

import numpy as np
import pytest

from pellucid.backends.base import RowQuestion
from pellucid.backends.native import RowSummarizer, ThreadPool, find_kernels, kernel_levels
from pellucid.backends.program_decoder import row_summary
from pellucid.execution.candidates import Candidates
from pellucid.execution.sampler import Sampler, SamplingRow
from pellucid.execution.sampling_order import sampling_stages
from pellucid.execution.token_observation import (
    Summarize,
    TokenObservation,
    observe_drawn,
    observe_token,
)
from pellucid.inputs.sampling_params import SamplingParams

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
    return SamplingRow(SamplingParams(**params), [1, 2, 3], [4, 5], seed=7)


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


def summarize_on(isa: str = "", num_threads: int = 1) -> Summarize:
    return partial(row_summary, RowSummarizer(find_kernels(isa), ThreadPool(num_threads)))


@pytest.mark.parametrize("isa", kernel_levels())
@pytest.mark.parametrize("params", PARAMS, ids=str)
def test_an_observation_of_a_drawn_token_equals_the_definition(
    params: dict[str, float], isa: str
) -> None:
    summarize = summarize_on(isa)
    for size in SIZES:
        rng = np.random.default_rng(size)
        row = row_of(params)
        for spread in (0.0, 0.5, 2.0, 6.0):
            logits = (rng.standard_normal(size) * spread).astype(np.float32)
            logits[rng.integers(0, size, 8)] = logits.max()  # equals at the top
            drawn = Sampler().sample(logits, row).token_id
            for token_id in (drawn, int(logits.argmin())):
                found = observe_drawn(logits, row.params, sampling_stages(row), token_id, summarize)
                assert found is not None
                assert_alike(found, by_definition(logits, row, token_id))


@pytest.mark.parametrize("vocab_size", [16_384, 16_385, 50_001])
@pytest.mark.parametrize("num_threads", [2, 3])
def test_threads_change_no_bit(num_threads: int, vocab_size: int) -> None:
    """Above 16,384 tokens the threads share a row in chunks of 8,192."""
    alone, together = summarize_on(), summarize_on(num_threads=num_threads)
    for spread in (0.0, 0.7, 4.0):
        logits = np.random.default_rng(vocab_size).standard_normal(vocab_size).astype(np.float32)
        logits *= spread
        logits[::999] = logits.max()  # equals in every chunk
        for token in (0, 8_191, 8_192, 15_984, vocab_size - 1):
            for truncation in ({}, {"top_p": 0.9}, {"top_k": 70, "min_p": 0.01}):
                question = RowQuestion(token, 10, 1.7, **truncation)
                found = alone(logits, question)
                assert together(logits, question) == found
                assert found is not None and found.rank == 1 + np.sum(
                    (logits > logits[token])
                    | ((logits == logits[token]) & (np.arange(vocab_size) < token))
                )


@pytest.mark.parametrize("isa", kernel_levels())
def test_all_levels_give_the_same_bits(isa: str) -> None:
    logits = (np.random.default_rng(3).standard_normal(5_003) * 3).astype(np.float32)
    question = RowQuestion(17, 10, 1.7, top_k=900, top_p=0.93, min_p=0.001)
    assert summarize_on(isa)(logits, question) == summarize_on("portable")(logits, question)


@pytest.mark.parametrize(
    "params",
    [
        {"repetition_penalty": 1.2},
        {"typical_p": 0.7},
        {"logit_bias": {3: 1.0}},
    ],
    ids=str,
)
def test_stages_that_no_summary_covers_are_left_to_the_definition(params: dict[str, float]) -> None:
    logits = np.linspace(-1, 1, 600).astype(np.float32)
    row = row_of(params)
    assert observe_drawn(logits, row.params, sampling_stages(row), 3, summarize_on()) is None
    sampled, observation = Sampler().observe(logits, row, 3, summarize_on())
    assert sampled.token_id == 3
    assert observation == by_definition(logits, row, 3)._replace(seconds=observation.seconds)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_finite_are_left_to_the_definition(bad: float) -> None:
    logits = np.linspace(-1, 1, 600).astype(np.float32)
    logits[5] = bad
    assert summarize_on()(logits, RowQuestion(3, 10, 1.0)) is None
    if bad == -np.inf:
        _, observation = Sampler().observe(logits, row_of({}), 3, summarize_on())
        assert observation.funnel[0].num_kept == 599


def test_a_question_that_does_not_fit_the_row_is_refused() -> None:
    logits = np.zeros(8, np.float32)
    for question, named in (
        (RowQuestion(8, 1, 1.0), "token=8"),
        (RowQuestion(0, 9, 1.0), "num_likeliest=9"),
        (RowQuestion(0, 1, 0.0), "sharpness=0"),
    ):
        with pytest.raises(ValueError, match=named):
            summarize_on()(logits, question)
