"""Native recurrent layers: their definition within rounding, and the same bits however steps are cut, on every
number of threads and every level."""

import numpy as np
import pytest

from pellucid.backends.cpu.backend import CpuBackend
from pellucid.backends.native import kernel_levels
from pellucid.backends.numpy.backend import NumpyBackend
from pellucid.facts.model_config import GatedDeltaNetConfig
from support.recurrence_cases import ConvolutionCase, DeltaCase
from support.steps import chunks, random_steps, whole

EXACT, DEFINITION = NumpyBackend(np.float64), NumpyBackend()
LENGTHS, SLOTS = (19, 1, 7), (2, 0, 3)
NETS = {
    "grouped": GatedDeltaNetConfig(2, 4, 24, 32, 4),
    "tiled": GatedDeltaNetConfig(1, 2, 16, 48, 4, tiled=True),
    "odd": GatedDeltaNetConfig(1, 1, 5, 16, 4),
}


@pytest.fixture(scope="module", params=kernel_levels())
def backend(request):
    return CpuBackend(num_threads=2, isa=request.param, small_step_bytes=0)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("kernel_size", [1, 2, 4])
def test_convolution_is_its_definition_bit_for_bit(backend, kernel_size, has_bias):
    case = ConvolutionCase.random(LENGTHS, 270, kernel_size, has_bias)
    expected = case.run(DEFINITION, whole(LENGTHS), SLOTS)
    for steps in (whole(LENGTHS), random_steps(LENGTHS, np.random.default_rng(1))):
        for one, other in zip(case.run(backend, steps, SLOTS), expected, strict=True):
            assert (one == other).all()


@pytest.mark.parametrize("net", NETS.values(), ids=NETS)
def test_delta_net_is_its_definition(backend, net):
    case = DeltaCase.random(net, LENGTHS)
    expected = case.run(EXACT, whole(LENGTHS), SLOTS)
    for own, other in zip(case.run(backend, whole(LENGTHS), SLOTS), expected, strict=True):
        assert np.abs(own - other).max() <= 1e-5 * np.abs(other).max()


@pytest.mark.parametrize("net", NETS.values(), ids=NETS)
def test_delta_net_does_not_depend_on_steps_threads_or_level(net):
    case = DeltaCase.random(net, LENGTHS)
    expected = case.run(CpuBackend(1), whole(LENGTHS), SLOTS)
    one_by_one = [
        [(b, start, stop)] for b, n in enumerate(LENGTHS) for [(_, start, stop)] in chunks(n, 1)
    ]
    for level in kernel_levels():
        backend = CpuBackend(num_threads=3, isa=level, small_step_bytes=0)
        for steps in (one_by_one, random_steps(LENGTHS, np.random.default_rng(2))):
            for own, other in zip(case.run(backend, steps, SLOTS), expected, strict=True):
                assert (own == other).all()


@pytest.mark.parametrize("function", ["identity", "sigmoid", "silu", "gelu_tanh"])
@pytest.mark.parametrize("gate_width", [1, 37])
def test_multiply(backend, function, gate_width):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((5, 37), np.float32)
    gate = rng.standard_normal((5, gate_width), np.float32)
    expected = EXACT.ops.multiply(x.astype(np.float64), gate.astype(np.float64), function)
    np.testing.assert_allclose(
        backend.ops.multiply(x, gate, function), expected, rtol=1e-6, atol=1e-7
    )


def test_slots_are_checked():
    case = DeltaCase.random(NETS["grouped"], (3, 3))
    with pytest.raises(ValueError, match="state_slots: 1 is there twice"):
        case.run(CpuBackend(1), whole((3, 3)), (1, 1))
