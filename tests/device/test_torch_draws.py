"""Draws on a device are the sampler's, bit for bit: the tokens, whatever the parameters, the rows and the step."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from pellucid.backends.drawing import DrawTable
from pellucid.backends.torch.draws import DRAWS_TOGETHER, draw_tokens
from pellucid.backends.torch.memory import to_device
from pellucid.backends.torch.noise import NoiseKeys, exponential_noise, upper_bits
from pellucid.backends.torch.odds import TorchOdds
from pellucid.execution import randomness
from pellucid.execution.odds import Odds
from pellucid.execution.request_draws import RequestDraws
from pellucid.execution.request_state import RequestState
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.scheduling.request import Request
from support.draw_cases import defined, make_request, random_logits, random_params
from support.host_ops import DEVICE

PLACE = torch.device(DEVICE)


def drawn(logits: np.ndarray, requests: Sequence[Request], rows: Sequence[int]) -> list[int]:
    """-1: the definition decides."""
    table = DrawTable()
    for row, request in zip(rows, requests, strict=True):
        RequestDraws(RequestState(request.started()), logits.shape[1]).add_to(table, row, 0)
    there = to_device(logits, PLACE)
    tokens = draw_tokens(there, table)
    assert (there.cpu().numpy() == logits).all() or np.isnan(logits).any()
    for row, each in zip(rows, tokens, strict=True):
        assert each is None or each.logit == logits[row, each.token_id]
    return [-1 if each is None else each.token_id for each in tokens]


@pytest.mark.parametrize(
    ("vocab_size", "num_rows"), [(1, 200), (5, 2000), (127, 3000), (128, 3000), (1000, 2000)]
)
def test_draws_are_the_defined_ones(vocab_size: int, num_rows: int) -> None:
    """Ties, excluded tokens, NaN, masks, penalties and every truncation: 10,000 rows in all."""
    rng = np.random.default_rng(vocab_size)
    logits = np.stack([random_logits(rng, vocab_size) for _ in range(num_rows)])
    requests = [
        make_request(rng, vocab_size, random_params(rng, vocab_size)) for _ in range(num_rows)
    ]
    wanted = [defined(*pair) for pair in zip(logits, requests, strict=True)]
    found = drawn(logits, requests, range(num_rows))
    # Penalties that overflow are looked at by the definition, which may know better.
    assert all(own in (right, -1) for own, right in zip(found, wanted, strict=True))
    left = sum(own != right for own, right in zip(found, wanted, strict=True))
    assert left <= num_rows // 16


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"temperature": 0.8, "top_p": 0.95},
        {"min_p": 0.02},
        {"top_k": 40, "top_p": 0.9},
        {"typical_p": 0.5},
        {"temperature": 1e60},
    ],
    ids=str,
)
def test_a_row_draws_the_same_alone_and_among_others(given: dict[str, Any]) -> None:
    rng = np.random.default_rng(5)
    vocab_size, num_draws = 30_000, DRAWS_TOGETHER + 3
    logits = rng.normal(0, 1.5, (1, vocab_size)).astype(np.float32)
    requests = [make_request(rng, vocab_size, SamplingParams(**given)) for _ in range(num_draws)]
    wanted = [defined(logits[0], request) for request in requests]
    assert drawn(logits, requests, [0] * num_draws) == wanted
    assert [drawn(logits, [request], [0])[0] for request in requests] == wanted
    assert len(set(wanted)) > 3


def test_noise_and_weights_are_the_defined_ones() -> None:
    rng = np.random.default_rng(0)
    vocab_size, seed, stream, position = 1000, 2**63 + 12345, 77, 4_000_000_000
    words = (seed % 2**32, seed >> 32, stream, position)
    keys = NoiseKeys(*(to_device(np.array([[each]], np.int64), PLACE) for each in words))
    token_ids = np.arange(vocab_size)
    upper = upper_bits(keys, vocab_size)
    found = exponential_noise(keys, to_device(token_ids, PLACE), upper)
    expected = randomness.exponential_noise(seed, stream, position, token_ids)
    assert (found[0].cpu().numpy() == expected).all()

    for spread, temperature in ((1, 1.0), (30, 0.7), (1e30, 3.0)):
        logits = rng.normal(0, spread, vocab_size).astype(np.float32)
        wanted = Odds.of(logits.astype(np.float64), temperature)
        from pellucid.backends.drawing import sharpness

        own = to_device(np.array([[sharpness(temperature)]], np.float32), PLACE)
        odds = TorchOdds(to_device(logits[None], PLACE), own)
        assert (odds.weights[0].cpu().numpy() == wanted.weights).all()
        assert (odds.masses[0].cpu().numpy() == wanted.masses).all()
