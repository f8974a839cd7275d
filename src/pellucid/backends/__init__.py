"""Backends: `ops` and `base` are the contract, `numpy_backend` its definition, `cpu_backend` its native kernels."""
