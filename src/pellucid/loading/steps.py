"""Takes the steps that make our rows of a stored tensor."""

from functools import singledispatch

import numpy as np

from pellucid.backends.joined_matrix import UniformMatrix
from pellucid.backends.quantization.matrix import QuantizedMatrix
from pellucid.facts.model_config import LayerConfig
from pellucid.loading.tensor_source import as_floats
from pellucid.models.stored_weights import (
    Alternate,
    Depthwise,
    Half,
    HalvesFirst,
    NegativeExp,
    Offset,
    Rows,
    Shape,
    Step,
    Transposed,
    TransposedOrNot,
)


@singledispatch
def take(
    step: Step, tensor: UniformMatrix, shape: Shape, layer: LayerConfig | None
) -> UniformMatrix:
    """A tensor after a step, perhaps a view of it.

    Args:
        tensor: before the step.
        shape: after it.
        layer: the facts of the weight's layer, if it belongs to one.

    Raises:
        ValueError: the tensor has too few rows. The message continues the tensor's name.
    """
    raise NotImplementedError(step)


@take.register
def _(_: Transposed, tensor: UniformMatrix, shape: Shape, layer: LayerConfig) -> UniformMatrix:
    return np.asarray(as_floats(tensor).T)


@take.register
def _(_: TransposedOrNot, tensor: UniformMatrix, shape: Shape, layer: LayerConfig) -> UniformMatrix:
    return tensor if tensor.shape == shape else as_floats(tensor).T


@take.register
def _(step: Offset, tensor: UniformMatrix, shape: Shape, layer: LayerConfig) -> UniformMatrix:
    return np.asarray(as_floats(tensor).astype(np.float32) + np.float32(step.amount))


@take.register
def _(_: NegativeExp, tensor: UniformMatrix, shape: Shape, layer: LayerConfig) -> UniformMatrix:
    return np.asarray(-np.exp(as_floats(tensor).astype(np.float32)))


@take.register
def _(step: Half, tensor: UniformMatrix, shape: Shape, layer: LayerConfig) -> UniformMatrix:
    return _rows(tensor, slice(step.index * shape[0], (step.index + 1) * shape[0]))


@take.register
def _(step: Alternate, tensor: UniformMatrix, shape: Shape, layer: LayerConfig) -> UniformMatrix:
    return _rows(tensor, slice(step.index, None, 2))


@take.register
def _(step: Rows, tensor: UniformMatrix, shape: Shape, layer: LayerConfig) -> UniformMatrix:
    order = np.array(step.order(layer))
    if order.max() >= tensor.shape[0]:
        raise ValueError(
            f"has {tensor.shape[0]} rows: config.json asks for {order.max() + 1} at least"
        )
    return _rows(tensor, order)


@take.register
def _(_: HalvesFirst, tensor: UniformMatrix, shape: Shape, layer: LayerConfig) -> UniformMatrix:
    attention = layer.attention
    assert attention is not None
    heads = np.arange(tensor.shape[0]).reshape(-1, attention.head_dim)
    dim = attention.head_dim if attention.rope is None else attention.rope.dim
    pairs = heads[:, :dim].reshape(len(heads), -1, 2)
    halves = pairs.transpose(0, 2, 1).reshape(len(heads), dim)
    return _rows(tensor, np.concatenate([halves, heads[:, dim:]], axis=1).reshape(-1))


@take.register
def _(_: Depthwise, tensor: UniformMatrix, shape: Shape, layer: LayerConfig) -> UniformMatrix:
    return as_floats(tensor).reshape(shape)


def _rows(tensor: UniformMatrix, index: slice | np.ndarray) -> UniformMatrix:
    return tensor.rows(index) if isinstance(tensor, QuantizedMatrix) else np.asarray(tensor[index])
