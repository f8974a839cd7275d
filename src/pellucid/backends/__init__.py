"""The ops on arrays. `base` is the contract, `numpy_backend` its definition."""
