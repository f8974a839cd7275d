"""Triton's interpreter as the kernels need it, where there is no GPU: import this before any kernel.

As it comes, it multiplies by `np.matmul`, whose order of sums follows from the shape, and knows no bf16 in products and
no rounding to bf16. Here a product adds its terms one after the other, and casts to bf16 round to nearest even.
"""

import os
import sys

from support.host_ops import DEVICE

if DEVICE == "cpu":
    assert not any(name.startswith("pellucid.backends.torch.triton") for name in sys.modules)
    os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import (
    GridExecutor,
    InterpretedFunction,
    InterpreterBuilder,
    TensorHandle,
    _patch_lang,
)


def widened(handle: TensorHandle) -> np.ndarray:
    """Numbers in f32; the interpreter has bf16 as the upper halves of their bits."""
    if handle.dtype.scalar == tl.bfloat16:
        return (handle.data.astype(np.uint32) << 16).view(np.float32)
    return handle.data.astype(np.float32)


def _to_bf16(numbers: np.ndarray) -> np.ndarray:
    bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(numbers), 0x7FC0, rounded).astype(np.uint16)


def _create_dot(self, a, b, d, input_precision, max_num_imprecise_acc):
    first, second, sums = widened(a), widened(b), d.data.copy()
    for k in range(first.shape[-1]):
        sums = sums + first[:, k, None] * second[None, k, :]
    return TensorHandle(sums, d.dtype.scalar)


_cast = InterpreterBuilder.cast_impl


def _cast_impl(self, src, dst_type):
    if dst_type.scalar == tl.bfloat16 and src.dtype.scalar != tl.bfloat16:
        return TensorHandle(_to_bf16(src.data.astype(np.float32)), tl.bfloat16)
    if src.dtype.scalar == tl.bfloat16 and dst_type.scalar == tl.float32:
        return TensorHandle(widened(src), tl.float32)
    return _cast(self, src, dst_type)


_patched = (
    set()
)  # modules whose functions of the language have been replaced for the current launch
_launch = GridExecutor.__call__


def _launched(executor, *args, **kwargs):
    _patched.clear()
    with np.errstate(all="ignore"):  # a GPU gives infinities and NaN in silence
        return _launch(executor, *args, **kwargs)


def _called(function, *args, **kwargs):
    # As it comes, each call of a function replaces them again, which takes most of the time.
    if function.fn.__module__ not in _patched:
        _patch_lang(function.fn)
        _patched.add(function.fn.__module__)
    return function.rewrite()(*args, **kwargs)


GridExecutor.__call__ = _launched
InterpretedFunction.__call__ = _called
InterpreterBuilder.create_dot = _create_dot
InterpreterBuilder.cast_impl = _cast_impl
