"""Draws in Triton's interpreter: weights, arrivals and tokens of the definition, bit for bit."""

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from pellucid.backends.drawing import DrawTable, sharpness
from pellucid.backends.torch.backend import TorchBackend
from pellucid.backends.torch.draws import draw_tokens
from pellucid.backends.torch.memory import to_device
from pellucid.backends.torch.noise import NoiseKeys
from pellucid.backends.torch.race import PLAIN_DRAWS, DrawKernels
from pellucid.backends.torch.triton.draws import DRAW_KERNELS, race, weights_of_rows
from pellucid.backends.torch.triton.ops import KernelChoice
from pellucid.backends.torch.triton.self_check import with_kernels
from pellucid.execution.request_draws import RequestDraws
from pellucid.execution.request_state import RequestState
from support.draw_cases import defined, make_request, random_logits, random_params
from support.host_ops import DEVICE

PLACE = torch.device(DEVICE)


def column(numbers: list[int] | np.ndarray, dtype: type = np.int64) -> torch.Tensor:
    return to_device(np.array(numbers, dtype)[:, None], PLACE)


@pytest.mark.parametrize("vocab_size", [1, 129, 1500])
def test_weights_and_winners_are_those_of_plain_pytorch(vocab_size: int) -> None:
    rng = np.random.default_rng(vocab_size)
    num_rows = 12
    spreads = rng.choice([1.0, 30.0, 1e30], (num_rows, 1))
    logits = (spreads * rng.standard_normal((num_rows, vocab_size))).astype(np.float32)
    logits[::2] = np.round(logits[::2])  # ties
    logits[1, 1:] = -np.inf
    there = to_device(logits, PLACE)
    sharp = column([sharpness(each) for each in rng.choice([0.3, 1.0, 5.0], num_rows)], np.float32)
    facts = there, there.amax(dim=1), sharp
    weights = weights_of_rows(*facts)
    assert torch.equal(weights, PLAIN_DRAWS.weights(*facts))

    most = 2**32
    words = (rng.integers(0, most, num_rows) for _ in range(4))
    keys = NoiseKeys(*map(column, words))
    found = race(weights, keys)
    assert torch.equal(found, PLAIN_DRAWS.race(weights, keys))
    assert found[1] == 0
    none = torch.zeros_like(weights)
    assert (race(none, keys) == vocab_size).all()


# The interpreter takes 10 ms for a row; a GPU takes ten thousand.
SHARE = 80 if DEVICE == "cpu" else 1


@pytest.mark.parametrize(("vocab_size", "num_rows"), [(5, 4000), (127, 4000), (700, 2000)])
def test_draws_are_the_defined_ones(vocab_size: int, num_rows: int) -> None:
    rng, num_rows = np.random.default_rng(vocab_size), num_rows // SHARE
    logits = np.stack([random_logits(rng, vocab_size) for _ in range(num_rows)])
    table, wanted = DrawTable(), []
    for row in range(num_rows):
        request = make_request(rng, vocab_size, random_params(rng, vocab_size))
        wanted.append(defined(logits[row], request))
        RequestDraws(RequestState(request.started()), vocab_size).add_to(table, row, 0)
    there = to_device(logits, PLACE)
    found = draw_tokens(there, table, DRAW_KERNELS)
    own = [-1 if each is None else each.token_id for each in found]
    assert all(each in (right, -1) for each, right in zip(own, wanted, strict=True))
    assert sum(each != right for each, right in zip(own, wanted, strict=True)) <= num_rows // 16


def test_the_check_at_start(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    plain, choice = TorchBackend(DEVICE).ops, KernelChoice().only("draws")
    ops = with_kernels(plain, choice)
    assert ops.draws is DRAW_KERNELS and not recwarn.list
    wrong = DrawKernels(lambda *facts: weights_of_rows(*facts) * (1 + 2e-7), race)
    monkeypatch.setattr("pellucid.backends.torch.triton.ops.DRAW_KERNELS", wrong)
    with pytest.warns(RuntimeWarning, match="'draws': gives other numbers than plain PyTorch"):
        assert with_kernels(plain, choice) is plain
