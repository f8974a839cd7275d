"""A backend whose ops take and give NumPy arrays, for tests that are the same for every device."""

import os

import numpy as np
import torch

from pellucid.backends.ops import Ops
from pellucid.backends.torch.backend import TorchBackend

# benchmarks/device_check.py runs the tests on other devices.
DEVICE = os.environ.get("PELLUCID_TEST_DEVICE", "cpu")


class HostOps:
    """`TorchOps` behind arrays of the host.

    Args:
        ops: of a device.
    """

    dtype = np.float32

    def __init__(self, ops):
        self._ops = ops

    def __getattr__(self, name):
        op = getattr(self._ops, name)
        if name not in Ops.__abstractmethods__:
            return op

        def call(*args, **options):
            with torch.inference_mode():
                result = op(
                    *map(self._there, args), **{k: self._there(v) for k, v in options.items()}
                )
                return None if result is None else self._ops.to_host(result)

        return call

    def _there(self, value):
        is_rows = isinstance(value, np.ndarray) and value.dtype.kind == "f"
        return self._ops.from_host(value.astype(np.float32)) if is_rows else value


class HostBackend:
    """A `TorchBackend` with `HostOps`."""

    def __init__(self, device=DEVICE):
        self._backend = TorchBackend(device)
        self.ops = HostOps(self._backend.ops)

    def __getattr__(self, name):
        return getattr(self._backend, name)
