"""How much memory weights will take: counted before one of them is read."""

import math
from dataclasses import dataclass

from pellucid.backends.base import Backend
from pellucid.backends.quantization.formats import FORMATS
from pellucid.loading.stored_model import StoredModel

VECTOR_ITEM_BYTES = 4  # norms and biases are f32 everywhere


@dataclass(frozen=True)
class PlannedWeights:
    """Bytes in memory; what layouts of kernels pad, under a percent, is left out.

    Args:
        total: of all weights.
        largest: of the largest matrix, which is there twice while it is laid out.
    """

    total: int
    largest: int


def plan_weights(model: StoredModel, backend: Backend, quantization: str) -> PlannedWeights:
    """Counts the weights of a checkpoint in the formats that they will have.

    Args:
        model: opened.
        backend: where they go.
        quantization: as in `EngineConfig`.
    """
    sizes = [
        _tensor_bytes(model, name, backend, quantization)
        for name in model.tensors
        if not model.names.unused.fullmatch(name)
    ]
    return PlannedWeights(sum(sizes), max(sizes, default=0))


def check_weights_fit(
    model: StoredModel, weights: PlannedWeights, quantization: str, available: int | None
) -> None:
    """Before anything is read: a process that runs out of memory ends without a word.

    Args:
        available: bytes; None: unknown.

    Raises:
        ValueError: the weights need more than there is.
    """
    needed = weights.total + weights.largest
    if available is not None and needed > available:
        raise ValueError(
            f"{model.path}: with quantization={quantization!r} its weights take {weights.total} bytes,"
            f" and {weights.largest} more while they are loaded; there are {available}: quantization"
            " to int8 or int4 takes less, and so does a smaller model"
        )


def _tensor_bytes(model: StoredModel, name: str, backend: Backend, quantization: str) -> int:
    info = model.tensors.info(name)
    if len(info.shape) != 2:
        return math.prod(info.shape) * VECTOR_ITEM_BYTES
    if backend.weight_itemsize is not None:
        return math.prod(info.shape) * backend.weight_itemsize
    if (weight_format := FORMATS.get(quantization)) is None:
        return model.tensors.memory_bytes(name)
    arrays = weight_format.arrays(*info.shape).values()
    return sum(dtype.itemsize * math.prod(shape) for dtype, shape in arrays)
