"""Experts in Triton's interpreter: plain PyTorch's numbers, and the same bits whatever other rows choose."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from pellucid.backends.numpy.backend import NumpyBackend
from pellucid.backends.quantization.formats import STORED_FORMATS
from pellucid.backends.torch.backend import TorchBackend
from pellucid.backends.torch.triton.experts import GroupedExperts
from pellucid.backends.torch.triton.ops import KernelChoice, TritonOps
from pellucid.backends.torch.triton.self_check import with_kernels
from pellucid.backends.torch.triton.tiles import LinearTile
from support.expert_cases import random_choice, random_experts
from support.host_ops import DEVICE
from support.random_matrices import random_matrix

PLAIN = TorchBackend(DEVICE)
CHOICE = KernelChoice().only("experts")
OPS = TritonOps(PLAIN.device, PLAIN.ops.sizes, CHOICE)
CLOSE = 1e-2  # of norms: rows and weights are rounded to bf16
EXPERTS, WIDTH, HIDDEN, CHOSEN = 5, 32, 64, 3


def case(name: str, has_bias: bool = False) -> Any:
    rng = np.random.default_rng(0)

    def store(weight: np.ndarray) -> Any:
        if name in STORED_FORMATS:
            return random_matrix(STORED_FORMATS[name], *weight.shape, rng)
        return weight.astype({"bf16": ml_dtypes.bfloat16, "f16": np.float16}[name])

    return random_experts(rng, EXPERTS, WIDTH, HIDDEN, store, has_bias)


def rows_of(num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((num_rows, HIDDEN)).astype(np.float32)
    weights = random_choice(rng, num_rows, EXPERTS, CHOSEN)
    weights[:, 1] = 0  # nobody chooses it
    return PLAIN.ops.from_host(x), PLAIN.ops.from_host(weights)


@pytest.mark.parametrize(
    ("name", "activation"),
    [*((each, "silu") for each in ("bf16", *STORED_FORMATS)), ("mxfp4", "clamped_swish")],
)
def test_each_stored_format(name: str, activation: Any) -> None:
    own = case(name, has_bias=activation == "clamped_swish")
    x, weights = rows_of(7)
    found = OPS.expert_mlp(x, weights, CHOSEN, *own.handles(PLAIN), activation)
    definition = NumpyBackend(quantize_activations=False)
    handles = own.handles(definition)
    arrays = (each.cpu().numpy() for each in (x, weights))
    expected = definition.ops.expert_mlp(*arrays, CHOSEN, *handles, activation)
    error = np.linalg.norm(found.cpu().numpy() - expected)
    assert error <= CLOSE * np.linalg.norm(expected)


@pytest.mark.parametrize("name", ["bf16", "int4-k"])
def test_a_row_has_the_same_bits_in_any_step_and_tile(name: str) -> None:
    gate, up, down = case(name).handles(PLAIN)
    x, weights = rows_of(20)
    every = OPS.expert_mlp(x, weights, CHOSEN, gate, up, down, "silu")
    for count in (1, 7):
        for start in {0, len(x) - count}:
            own = slice(start, start + count)
            found = OPS.expert_mlp(x[own], weights[own], CHOSEN, gate, up, down, "silu")
            assert torch.equal(found, every[own])
    experts = GroupedExperts.of(gate, up, down)
    assert experts is not None
    for tile in (*CHOICE.tiles_of(experts.has_codes), LinearTile(0, 16, 32, 4, 2)):
        assert torch.equal(experts.run(x, weights, CHOSEN, "silu", tile), every)


def test_a_row_that_is_not_finite_shows_it_and_no_other_row_sees_it() -> None:
    handles, (x, weights) = case("bf16").handles(PLAIN), rows_of(9)
    clean = OPS.expert_mlp(x, weights, CHOSEN, *handles, "silu")
    weights[4] = torch.where(weights[4] != 0, torch.nan, 0.0)
    found = OPS.expert_mlp(x, weights, CHOSEN, *handles, "silu")
    assert found[4].isnan().all()
    others = [row for row in range(9) if row != 4]
    assert torch.equal(found[others], clean[others])


def test_formats_without_a_kernel_are_plain_and_say_so() -> None:
    handles, (x, weights) = case("f16").handles(PLAIN), rows_of(9)
    with pytest.warns(RuntimeWarning, match="no kernel reads this format of experts"):
        found = OPS.expert_mlp(x, weights, CHOSEN, *handles, "silu")
    assert torch.equal(found, PLAIN.ops.expert_mlp(x, weights, CHOSEN, *handles, "silu"))


SMALL = (24, 64)
TWO = (LinearTile(2, 64, 16, 4, 4), LinearTile(1 << 30, 64, 32, 4, 4))
FEW = replace(CHOICE, tiles=CHOICE.tiles._replace(numbers=TWO, codes=TWO))


def test_the_check_at_start_takes_kernels_that_keep_rows_apart(
    recwarn: pytest.WarningsRecorder,
) -> None:
    ops = with_kernels(PLAIN.ops, FEW, SMALL)
    assert isinstance(ops, TritonOps) and ops.choice == FEW and not recwarn.list


@pytest.mark.parametrize(
    "change",
    [lambda y: y * 1.02, lambda y: y * (1 + 1e-6 * torch.arange(len(y), device=y.device)[:, None])],
    ids=["numbers", "place"],
)
def test_the_check_at_start_finds_wrong_ones(
    change: Callable[[torch.Tensor], torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = GroupedExperts.run
    monkeypatch.setattr(GroupedExperts, "run", lambda *args: change(run(*args)))
    with pytest.warns(RuntimeWarning, match="'experts': gives other numbers than plain PyTorch"):
        assert with_kernels(PLAIN.ops, FEW, SMALL) is PLAIN.ops
