"""Native unpacking of GGUF blocks gives the bits of the NumPy definition."""

import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES

from pellucid.backends.cpu.backend import CpuBackend
from pellucid.backends.joined_matrix import join_matrices
from pellucid.backends.native import (
    ThreadPool,
    block_types,
    blocks_are_finite,
    pack_block_weights,
    unpack_blocks,
)
from pellucid.backends.quantization.blocks import BlockMatrix, BlockRows
from pellucid.loading.files import MappedFile
from pellucid.loading.gguf_blocks import (
    BLOCK_TYPES,
    format_of_blocks,
    inputs_of_row,
    matrix_from_blocks,
)
from pellucid.loading.gguf_types import TensorKind
from pellucid.loading.native_blocks import NativeBlocks


def random_rows(block_type):
    """Any bytes: a code, a scale, a minimum is valid whatever its bits."""
    block_bytes = GGML_QUANT_SIZES[block_type][1]
    return np.random.default_rng(0).integers(0, 256, (301, 40 * block_bytes), np.uint8)


@pytest.mark.parametrize("block_type", BLOCK_TYPES)
def test_same_arrays_as_the_definition(block_type):
    rows = random_rows(block_type)
    matrix, expected = (
        NativeBlocks().matrix(rows, block_type.name),
        matrix_from_blocks(rows, block_type),
    )
    assert (matrix.format, matrix.shape) == (expected.format, expected.shape)
    assert matrix.arrays.keys() == expected.arrays.keys()
    for name, array in matrix.arrays.items():
        assert array.dtype == expected.arrays[name].dtype
        np.testing.assert_array_equal(array.view(np.uint8), expected.arrays[name].view(np.uint8))


@pytest.mark.parametrize("block_type", block_types())
def test_nothing_is_written_behind_the_arrays(block_type):
    rows = random_rows(TensorKind[block_type])
    expected = matrix_from_blocks(rows, TensorKind[block_type]).arrays
    room = {name: np.full(array.nbytes + 64, 0xA5, np.uint8) for name, array in expected.items()}
    arrays = {name: room[name][:-64].view(array.dtype) for name, array in expected.items()}
    shaped = {name: array.reshape(expected[name].shape) for name, array in arrays.items()}
    unpack_blocks(block_type, rows, **shaped, pool=ThreadPool(1))
    assert all((each[-64:] == 0xA5).all() for each in room.values())


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


def finite_rows(block_type):
    """The same with f16 numbers that are finite."""
    rows = random_rows(block_type).reshape(301 * 40, -1)
    for name, array in matrix_from_blocks(rows, block_type).arrays.items():
        if array.dtype == np.float16:
            ends = ~np.isfinite(array).all(axis=-1)
            rows[ends] = rows[~ends][0]
            assert ends.any(), name
    return rows.reshape(301, -1)


FLOAT_TYPES = [each for each in BLOCK_TYPES if each.name in {*block_types()} - {"MXFP4"}]
# Of one format, which may be parts of one matrix
OTHERS = {TensorKind.Q8_0: TensorKind.Q5_0, TensorKind.Q5_0: TensorKind.Q8_0}


def block_matrix(block_type, blocks):
    num_inputs = inputs_of_row(blocks.shape[1], block_type)
    parts = (BlockRows(block_type.name, blocks),)
    return BlockMatrix(format_of_blocks(block_type), num_inputs, parts, NativeBlocks())


@pytest.mark.parametrize("block_type", FLOAT_TYPES)
def test_matrices_of_blocks_are_those_of_their_arrays(block_type, tmp_path):
    """Packed at once and behind the loader's back, with rows in any order, and of two parts."""
    rows, other = finite_rows(block_type), finite_rows(OTHERS.get(block_type, block_type))
    (path := tmp_path / "blocks").write_bytes(rows.tobytes())
    mapped = MappedFile(path).bytes.reshape(rows.shape)
    order = np.random.default_rng(1).permutation(301)[:70]
    second = block_matrix(OTHERS.get(block_type, block_type), other).rows(slice(5, 40))
    whole = block_matrix(block_type, mapped)
    backend = CpuBackend(2)
    backend.weights.expect(1 << 26)
    x = np.random.default_rng(2).standard_normal((2, whole.num_inputs), np.float32)
    matrices = [whole, whole.rows(order).rows(slice(3, None)), join_matrices([whole, second])]
    biases = [np.arange(matrix.shape[0], dtype=np.float32) for matrix in matrices]
    handles = [backend.weights.matrix(*each) for each in zip(matrices, biases, strict=True)]
    assert backend.weights.waiting_bytes == 2 * rows.nbytes  # all rows of the file, but no array
    backend.weights.finish()
    assert whole.is_finite
    for matrix, bias, handle in zip(matrices, biases, handles, strict=True):
        arrays = matrix.unpacked()
        assert arrays.shape == matrix.shape
        expected = backend.ops.linear(x, backend.weights.matrix(arrays, bias))
        np.testing.assert_array_equal(backend.ops.linear(x, handle), expected)
    np.testing.assert_array_equal(
        matrices[1].dequantize(), matrix_from_blocks(rows[order[3:]], block_type).dequantize()
    )


@pytest.mark.parametrize("block_type", FLOAT_TYPES)
def test_what_is_not_finite_is_seen(block_type):
    rows = finite_rows(block_type)
    assert blocks_are_finite(block_type.name, rows)
    last = rows.reshape(-1, GGML_QUANT_SIZES[block_type][1])[-1]
    seen = 0
    for byte in range(len(last) - 1):
        kept = last[byte : byte + 2].copy()
        last[byte : byte + 2] = 0x00, 0x7C  # infinity, if a number stands here
        arrays = matrix_from_blocks(rows[-1:], block_type).arrays.values()
        is_finite = all(np.isfinite(each).all() for each in arrays if each.dtype.kind == "f")
        assert blocks_are_finite(block_type.name, rows) == is_finite
        seen += not is_finite
        last[byte : byte + 2] = kept
    assert seen >= sum(each.dtype == np.float16 for each in arrays)


def test_blocks_that_do_not_fit_are_refused():
    pool, rows = ThreadPool(1), np.zeros((3, 18), np.uint8)
    whole = [("Q4_0", rows, None)]
    for parts, message in (
        ([], "parts: must not be empty"),
        ([("Q4_7", rows, None)], "block_type='Q4_7'"),
        ([("Q4_0", rows[:, :17].copy(), None)], "must be whole blocks"),
        ([("Q4_0", rows, np.array([0, 3]))], "parts: row 3 of 3"),
        ([("Q4_0", rows, np.array([-1]))], "parts: row -1 of 3"),
        ([*whole, ("Q8_0", np.zeros((3, 34), np.uint8), None)], "one format"),
        ([*whole, ("Q4_0", np.zeros((3, 36), np.uint8), None)], "rows of one length"),
        ([("Q4_0", rows, np.empty(0, np.int64))], "must not be empty"),
    ):
        with pytest.raises(ValueError, match=message):
            pack_block_weights(parts, pool=pool)
    with pytest.raises(ValueError, match="bias: must have one number per row"):
        pack_block_weights(whole, bias=np.zeros(2, np.float32), pool=pool)
