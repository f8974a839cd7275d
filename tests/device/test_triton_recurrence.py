"""Recurrent layers in Triton's interpreter: the definition's numbers, the same bits however texts are cut."""

import numpy as np
import pytest

pytest.importorskip("triton")

from pellucid.backends.numpy.backend import NumpyBackend
from pellucid.backends.torch.triton.ops import KernelChoice, TritonOps
from pellucid.backends.torch.triton.recurrence import delta_net
from pellucid.backends.torch.triton.self_check import with_kernels
from pellucid.facts.model_config import GatedDeltaNetConfig
from support.host_ops import DEVICE, HostBackend, HostOps
from support.recurrence_cases import ConvolutionCase, DeltaCase
from support.steps import chunks, random_steps, whole

NUMPY = NumpyBackend()
LENGTHS, SLOTS = [7, 1, 4], [2, 0, 1]
CLOSE = 1e-5


def backend():
    own = HostBackend(DEVICE)
    plain = own._backend.ops
    choice = KernelChoice().only("recurrence")
    own.ops = HostOps(TritonOps(plain.device, plain.sizes, choice))
    return own


TRITON = backend()
CASES = [
    ConvolutionCase.random(LENGTHS, 24, 4, has_bias=True),
    ConvolutionCase.random(LENGTHS, 300, 3, has_bias=False),
    ConvolutionCase.random(LENGTHS, 8, 1, has_bias=False),
    DeltaCase.random(GatedDeltaNetConfig(2, 4, 24, 40, 4), LENGTHS),
    DeltaCase.random(GatedDeltaNetConfig(1, 2, 16, 16, 4, tiled=True), LENGTHS),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: type(case).__name__)
def test_numbers_of_the_definition_and_the_same_bits_in_any_step(case):
    every = case.run(TRITON, whole(LENGTHS), SLOTS)
    for own, wanted in zip(every, case.run(NUMPY, whole(LENGTHS), SLOTS), strict=True):
        assert np.linalg.norm(own - wanted) <= CLOSE * np.linalg.norm(wanted)
    found = case.run(TRITON, random_steps(LENGTHS, np.random.default_rng(2)), SLOTS)
    assert all((own == wanted).all() for own, wanted in zip(found, every, strict=True))
    alone = case.run(TRITON, chunks(LENGTHS[0], 1), SLOTS)
    assert (alone[0] == every[0]).all()


def test_the_check_at_start(monkeypatch, recwarn):
    plain, choice = TRITON._backend.ops, KernelChoice().only("recurrence")
    ops = with_kernels(plain, choice)
    assert isinstance(ops, TritonOps) and ops.choice == choice and not recwarn.list
    monkeypatch.setattr(
        "pellucid.backends.torch.triton.ops.delta_net", lambda *args: 1.02 * delta_net(*args)
    )
    with pytest.warns(RuntimeWarning, match="'recurrence': gives other numbers than plain PyTorch"):
        assert with_kernels(plain, choice) is plain
