"""Takes the steps that make our rows of a stored tensor."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pellucid.backends.joined_matrix import UniformMatrix, rows_of
from pellucid.facts.model_config import AttentionConfig, LayerConfig
from pellucid.loading.tensor_source import RowIndex, as_floats
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
            return rows_of(tensor, slice(step.index, None, 2))
        case steps.Half():
            return rows_of(tensor, slice(step.index * shape[0], (step.index + 1) * shape[0]))
        case steps.Depthwise():
            return as_floats(tensor).reshape(shape)
        case steps.Rows():
            assert layer is not None
            return _ordered(tensor, np.array(step.order(layer)))
        case steps.HalvesFirst():
            assert layer is not None and layer.attention is not None
            return rows_of(tensor, _halves_first(tensor.shape[0], layer.attention))
    raise NotImplementedError(step)


def selects_rows(step: steps.Step) -> bool:
    """Whether a step only leaves out rows, or puts them in another order."""
    return isinstance(step, steps.Half | steps.Rows | steps.HalvesFirst)


def stored_rows(
    way: Sequence[steps.Step],
    shapes: Sequence[steps.Shape],
    layer: LayerConfig | None,
    rows: slice,
) -> RowIndex | None:
    """The rows of a stored tensor of which `rows` of ours are made. Other arguments and errors are those of `take`.

    Args:
        way: the steps.
        shapes: before the first step, and after each.

    Returns:
        None where a step mixes rows.
    """
    order = np.arange(shapes[0][0])
    for step, shape in zip(way, shapes[1:], strict=True):
        if selects_rows(step):
            order = np.asarray(take(step, order, shape, layer))
        elif not isinstance(step, steps.Offset | steps.NegativeExp):
            return None
    order = order[rows]
    first, last = int(order[0]), int(order[-1])
    follow_each_other = np.array_equal(order, np.arange(first, last + 1))
    return slice(first, last + 1) if follow_each_other else order


def _ordered(tensor: UniformMatrix, order: npt.NDArray[np.intp]) -> UniformMatrix:
    if order.max() >= tensor.shape[0]:
        raise ValueError(
            f"has {tensor.shape[0]} rows: config.json asks for {order.max() + 1} at least"
        )
    return rows_of(tensor, order)


def _halves_first(num_rows: int, attention: AttentionConfig) -> npt.NDArray[np.intp]:
    """The order of the rows of q or k [heads * D] whose rotated pairs of rows stand side by side."""
    heads = np.arange(num_rows).reshape(-1, attention.head_dim)
    dim = attention.head_dim if attention.rope is None else attention.rope.dim
    pairs = heads[:, :dim].reshape(len(heads), -1, 2)
    halves = pairs.transpose(0, 2, 1).reshape(len(heads), dim)
    return np.concatenate([halves, heads[:, dim:]], axis=1).reshape(-1)
