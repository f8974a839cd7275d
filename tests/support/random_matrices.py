"""Random matrices in integer formats: any codes, not quantized from anything."""

import numpy as np

from pellucid.backends.quantization.matrix import QuantizedMatrix


def random_matrix(weight_format, num_outputs, num_inputs, rng):
    """Any codes, scales and zero points that the format allows."""
    arrays = {}
    for name, (dtype, shape) in weight_format.arrays(num_outputs, num_inputs).items():
        if dtype.kind == "f":
            arrays[name] = rng.normal(size=shape).astype(dtype)
        elif name == "scales" and dtype == np.uint8:  # exponents
            arrays[name] = rng.integers(110, 128, shape).astype(dtype)
        elif name == "codes" and weight_format.bits in (5, 6):
            lowest = 0 if weight_format.has_minimums else -(1 << (weight_format.bits - 1))
            numbers = rng.integers(lowest, lowest + (1 << weight_format.bits), shape)
            arrays[name] = numbers.astype(dtype)
        elif name == "zero_points":
            arrays[name] = rng.integers(0, 16, shape).astype(dtype)
        else:
            arrays[name] = rng.integers(-127 if dtype == np.int8 else 0, 128, shape).astype(dtype)
    return QuantizedMatrix(weight_format, num_inputs, **arrays)
