"""The NumPy backend: the definition of every op, on any machine."""

from typing import Any

import numpy as np
from threadpoolctl import threadpool_info

from pellucid.backends.base import Backend, StepLogits
from pellucid.backends.drawing import DrawTable
from pellucid.backends.eager_decoder import EagerDecoder
from pellucid.backends.numpy.kv_cache import (
    NumpyKVCache,
    make_numpy_kv_cache,
    numpy_kv_bytes_per_block,
    rows_of_format,
)
from pellucid.backends.numpy.ops import NumpyOps
from pellucid.backends.numpy.weights import NumpyWeights
from pellucid.backends.ops import Decoder, ForwardBatch, KVCache
from pellucid.facts.model_config import ModelConfig


class NumpyBackend(Backend):
    """The ops' definition, run op by op.

    Args:
        dtype: float32, or float64 for tests that want exact answers.
        quantize_activations: whether rows become int8 where they meet integer weights; else the
            weights become floats.
    """

    name = "numpy"

    def __init__(
        self, dtype: type[np.floating[Any]] = np.float32, quantize_activations: bool = True
    ) -> None:
        if dtype not in (np.float32, np.float64):
            raise ValueError(f"dtype={dtype!r}: allowed are float32 and float64")
        self.ops = NumpyOps(dtype)
        self.weights = NumpyWeights(dtype, quantize_activations)
        self._dtype = np.dtype(dtype)

    @property
    def identity(self) -> str:
        return f"numpy {np.__version__} {self._dtype.name} {_blas_identity()}"

    def kv_bytes_per_block(self, config: ModelConfig, block_size: int, dtype: str) -> int:
        return numpy_kv_bytes_per_block(config, block_size, rows_of_format(dtype, self._dtype))

    def make_kv_cache(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int,
        dtype: str,
        num_state_slots: int = 1,
    ) -> NumpyKVCache:
        return make_numpy_kv_cache(
            config, num_blocks, block_size, dtype, num_state_slots, self._dtype
        )

    def compile(self, decoder: Decoder, config: ModelConfig) -> "NumpyDecoder":
        return NumpyDecoder(decoder, config, self._dtype.itemsize)


class NumpyDecoder(EagerDecoder):
    """A decoder over `NumpyOps`. Every number of a weight, and between ops, is a float of the same size."""

    def scratch_bytes(self, max_num_batched_tokens: int) -> int:
        """An estimate of the arrays that exist at once in the MLP."""
        numbers_per_token = 6 * self._mlp_width + 4 * self._config.hidden_size
        return round(max_num_batched_tokens * numbers_per_token * self._bytes_per_number)

    def step(
        self, batch: ForwardBatch, kv_cache: KVCache, draws: DrawTable | None = None
    ) -> StepLogits:
        assert not draws
        return StepLogits(self._decoder.forward(batch, kv_cache))


def _blas_identity() -> str:
    """The BLAS libraries of this process, and the processor that they chose their kernels for."""
    facts = [
        (library["internal_api"], library["version"], library.get("architecture"))
        for library in threadpool_info()
        if library["user_api"] == "blas"
    ]
    return repr(sorted(facts, key=repr))
