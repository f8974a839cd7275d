"""Native unpacking of GGUF blocks gives the bits of the NumPy definition."""

import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES

from pellucid.backends.native import ThreadPool, block_types, unpack_blocks
from pellucid.loading.gguf_blocks import BLOCK_TYPES, matrix_from_blocks
from pellucid.loading.native_blocks import NativeBlocks


def random_rows(block_type):
    """Any bytes: a code, a scale, a minimum is valid whatever its bits."""
    block_bytes = GGML_QUANT_SIZES[block_type][1]
    return np.random.default_rng(0).integers(0, 256, (301, 40 * block_bytes), np.uint8)


@pytest.mark.parametrize("block_type", BLOCK_TYPES)
def test_same_arrays_as_the_definition(block_type):
    rows = random_rows(block_type)
    matrix, expected = NativeBlocks().matrix(rows, block_type), matrix_from_blocks(rows, block_type)
    assert (matrix.format, matrix.shape) == (expected.format, expected.shape)
    assert matrix.arrays.keys() == expected.arrays.keys()
    for name, array in matrix.arrays.items():
        assert array.dtype == expected.arrays[name].dtype
        np.testing.assert_array_equal(array.view(np.uint8), expected.arrays[name].view(np.uint8))


def test_native_code_knows_types_of_the_format():
    python_alone = {"Q2_K", "Q3_K"}
    assert {*block_types()} == {each.name for each in BLOCK_TYPES} - python_alone


def test_arrays_that_do_not_fit_are_refused():
    pool, rows = ThreadPool(1), np.zeros((3, 18), np.uint8)
    codes, scales = np.zeros((3, 16), np.uint8), np.zeros((3, 1), np.float16)
    for wrong in (
        {"block_type": "Q4_7"},
        {"rows": rows[:, :17].copy()},
        {"codes": codes[:2].copy()},
        {"scales": np.zeros((3, 2), np.float16)},
        {"minimums": scales},
    ):
        arguments = {"block_type": "Q4_0", "rows": rows, "codes": codes, "scales": scales, **wrong}
        with pytest.raises(ValueError, match=min(wrong)):
            unpack_blocks(**arguments, pool=pool)
