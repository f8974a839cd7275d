"""Arrays between the host's memory and a device's."""

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

TORCH_DTYPES = {
    np.dtype(np.float64): torch.float64,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.float16): torch.float16,
    np.dtype(ml_dtypes.bfloat16): torch.bfloat16,
    np.dtype(np.int8): torch.int8,
    np.dtype(np.uint8): torch.uint8,
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
}


def to_device(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """A copy of an array on a device, bit for bit. Its dtype is one of `TORCH_DTYPES`."""
    dtype = TORCH_DTYPES[array.dtype]
    # PyTorch takes no bf16 from NumPy, and no memory that must not be written.
    own = np.array(array, order="C")
    return (
        torch.from_numpy(own.view(np.uint8).reshape(-1)).to(device).view(dtype).reshape(array.shape)
    )


def indices(array: npt.NDArray[np.integer[Any]] | Tensor, device: torch.device) -> Tensor:
    """Whole numbers on a device, as indices."""
    if isinstance(array, Tensor):
        return array
    return torch.from_numpy(np.array(array, np.int64)).to(device)


def to_host(x: Tensor) -> npt.NDArray[Any]:
    """A copy of a tensor of floats."""
    return np.array(x.detach().cpu().numpy())
