"""Summaries of rows of logits on a device: what observers of tokens ask, in one copy for all rows of a step."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pellucid.backends.base import KeptTokens, LikelyToken, RowQuestion, RowSummary
from pellucid.backends.drawing import sharpness
from pellucid.backends.torch.arithmetic import ordered_sum
from pellucid.backends.torch.memory import to_device
from pellucid.backends.torch.odds import TorchOdds
from pellucid.backends.torch.race import PLAIN_DRAWS, DrawKernels, FindWeights

SUMMARIES_TOGETHER = 8  # rows


def summarize_rows(
    logits: Tensor,
    questions: Sequence[tuple[int, RowQuestion]],
    kernels: DrawKernels = PLAIN_DRAWS,
) -> list[RowSummary | None]:
    """As `CompiledDecoder.summarize_rows`. Sums are f64, in an order of their own.

    Args:
        logits: [R, V] f32, on a device that has f64.
    """
    found: list[RowSummary | None] = []
    for start in range(0, len(questions), SUMMARIES_TOGETHER):
        some = questions[start : start + SUMMARIES_TOGETHER]
        found += _summarize_some(logits, some, kernels.weights)
    return found


def _summarize_some(
    logits: Tensor, questions: Sequence[tuple[int, RowQuestion]], find_weights: FindWeights
) -> list[RowSummary | None]:
    device, vocab_size = logits.device, logits.shape[1]

    def column(name: str, dtype: Any) -> Tensor:
        numbers = [[getattr(question, name)] for _, question in questions]
        return to_device(np.array(numbers, dtype), device)

    own = logits[to_device(np.array([row for row, _ in questions], np.int64), device)]
    is_finite = torch.isfinite(own).all(dim=1, keepdim=True)
    own = torch.where(is_finite, own, torch.zeros_like(own))
    odds = TorchOdds(own, column("sharpness", np.float32), find_weights)
    model = TorchOdds(own, torch.full_like(odds.sharpness, sharpness(1.0)), find_weights)

    everything = odds.is_candidate
    after_top_k = odds.top_k(everything, column("top_k", np.int64).clamp(max=vocab_size))
    after_top_p = odds.share(after_top_k, odds.order, column("top_p", np.float64))
    after_min_p = after_top_p & (odds.weights >= column("min_p", np.float32))

    token_ids = column("token", np.int64)
    logit = own.gather(1, token_ids)
    places = torch.arange(vocab_size, device=device)
    is_likelier = (own > logit) | ((own == logit) & (places < token_ids))
    weights = model.weights.double()
    numbers = [
        is_finite,
        own.amax(dim=1, keepdim=True),
        ordered_sum(weights),
        ordered_sum(weights * odds.distances.double()),
        logit,
        is_likelier.sum(dim=1, keepdim=True) + 1,
        after_min_p.gather(1, token_ids),
    ]
    for kept in (everything, after_top_k, after_top_p, after_min_p):
        numbers.append(kept.sum(dim=1, keepdim=True))
        numbers.append(ordered_sum(odds.weights.double().masked_fill(~kept, 0)))
    count = max(question.num_likeliest for _, question in questions)
    likeliest = odds.order[:, :count]
    of_likeliest = (likeliest, own.gather(1, likeliest), after_min_p.gather(1, likeliest))
    # Whole numbers of this size are exact in f64.
    table = torch.cat([each.double() for each in (*numbers, *of_likeliest)], dim=1)
    return [
        _summary(row, len(numbers), count, question.num_likeliest)
        for row, (_, question) in zip(table.cpu().tolist(), questions, strict=True)
    ]


def _summary(
    numbers: list[float], num_numbers: int, count: int, num_likeliest: int
) -> RowSummary | None:
    """From a row of the table; `count` tokens are in it, of which `num_likeliest` are asked for."""
    own, tokens = numbers[:num_numbers], numbers[num_numbers:]
    is_finite, peak, total, weighted, logit, rank, is_kept, *kept = own
    if not is_finite:
        return None
    columns = (tokens[start : start + num_likeliest] for start in (0, count, 2 * count))
    everything, after_top_k, after_top_p, after_min_p = (
        KeptTokens(int(num), weight) for num, weight in zip(kept[::2], kept[1::2], strict=True)
    )
    likeliest = [
        LikelyToken(int(token_id), likely, bool(is_left))
        for token_id, likely, is_left in zip(*columns, strict=True)
    ]
    return RowSummary(
        peak,
        total,
        weighted,
        logit,
        int(rank),
        bool(is_kept),
        everything,
        after_top_k,
        after_top_p,
        after_min_p,
        likeliest,
    )
