"""Arrays whose memory is a file's."""

import mmap
from typing import Any

import numpy as np
import numpy.typing as npt


def is_mapped(array: npt.NDArray[Any]) -> bool:
    """Whether an array is a view of a mapped file: what it holds is there for as long as it is, and its
    pages can be given back at any time."""
    owner: object = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if isinstance(owner, memoryview):
        owner = owner.obj
    return isinstance(owner, mmap.mmap)
