"""Finds the strings of an array in a GGUF file, which stand one after the other, each behind its length.

A vocabulary has hundreds of thousands of them. Most have 1 to 255 bytes and no NUL: each of these has seven zero
bytes before it, the upper ones of its length, and no others, so that NumPy finds a thousand as fast as Python one.
"""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Places: TypeAlias = npt.NDArray[np.int64]

_WINDOW_BYTES = 1 << 20
_LENGTH_BYTES = 8
_NUM_ZEROS = _LENGTH_BYTES - 1


def find_short_strings(
    data: npt.NDArray[np.uint8], at: int, count: int, limit: int
) -> tuple[Places, Places]:
    """Strings of 1 to 255 bytes without a NUL, up to the first other one or the end of a window.

    Args:
        data: the file.
        at: byte where the first length begins.
        count: at most so many.
        limit: byte where the strings end at the latest.

    Returns:
        Where each string begins and ends.
    """
    window = data[at : min(at + _WINDOW_BYTES, limit)]
    zeros = np.flatnonzero(window == 0)
    zeros = zeros[: len(zeros) // _NUM_ZEROS * _NUM_ZEROS].reshape(-1, _NUM_ZEROS)[:count]
    first = zeros[:, 0]  # of the zeros in each length; the byte before it is the length
    lengths = window[first - 1].astype(np.int64)
    begins = first + _NUM_ZEROS
    ends = begins + lengths
    fits = (zeros[:, -1] - first == _NUM_ZEROS - 1) & (at + ends <= limit)
    if len(fits):
        fits[0] &= first[0] == 1
        fits[1:] &= first[1:] == ends[:-1] + 1
    num_found = len(fits) if fits.all() else int(fits.argmin())
    return at + begins[:num_found], at + ends[:num_found]


def read_strings(data: npt.NDArray[np.uint8], begins: Places, ends: Places) -> list[str]:
    """The strings at these places, which follow each other.

    Raises:
        UnicodeDecodeError: one is not UTF-8.
    """
    if not len(begins):
        return []
    start = int(begins[0])
    region = data[start : int(ends[-1])]
    is_text = np.ones(len(region), bool)
    for byte in range(1, _LENGTH_BYTES):  # the last byte of a length is zero: it parts two strings
        is_text[begins[1:] - start - 1 - byte] = False
    strings = region[is_text].tobytes().decode().split("\0")
    if len(strings) == len(begins):
        return strings
    return [bytes(data[begin:end]).decode() for begin, end in zip(begins, ends, strict=True)]
