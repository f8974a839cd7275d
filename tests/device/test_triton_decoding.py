"""The instructions that decode pairs of words: run here one by one, they give each code's number."""

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("triton")

from pellucid.backends.torch.triton.kernels import linear

Registers = dict[str, np.ndarray]  # of 32 bits, by name


def permuted(first: np.ndarray, second: np.ndarray, selector: int) -> np.ndarray:
    """PTX prmt.b32: each digit of the selector is a byte of both words."""
    every = np.stack([first, second], -1).view(np.uint8)
    digits = [selector >> (4 * i) & 15 for i in range(4)]
    return np.ascontiguousarray(every[..., digits]).view(np.uint32)[..., 0]


def fused(first: np.ndarray, second: np.ndarray, third: np.ndarray) -> np.ndarray:
    """PTX fma.rn.bf16x2: f64 holds a product of two bf16 and most sums exactly."""
    numbers = (
        np.ascontiguousarray(each).view(ml_dtypes.bfloat16).astype(np.float64)
        for each in (first, second, third)
    )
    a, b, c = numbers
    return (a * b + c).astype(ml_dtypes.bfloat16).view(np.uint32)


def run(program: str, registers: Registers) -> None:
    shape = next(iter(registers.values())).shape
    for line in program.strip("{}").split(";"):
        if not line.strip() or line.split()[0] == ".reg":
            continue
        name, target, *rest = line.replace(",", " ").split()
        given = [
            registers[each] if each in registers else np.full(shape, int(each, 0), np.uint32)
            for each in rest
        ]
        match name:
            case "mov.b32":
                found = given[0]
            case "prmt.b32":
                found = permuted(given[0], given[1], int(rest[2], 0))
            case "shr.u32":
                found = given[0] >> given[1]
            case "lop3.b32":
                assert int(rest[3], 0) == 0xEA
                found = given[0] & given[1] | given[2]
            case "fma.rn.bf16x2":
                found = fused(*given)
            case _:
                raise AssertionError(name)
        registers[target] = found


@pytest.mark.parametrize("bits", [4, 8])
def test_each_code_becomes_its_number(bits: int) -> None:
    planes, rng, zero_point = 32 // bits, np.random.default_rng(0), 8 if bits == 4 else 0
    codes = np.array(
        [np.roll(np.arange(1 << bits), i) for i in range(2 * planes)]
    )  # all in each place
    codes = codes.reshape(planes, 2, -1)
    words = sum(codes[i].astype(np.uint32) << np.uint32(bits * i) for i in range(planes))
    scales = rng.uniform(-1, 1, words.shape).astype(np.float16).astype(np.float32)

    def pairs(numbers: np.ndarray) -> np.ndarray:
        rounded = numbers.astype(ml_dtypes.bfloat16)
        return np.ascontiguousarray(rounded.T).view(np.uint32)[:, 0]

    upper = scales.astype(ml_dtypes.bfloat16)
    inputs = (
        *(words[0], words[1], pairs(np.full(words.shape, -128.0 - zero_point))),
        *(pairs(upper), pairs(scales - upper.astype(np.float32))),
    )
    registers = {f"${planes + i}": each for i, each in enumerate(inputs)}
    run(linear._decoder(bits), registers)
    signed = codes - zero_point if bits == 4 else codes.astype(np.uint8).view(np.int8)
    found = np.stack([registers[f"${i}"] for i in range(planes)])
    expected = (signed * scales.astype(np.float64)).astype(ml_dtypes.bfloat16)
    numbers = np.ascontiguousarray(found[..., None]).view(ml_dtypes.bfloat16)
    wrong = np.moveaxis(numbers, -1, 1) != expected
    assert not wrong.any() if bits == 4 else wrong.mean() < 0.01
