"""The observation of a token that was drawn natively equals the definition in NumPy, on every level."""

import time
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pellucid.backends.base import RowQuestion
from pellucid.backends.cpu.program_decoder import row_summary
from pellucid.backends.native import RowSummarizer, ThreadPool, find_kernels, kernel_levels
from pellucid.execution.sampler import Sampler
from pellucid.execution.sampling_order import sampling_stages
from pellucid.execution.token_observation import DrawnToken, observe_drawn_tokens, question_about
from support.observation_cases import (
    PARAMS,
    Summarize,
    by_definition,
    check_observations,
    observed,
    row_of,
)

OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}


def summarize_on(isa: str = "", num_threads: int = 1) -> Summarize:
    return partial(row_summary, RowSummarizer(find_kernels(isa), ThreadPool(num_threads)))


@pytest.mark.parametrize("isa", kernel_levels())
@pytest.mark.parametrize("params", PARAMS, ids=str)
def test_an_observation_of_a_drawn_token_equals_the_definition(
    params: dict[str, float], isa: str
) -> None:
    check_observations(summarize_on(isa), params)


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
                question = RowQuestion(token, 10, 1.7, **OFF | truncation)
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
    "params", [{"repetition_penalty": 1.2}, {"typical_p": 0.7}, {"logit_bias": {3: 1.0}}], ids=str
)
def test_stages_that_no_summary_covers_are_left_to_the_definition(params: dict[str, float]) -> None:
    logits = np.linspace(-1, 1, 600).astype(np.float32)
    row = row_of(params)
    stages = sampling_stages(row)
    assert question_about(row.params, stages, 3, len(logits)) is None
    sampled, observation = Sampler().observe(logits, row, 3)
    assert sampled.token_id == 3
    assert observation == by_definition(logits, row, 3)._replace(seconds=observation.seconds)


def test_tokens_of_a_step_share_the_time_of_their_observation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without those that the definition alone knows, by their parameters or their logits."""
    rows = np.random.default_rng(0).standard_normal((4, 600)).astype(np.float32)
    rows[1, 5] = np.nan
    params = ({}, {}, {"typical_p": 0.7}, {"temperature": 0.6, "top_k": 20})
    drawn = [DrawnToken(("r", row), row_of(own), 3) for row, own in enumerate(params)]
    decoder: Any = SimpleNamespace(
        vocab_size=600,
        summarize_rows=lambda rows, asked: [summarize_on()(rows[row], it) for row, it in asked],
    )
    for own, seconds in ((drawn, 3.0), (drawn[:1], 6.0), (drawn[1:2], None)):
        monkeypatch.setattr(time, "perf_counter", lambda: 16.0)
        assert observe_drawn_tokens(decoder, rows, own, 10.0) == {
            each.key: observed(rows[each.key[1]], each.row, 3, summarize_on())._replace(
                seconds=seconds
            )
            for each in own
            if each.key[1] in (0, 3)
        }


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_finite_are_left_to_the_definition(bad: float) -> None:
    logits = np.linspace(-1, 1, 600).astype(np.float32)
    logits[5] = bad
    assert summarize_on()(logits, RowQuestion(3, 10, 1.0, **OFF)) is None
    if bad == -np.inf:
        _, observation = Sampler().observe(logits, row_of({}), 3)
        assert observation.funnel[0].num_kept == 599


def test_a_question_that_does_not_fit_the_row_is_refused() -> None:
    logits = np.zeros(8, np.float32)
    for question, named in (
        (RowQuestion(8, 1, 1.0, **OFF), "token=8"),
        (RowQuestion(0, 9, 1.0, **OFF), "num_likeliest=9"),
        (RowQuestion(0, 1, 0.0, **OFF), "sharpness=0"),
    ):
        with pytest.raises(ValueError, match=named):
            summarize_on()(logits, question)
