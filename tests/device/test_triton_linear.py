"""The kernel of `linear` in Triton's interpreter: plain PyTorch's numbers, and the same bits in any step and tile."""

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from pellucid.backends.joined_matrix import join_matrices
from pellucid.backends.quantization.formats import STORED_FORMATS
from pellucid.backends.torch.backend import TorchBackend
from pellucid.backends.torch.triton.linear import LinearLaunch
from pellucid.backends.torch.triton.ops import KernelChoice, TritonOps
from pellucid.backends.torch.triton.self_check import with_kernels
from pellucid.backends.torch.triton.tiles import LinearTile
from support.host_ops import DEVICE
from support.random_matrices import random_matrix

PLAIN = TorchBackend(DEVICE)
CHOICE = KernelChoice().only("linear")
OPS = TritonOps(PLAIN.device, PLAIN.ops.sizes, CHOICE)
COUNTS = (1, 2, 7, 16, 64, 257)  # rows of a step
CLOSE = 1e-2  # of norms: rows and weights are rounded to bf16
# What tuning may choose: other sizes of both sides, and fewer warps.
TUNED = LinearTile(0, 16, 32, 4, 2), LinearTile(0, 128, 16, 8, 3)


def rows_of(seed: int, *shape: int) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    return PLAIN.ops.from_host(rng.standard_normal(shape).astype(np.float32))


def matrix(name: str, num_outputs: int, num_inputs: int) -> object:
    rng = np.random.default_rng(1)
    if name == "bf16":
        weight = rng.standard_normal((num_outputs, num_inputs)).astype(ml_dtypes.bfloat16)
    else:
        weight = random_matrix(STORED_FORMATS[name], num_outputs, num_inputs, rng)
    return PLAIN.weights.matrix(weight, rng.standard_normal(num_outputs).astype(np.float32))


@pytest.mark.parametrize("name", ["bf16", *STORED_FORMATS])
@pytest.mark.parametrize("num_inputs", [256, 160])
def test_each_stored_format(name: str, num_inputs: int) -> None:
    handle, x = matrix(name, 72, num_inputs), rows_of(2, 5, num_inputs)
    launch = LinearLaunch.of(handle)
    assert launch is not None
    found, expected = OPS.linear(x, handle), PLAIN.ops.linear(x, handle)
    assert found.shape == expected.shape
    assert (found - expected).norm() <= CLOSE * expected.norm()
    # The rounding is that of bf16, and no other error: the same product of rounded numbers in f64.
    weights = handle.widened(slice(None)).to(torch.bfloat16).double()
    exact = x.to(torch.bfloat16).double() @ weights.t() + handle.bias.double()
    error = 1e-4 if launch.constants["IN_PAIRS"] else 1e-6  # a few last bits of weights
    assert (found - exact).norm() <= error * exact.norm()


@pytest.mark.parametrize("name", ["bf16", "int8", "int4-k"])
def test_a_row_has_the_same_bits_in_any_step_and_tile(name: str) -> None:
    handle, x = matrix(name, 24, 96), rows_of(3, COUNTS[-1], 96)
    launch = LinearLaunch.of(handle)
    assert launch is not None
    every = OPS.linear(x, handle)
    for count in COUNTS:
        for start in {0, len(x) - count}:
            rows = x[start : start + count]
            assert torch.equal(OPS.linear(rows, handle), every[start : start + count])
    tiles = CHOICE.tiles_of(launch.has_codes)
    for tile in (*tiles, *TUNED):
        assert torch.equal(launch.run(x[:70], tile) + handle.bias, every[:70]), tile


def test_matrices_that_the_kernel_does_not_read_are_plain_products() -> None:
    weight = np.random.default_rng(0).standard_normal((9, 20)).astype(np.float32)
    odd = random_matrix(STORED_FORMATS["int4"], 9, 20, np.random.default_rng(0))  # no whole words
    for each in (weight, weight.astype(np.float16), odd):
        handle, x = PLAIN.weights.matrix(each), rows_of(2, 3, 20)
        assert LinearLaunch.of(handle) is None
        assert torch.equal(OPS.linear(x, handle), PLAIN.ops.linear(x, handle))


def test_no_rows_and_a_matrix_of_several_formats() -> None:
    rng = np.random.default_rng(0)
    parts = [random_matrix(STORED_FORMATS[name], 8, 64, rng) for name in ("int4", "int8")]
    handle = PLAIN.weights.matrix(join_matrices(parts), np.ones(16, np.float32))
    assert OPS.linear(rows_of(0, 0, 64), handle).shape == (0, 16)
    x = rows_of(1, 3, 64)
    found, expected = OPS.linear(x, handle), PLAIN.ops.linear(x, handle)
    assert (found - expected).norm() <= CLOSE * expected.norm()


@pytest.fixture
def spoil(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., torch.Tensor]], None]:
    """Changes what `LinearLaunch.run` gives: `change(y, tile)`."""
    run = LinearLaunch.run

    def spoiled(change: Callable[..., torch.Tensor]) -> None:
        monkeypatch.setattr(
            LinearLaunch, "run", lambda launch, x, tile: change(run(launch, x, tile), tile)
        )

    return spoiled


SMALL = (24, 64)


def test_kernels_that_keep_rows_apart_are_taken(recwarn: pytest.WarningsRecorder) -> None:
    ops = with_kernels(PLAIN.ops, CHOICE, SMALL)
    assert isinstance(ops, TritonOps) and ops.choice == CHOICE
    assert ops.kernels.startswith("triton ") and not recwarn.list


@pytest.mark.parametrize("is_refused", [False, True])
def test_tiles_that_give_other_bits_than_most_are_left_out(
    spoil: Callable[..., None], is_refused: bool
) -> None:
    """Or none at all, where the device cannot run them."""

    def change(y: torch.Tensor, tile: LinearTile) -> torch.Tensor:
        if tile.rows != 64:
            return y
        if is_refused:
            raise RuntimeError("out of resource: shared memory")
        return y * (1 + 1e-6)

    spoil(change)
    with pytest.warns(RuntimeWarning, match="'linear': tiles of 64x64.* are left out: slower"):
        ops = with_kernels(PLAIN.ops, CHOICE, SMALL)
    assert isinstance(ops, TritonOps)
    for own, every in zip(ops.choice.tiles[:2], CHOICE.tiles[:2], strict=True):
        assert own == tuple(tile for tile in every if tile.rows != 64)
    assert ops.kernels != OPS.kernels  # blocks of the two are not mixed
    assert torch.equal(
        ops.linear(rows_of(3, 40, 96), matrix("bf16", 24, 96))[:5],
        OPS.linear(rows_of(3, 40, 96)[:5], matrix("bf16", 24, 96)),
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda y, tile: y * (1 + 1e-6 * torch.arange(len(y), device=y.device)[:, None]),
        lambda y, tile: y * 1.02,
        lambda y, tile: y * torch.nan,
    ],
    ids=["place", "numbers", "nan"],
)
def test_kernels_that_are_wrong_are_not_taken(
    change: Callable[..., torch.Tensor], spoil: Callable[..., None]
) -> None:
    spoil(change)
    with pytest.warns(
        RuntimeWarning, match="'linear': gives other numbers than plain PyTorch, or a"
    ):
        assert with_kernels(PLAIN.ops, CHOICE, SMALL) is PLAIN.ops


def test_kernels_that_cannot_be_made_are_not_taken(spoil: Callable[..., None]) -> None:
    def fail(y: torch.Tensor, tile: LinearTile) -> torch.Tensor:
        raise RuntimeError("no C compiler")

    spoil(fail)
    with pytest.warns(RuntimeWarning, match=r"cannot be made \(no C compiler\): plain PyTorch"):
        assert with_kernels(PLAIN.ops, CHOICE, SMALL) is PLAIN.ops
