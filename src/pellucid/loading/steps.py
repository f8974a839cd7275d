"""Takes the steps that make our rows of a stored tensor."""

import numpy as np
import numpy.typing as npt

from pellucid.backends.joined_matrix import UniformMatrix
from pellucid.backends.quantization.matrix import QuantizedMatrix
from pellucid.facts.model_config import AttentionConfig, LayerConfig
from pellucid.loading.tensor_source import as_floats
from pellucid.models import stored_weights as steps


def take(
    step: steps.Step, tensor: UniformMatrix, shape: steps.Shape, layer: LayerConfig | None
) -> UniformMatrix:
    """A tensor after a step, perhaps a view of it.

    Args:
        tensor: before the step.
        shape: after it.
        layer: the facts of the weight's layer, if it belongs to one.

    Raises:
        ValueError: the tensor has too few rows. The message continues the tensor's name.
    """
    match step:
        case steps.Transposed():
            return np.asarray(as_floats(tensor).T)
        case steps.TransposedOrNot():
            return tensor if tensor.shape == shape else np.asarray(as_floats(tensor).T)
        case steps.Offset():
            return np.asarray(as_floats(tensor).astype(np.float32) + np.float32(step.amount))
        case steps.NegativeExp():
            return np.asarray(-np.exp(as_floats(tensor).astype(np.float32)))
        case steps.Alternate():
            return _rows(tensor, slice(step.index, None, 2))
        case steps.Half():
            return _rows(tensor, slice(step.index * shape[0], (step.index + 1) * shape[0]))
        case steps.Depthwise():
            return as_floats(tensor).reshape(shape)
        case steps.Rows():
            assert layer is not None
            return _ordered(tensor, np.array(step.order(layer)))
        case steps.HalvesFirst():
            assert layer is not None and layer.attention is not None
            return _rows(tensor, _halves_first(tensor.shape[0], layer.attention))
    raise NotImplementedError(step)


def _ordered(tensor: UniformMatrix, order: npt.NDArray[np.intp]) -> UniformMatrix:
    if order.max() >= tensor.shape[0]:
        raise ValueError(
            f"has {tensor.shape[0]} rows: config.json asks for {order.max() + 1} at least"
        )
    return _rows(tensor, order)


def _halves_first(num_rows: int, attention: AttentionConfig) -> npt.NDArray[np.intp]:
    """The order of the rows of q or k [heads * D] whose rotated pairs of rows stand side by side."""
    heads = np.arange(num_rows).reshape(-1, attention.head_dim)
    dim = attention.head_dim if attention.rope is None else attention.rope.dim
    pairs = heads[:, :dim].reshape(len(heads), -1, 2)
    halves = pairs.transpose(0, 2, 1).reshape(len(heads), dim)
    return np.concatenate([halves, heads[:, dim:]], axis=1).reshape(-1)


def _rows(tensor: UniformMatrix, index: slice | npt.NDArray[np.intp]) -> UniformMatrix:
    return tensor.rows(index) if isinstance(tensor, QuantizedMatrix) else np.asarray(tensor[index])
