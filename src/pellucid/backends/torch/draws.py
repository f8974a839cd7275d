"""Draws of tokens on a device: those of the sampler, bit for bit, without a copy of a row of logits.

A stage works on all rows at once, and keeps tokens of the whole vocabulary in a mask. Weights and the race are those of
`DrawKernels`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pellucid.backends.draw_arithmetic import WORD
from pellucid.backends.drawing import DrawSettings, DrawTable, TokenMask
from pellucid.backends.torch.memory import to_device
from pellucid.backends.torch.noise import NoiseKeys
from pellucid.backends.torch.odds import TorchOdds
from pellucid.backends.torch.race import PLAIN_DRAWS, DrawKernels

DRAWS_TOGETHER = 8  # rows whose tokens are drawn at once
# Of arrays of a row's tokens that exist at once, in f32 numbers: logits, weights, masses, orders, noise.
NUMBERS_PER_TOKEN = 40
_BITS = 32


class DrawnToken(NamedTuple):
    """A token, and its logit before the request's edits."""

    token_id: int
    logit: float


class _Edits(NamedTuple):
    """Logits that requests change, by biases and penalties: [E] each.

    Attributes:
        rows: of the draws.
        numbers: [4, E] bias; repetition penalty; presence penalty, frequency penalty times occurrences, 0 where the
            token is not in the output. All f64.
    """

    rows: Tensor
    token_ids: Tensor
    numbers: Tensor


def draw_tokens(
    logits: Tensor, draws: DrawTable, kernels: DrawKernels = PLAIN_DRAWS
) -> list[DrawnToken | None]:
    """The token of each draw; None where the definition decides, because parameters or logits leave no token.

    Args:
        logits: [R, V] f32, on a device that has f64; are not changed.
    """
    if not len(draws):
        return []
    starts = range(0, len(draws), DRAWS_TOGETHER)
    parts = (range(start, min(start + DRAWS_TOGETHER, len(draws))) for start in starts)
    drawn = torch.cat([_draw_some(logits, draws, part, kernels) for part in parts], dim=1)
    return [
        DrawnToken(int(token_id), logit) if is_right else None
        for is_right, token_id, logit in zip(*drawn.tolist(), strict=True)
    ]


def _draw_some(logits: Tensor, draws: DrawTable, chosen: range, kernels: DrawKernels) -> Tensor:
    """Of each draw whether there is a token, the token, and its logit: f64 [3, draws]."""
    device, vocab_size = logits.device, logits.shape[1]
    settings = [draws.settings[i] for i in chosen]

    def column(get: Callable[[DrawSettings], Any], dtype: Any) -> Tensor:
        return to_device(np.array([[get(each)] for each in settings], dtype), device)

    rows = to_device(np.array([draws.rows[i] for i in chosen], np.int64), device)
    original = logits[rows]
    edited, is_right = _edited(original, draws, chosen)
    largest = edited.amax(dim=1)
    is_right &= torch.isfinite(original.amax(dim=1)) & torch.isfinite(largest)
    # Rows that are not drawn from: any numbers will do.
    edited = torch.where(is_right[:, None], edited, torch.zeros_like(edited))

    sharpness = column(lambda each: each["sharpness"], np.float32)
    token_ids = _first_of_peak(edited)
    if any(each["sharpness"] for each in settings):
        odds = TorchOdds(edited, sharpness, kernels.weights)
        is_kept = odds.is_candidate
        if any(each.get("top_k", 0) for each in settings):
            top_k = column(lambda each: min(each.get("top_k", 0), vocab_size), np.int64)
            is_kept = odds.top_k(is_kept, top_k)
        if any(each.get("top_p", 1.0) < 1 for each in settings):
            top_p = column(lambda each: each.get("top_p", 1.0), np.float64)
            is_kept = odds.share(is_kept, odds.order, top_p)
        if any(each.get("min_p", 0.0) for each in settings):
            min_p = column(lambda each: each.get("min_p", 0.0), np.float32)
            is_kept = is_kept & (odds.weights >= min_p)
        if any(each.get("typical_p", 1.0) < 1 for each in settings):
            typical_p = column(lambda each: each.get("typical_p", 1.0), np.float64)
            is_kept = odds.typical(is_kept, typical_p)
        keys = NoiseKeys(
            column(lambda each: each["seed"] % WORD, np.int64),
            column(lambda each: each["seed"] // WORD, np.int64),
            column(lambda each: each["stream"], np.int64),
            to_device(np.array([[draws.positions[i]] for i in chosen], np.int64), device),
        )
        weights = odds.weights.masked_fill(~is_kept, 0)
        # Of greedy rows, and of those that are not drawn from, nobody looks at the winner.
        winners = kernels.race(weights, keys)
        token_ids = torch.where(sharpness[:, 0] > 0, winners, token_ids)
    is_right &= token_ids < vocab_size
    safe = token_ids.clamp(max=vocab_size - 1)
    own_logits = original.gather(1, safe[:, None])[:, 0]
    return torch.stack((is_right.double(), safe.double(), own_logits.double()))


def _first_of_peak(logits: Tensor) -> Tensor:
    """Of each row the first token with the largest logit, [N]."""
    vocab_size = logits.shape[1]
    token_ids = torch.arange(vocab_size, device=logits.device)
    is_peak = logits == logits.amax(dim=1, keepdim=True)
    return torch.where(is_peak, token_ids, vocab_size).amin(dim=1)


def _edited(original: Tensor, draws: DrawTable, chosen: range) -> tuple[Tensor, Tensor]:
    """Logits after biases, penalties and masks; and of each row, whether they stay in the range of floats."""
    num_draws, vocab_size = original.shape
    logits = original
    is_right = torch.ones(num_draws, dtype=torch.bool, device=original.device)
    edits = _collect(draws, chosen, original.device)
    if edits is not None:
        before = original[edits.rows, edits.token_ids]
        bias, repetition, presence, frequency = edits.numbers
        after = before.double() + bias
        after = torch.where(after > 0, after / repetition, after * repetition)
        after = (after - presence - frequency).float()
        is_excluded = before == -torch.inf
        is_wrong = ~torch.isfinite(after) & ~is_excluded
        is_right[edits.rows[is_wrong]] = False
        logits = logits.clone()
        logits[edits.rows, edits.token_ids] = torch.where(is_excluded, before, after)
    masks = [draws.allowed[i] for i in chosen]
    if any(mask is not None for mask in masks):
        is_allowed = _unpacked(masks, vocab_size, original.device)
        logits = logits.masked_fill(~is_allowed, -torch.inf)
    if any(draws.forbidden[i] is not None for i in chosen):
        lists = [draws.forbidden[i] for i in chosen]
        ids = np.concatenate([np.zeros(0, np.int32) if each is None else each for each in lists])
        counts = [0 if each is None else len(each) for each in lists]
        own = to_device(np.repeat(np.arange(num_draws), counts), original.device)
        logits = logits.clone()
        logits[own, to_device(ids.astype(np.int64), original.device)] = -torch.inf
    return logits, is_right


def _unpacked(masks: list[TokenMask | None], vocab_size: int, device: torch.device) -> Tensor:
    """[N, V]."""
    num_words = -(-vocab_size // _BITS)
    every = np.full(num_words, 2**_BITS - 1, np.uint32)
    words = np.stack([every if mask is None else mask[:num_words] for mask in masks])
    own = to_device(words.view(np.uint8), device)  # little-endian: the lowest bits first
    bits = own[..., None] >> torch.arange(8, dtype=torch.uint8, device=device) & 1
    return bits.flatten(1)[:, :vocab_size].bool()


def _collect(draws: DrawTable, chosen: range, device: torch.device) -> _Edits | None:
    """None: no request changes a logit."""
    rows, token_ids, numbers = [], [], []
    for row, i in enumerate(chosen):
        settings, text = draws.settings[i], draws.texts[i]
        if text is None and "bias_ids" not in settings:
            continue
        text = np.zeros(0, np.int32) if text is None else text
        output = text[settings.get("num_prompt_tokens", 0) :]
        bias_ids = settings.get("bias_ids", np.zeros(0, np.int32))
        own = np.unique(np.concatenate((bias_ids, text)))
        found = np.zeros((4, len(own)))
        found[0, np.searchsorted(own, bias_ids)] = settings.get("biases", np.zeros(0))
        found[1] = 1
        found[1, np.searchsorted(own, text)] = settings.get("repetition_penalty", 1.0)
        counts = np.zeros(len(own))
        np.add.at(counts, np.searchsorted(own, output), 1)
        found[2] = settings.get("presence_penalty", 0.0) * (counts > 0)
        found[3] = settings.get("frequency_penalty", 0.0) * counts
        rows.append(np.full(len(own), row))
        token_ids.append(own)
        numbers.append(found)
    if not rows:
        return None
    return _Edits(
        to_device(np.concatenate(rows).astype(np.int64), device),
        to_device(np.concatenate(token_ids).astype(np.int64), device),
        to_device(np.concatenate(numbers, axis=1), device),
    )
