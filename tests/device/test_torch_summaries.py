"""Summaries of rows on a device: the definition's decisions, alone and among other rows."""

from typing import Any

import numpy as np
import pytest
import torch

from pellucid.backends.base import RowQuestion, RowSummary
from pellucid.backends.cpu.program_decoder import row_summary
from pellucid.backends.native import RowSummarizer, ThreadPool, find_kernels
from pellucid.backends.torch.memory import to_device
from pellucid.backends.torch.summaries import SUMMARIES_TOGETHER, summarize_rows
from support.draw_cases import random_logits
from support.host_ops import DEVICE
from support.observation_cases import PARAMS, check_observations

PLACE = torch.device(DEVICE)


def summarize(logits: np.ndarray, question: RowQuestion) -> RowSummary | None:
    return summarize_rows(to_device(logits[None], PLACE), [(0, question)])[0]


@pytest.mark.parametrize("params", PARAMS, ids=str)
def test_an_observation_of_a_drawn_token_equals_the_definition(params: dict[str, float]) -> None:
    check_observations(summarize, params)


def decisions(summary: RowSummary | None) -> Any:
    """What is not a sum of weights."""
    if summary is None:
        return None
    kept = (
        getattr(summary, name)
        for name in ("everything", "after_top_k", "after_top_p", "after_min_p")
    )
    own = summary.peak, summary.logit, summary.rank, summary.is_kept, summary.likeliest
    return (*own, *(each.num for each in kept))


@pytest.mark.parametrize("vocab_size", [9, 500])
def test_decisions_are_those_of_the_native_summary_in_rows_of_all_kinds(vocab_size: int) -> None:
    rng = np.random.default_rng(vocab_size)
    native = RowSummarizer(find_kernels(""), ThreadPool(1))
    num_rows = 5000
    logits = np.stack([random_logits(rng, vocab_size) for _ in range(num_rows)])
    questions = [
        RowQuestion(
            int(rng.integers(vocab_size)),
            int(rng.integers(10)),
            float(np.float32(rng.choice([0.5, 1.4, 9.0]))),
            int(rng.choice([0, 1, 7, 10**6])),
            float(rng.choice([1.0, 0.9, 0.3, 1e-9])),
            float(np.float32(rng.choice([0.0, 0.1, 1.0]))),
        )
        for _ in range(num_rows)
    ]
    there = to_device(logits, PLACE)
    found = summarize_rows(there, list(enumerate(questions)))
    for row, question, own in zip(logits, questions, found, strict=True):
        wanted = row_summary(native, row, question)
        assert decisions(own) == decisions(wanted)
        if own is not None and wanted is not None:
            assert own.total == pytest.approx(wanted.total, rel=1e-6)
            assert own.after_min_p.weight == pytest.approx(wanted.after_min_p.weight, rel=1e-6)
    for start in range(SUMMARIES_TOGETHER):  # the same bits alone
        assert summarize_rows(there, [(start, questions[start])]) == [found[start]]
