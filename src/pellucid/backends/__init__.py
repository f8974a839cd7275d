"""Backends: `base` and `ops` are the contract, `numpy` defines them, `cpu` has native kernels, `torch` all devices."""
