"""Passes weights from a checkpoint to a decoder, and checks each of them."""

from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from pellucid.backends.base import Weights
from pellucid.backends.joined_matrix import (
    JoinedMatrix,
    UniformMatrix,
    WeightMatrix,
    join_matrices,
)
from pellucid.backends.ops import Matrix, MatrixStack, Parameters, Vector
from pellucid.backends.quantization.formats import LARGEST_EXPONENT, IntegerFormat, ScaleKind
from pellucid.backends.quantization.matrix import QuantizedMatrix
from pellucid.backends.row_table import RowTable
from pellucid.facts.model_config import AttentionConfig, ModelConfig
from pellucid.loading.non_finite import first_non_finite
from pellucid.loading.tensor_source import TensorSource, as_floats
from pellucid.models.family import WeightNames

Progress = Callable[[int, int], None]  # (bytes read, bytes in all)

_MAX_NAMES_SHOWN = 5


def bytes_to_read(checkpoint: TensorSource, names: WeightNames) -> int:
    """Of the tensors of a checkpoint, but for those that no model uses, and those of which steps read rows."""
    used = (name for name in checkpoint if not names.is_unused(name) and not names.is_table(name))
    return sum(checkpoint.info(name).num_bytes for name in used)


class CheckpointParameters:
    """The `Parameters` of a checkpoint: finds, checks and joins tensors, and has handles made of them.

    Args:
        checkpoint: the tensors.
        names: their names in the checkpoint.
        config: the checkpoint's configuration.
        weights: makes the handles.
        weight_format: the format to which all matrices are quantized; None: each keeps its stored format.
        on_progress: called after each tensor; bytes that `weights` has not read yet are not counted.
    """

    def __init__(
        self,
        checkpoint: TensorSource,
        names: WeightNames,
        config: ModelConfig,
        weights: Weights,
        weight_format: IntegerFormat | None = None,
        on_progress: Progress | None = None,
    ) -> None:
        self._checkpoint = checkpoint
        self._config = config
        self._weights = weights
        self._format = weight_format
        self._on_progress = on_progress
        self._names = names
        self._unread = {name for name in checkpoint if not self._names.is_unused(name)}
        self._total_bytes = bytes_to_read(checkpoint, names)
        self._done_bytes = 0
        self._in_use: list[str] = []  # tensors of the current weight

    def matrix(
        self,
        name: str,
        num_rows: int,
        num_columns: int,
        bias: bool = False,
        parts: tuple[int, ...] = (),
    ) -> Matrix:
        """`name`.weight [num_rows, num_columns] and, if asked for, `name`.bias [num_rows].

        Args:
            parts: rows of each of the matrices that it joins, which the checkpoint may hold apart.

        Raises:
            ValueError: a tensor is missing, has another shape or a dtype that we do not read, or
                holds a NaN or an infinity. The message names our weight, the checkpoint's tensor
                and its file.
        """
        shape = (num_rows, num_columns)
        weight = self._quantized(name, self.weight(f"{name}.weight", shape, parts))
        bias_vector = as_floats(self.weight(f"{name}.bias", (num_rows,), parts)) if bias else None
        handle = self._weights.matrix(weight, bias_vector)
        self.release()
        return handle

    def router(self, name: str, num_experts: int, num_columns: int, bias: bool = False) -> Matrix:
        """`name`.weight [num_experts, num_columns] as the floats that the checkpoint has, and its bias.
        Raises as `matrix` does."""
        weight = as_floats(self.weight(f"{name}.weight", (num_experts, num_columns)))
        bias_vector = as_floats(self.weight(f"{name}.bias", (num_experts,))) if bias else None
        handle = self._weights.matrix(weight, bias_vector, rounds_activations=False)
        self.release()
        return handle

    def experts(
        self, name: str, num_experts: int, num_rows: int, num_columns: int, bias: bool = False
    ) -> MatrixStack:
        """`name`.weight [num_rows, num_columns] of each expert and, if asked for, `name`.bias [num_rows].
        Raises as `matrix` does."""
        shape = (num_experts, num_rows, num_columns)
        weights = self.expert_weights(f"{name}.weight", shape)
        no_biases = [None] * num_experts
        biases = self.expert_weights(f"{name}.bias", shape[:2]) if bias else no_biases
        handles = []
        for weight, own_bias in zip(weights, biases, strict=True):
            bias_vector = None if own_bias is None else as_floats(own_bias)
            if self._format is not None:
                weight = self._quantized_part(name, weight)
            handles.append(self._weights.expert(weight, bias_vector))
        self.release()
        return tuple(handles)

    def table(self, name: str, num_rows: int, num_columns: int) -> Matrix:
        """`name`.weight [num_rows, num_columns] as it is stored, which is not read here: a NaN in it is found
        when a step reads it. Raises as `matrix` does."""
        return self._weights.table(self.stored_table(name, num_rows, num_columns))

    def stored_table(self, name: str, num_rows: int, num_columns: int) -> RowTable:
        """The rows of `name`.weight in their file. Raises as `matrix` does."""
        recipe, our_name = self._names.recipe(name), f"{name}.weight"
        [source] = recipe.sources
        stored = self._name_in_checkpoint(recipe.tensor(source, "weight"), our_name)
        self._check_shape(stored, our_name, (num_rows, num_columns))
        self._unread.discard(stored)
        return self._checkpoint.table(stored)

    def vector(self, name: str, size: int, scale: float = 1.0) -> Vector:
        """`name` [size] times `scale`; `name` ends in ".weight" or ".bias". Raises as `matrix` does."""
        numbers = as_floats(self.weight(name, (size,)))
        if scale != 1.0:
            numbers = numbers.astype(np.float32) * np.float32(scale)
        handle = self._weights.vector(numbers)
        self.release()
        return handle

    def convolution(self, name: str, num_channels: int, kernel_size: int) -> Vector:
        """`name`.weight [num_channels, kernel_size] as [kernel_size * num_channels], in order of the rows that
        a row reads. Raises as `matrix` does."""
        weight = self.convolution_weight(name, num_channels, kernel_size)
        handle = self._weights.vector(np.ascontiguousarray(weight.T).reshape(-1))
        self.release()
        return handle

    def weight(
        self, name: str, shape: tuple[int, ...], parts: tuple[int, ...] = ()
    ) -> WeightMatrix:
        """Our weight `name` as it is stored, joined and contiguous. Raises as `matrix` does."""
        module, kind = name.rsplit(".", 1)
        recipe = self._names.recipe(module)
        rows_of_sources = shape[:1] if len(recipe.sources) == 1 else parts
        order = None
        if recipe.rows is not None:
            order = np.array(recipe.rows(self._config.layers[int(module.split(".")[1])]))
            first = self._name_in_checkpoint(recipe.tensor(recipe.sources[0], kind), name)
            # Of a tensor that holds more than this weight all rows are read.
            rows_of_sources = self._checkpoint.info(first).shape[:1] + rows_of_sources[1:]
            if order.max() >= rows_of_sources[0]:
                raise ValueError(
                    f"{self._checkpoint.path(first)}: tensor {first} (our {name}) has"
                    f" {rows_of_sources[0]} rows: config.json asks for {order.max() + 1} at least"
                )
        sources = [
            self._source(
                recipe.tensor(source, kind), (num_rows, *shape[1:]), recipe.transposed, name
            )
            for source, num_rows in zip(recipe.sources, rows_of_sources, strict=True)
        ]
        if recipe.interleaved:
            facts = self._config.layers[int(module.split(".")[1])].attention
            assert facts is not None
            sources = [*(_halves_first(each, facts) for each in sources[:2]), *sources[2:]]
        if order is not None:
            sources[0] = _rows(sources[0], order)
        weight = join_matrices(sources)
        assert weight.shape == shape
        if recipe.negative_exp:
            weight = -np.exp(as_floats(weight).astype(np.float32))
        if recipe.offset and kind == "weight":
            weight = as_floats(weight).astype(np.float32) + np.float32(recipe.offset)
        return weight

    def convolution_weight(
        self, name: str, num_channels: int, kernel_size: int
    ) -> npt.NDArray[Any]:
        """`name`.weight [num_channels, kernel_size]. Raises as `matrix` does."""
        recipe, our_name = self._names.recipe(name), f"{name}.weight"
        stored = self._name_in_checkpoint(recipe.tensor(recipe.sources[0], "weight"), our_name)
        # torch's has an axis of one input channel in the middle, MLX's at the end.
        shape: tuple[int, ...] = num_channels, kernel_size
        if len(actual := self._checkpoint.info(stored).shape) == 3:
            shape = (*shape, 1) if actual[2] == 1 else (num_channels, 1, kernel_size)
        weight = as_floats(self.weight(our_name, shape))
        return weight.reshape(num_channels, kernel_size)

    def expert_weights(self, name: str, shape: tuple[int, ...]) -> Iterator[UniformMatrix]:
        """Our weight `name` [experts, ...] as it is stored, expert by expert: in a tensor of each, or in
        one of all. Raises as `matrix` does."""
        module, kind = name.rsplit(".", 1)
        recipe = self._names.recipe(module)
        [source] = recipe.sources
        num_experts, *own_shape = shape
        together = recipe.tensor(source.replace(".{e}", ""), kind)
        if "{e}" not in source or any(
            candidate in self._checkpoint for candidate in self._names.candidates(together)
        ):
            num_rows, stored_shape = own_shape[0], list(own_shape)
            chosen: slice | None = None
            if recipe.alternate is not None:
                chosen = slice(recipe.alternate, None, 2)
            if recipe.half is not None:
                chosen = slice(recipe.half * num_rows, (recipe.half + 1) * num_rows)
            if chosen is not None:
                stored_shape[0] *= 2
            transposed = recipe.transposed
            if recipe.either_way:
                stored = self._checkpoint.info(self._name_in_checkpoint(together, name))
                transposed = stored.shape != (num_experts, *stored_shape)
            if transposed:
                stored_shape.reverse()
            tensor = self._source(together, (num_experts, *stored_shape), False, name)
            for part in _parts(tensor, num_experts):
                rows = as_floats(part).T if transposed else part
                if chosen is not None:
                    rows = rows.rows(chosen) if isinstance(rows, QuantizedMatrix) else rows[chosen]
                yield np.ascontiguousarray(rows) if isinstance(rows, np.ndarray) else rows
            return
        for expert in range(num_experts):
            if expert:
                self.release()
            own = recipe.tensor(source.replace("{e}", str(expert)), kind)
            yield self._source(own, tuple(own_shape), False, name)

    def release(self) -> None:
        """Frees the memory of the tensors read so far; `matrix` and `vector` do so by themselves."""
        for name in self._in_use:
            self._checkpoint.release(name)
        self._in_use.clear()

    def check_all_used(self) -> None:
        """Checks that no tensor is left over. Call it after the decoder has been built.

        Raises:
            ValueError: the checkpoint holds tensors that the decoder did not ask for, so it is
                not the model that config.json describes.
        """
        if self._config.tie_word_embeddings:
            self._drop_tied_head()
        for name in [name for name in self._unread if name.endswith(".bias")]:
            # AutoGPTQ wrote one for each matrix, of models without biases as well.
            if not as_floats(self._checkpoint.tensor(name)).any():
                self._mark_read(name)
        if self._unread:
            names = sorted(self._unread)
            shown = ", ".join(names[:_MAX_NAMES_SHOWN])
            if len(names) > _MAX_NAMES_SHOWN:
                shown += f" and {len(names) - _MAX_NAMES_SHOWN} more"
            raise ValueError(
                f"{self._checkpoint.path(names[0])}: {self._config.architecture} as config.json "
                f"describes it has no place for the tensors {shown}"
            )

    def _quantized(self, name: str, weight: WeightMatrix) -> WeightMatrix:
        if self._format is None:
            return weight
        if isinstance(weight, JoinedMatrix):
            return join_matrices([self._quantized_part(name, part) for part in weight.parts])
        return self._quantized_part(name, weight)

    def _quantized_part(self, name: str, weight: UniformMatrix) -> QuantizedMatrix:
        if isinstance(weight, QuantizedMatrix) and weight.format == self._format:
            return weight
        assert self._format is not None
        try:
            return self._weights.quantize(as_floats(weight), self._format)
        except ValueError as error:
            raise ValueError(f"{self._checkpoint.location}: our {name}: {error}") from None

    def _source(
        self, name: str, shape: tuple[int, ...], transposed: bool, our_name: str
    ) -> UniformMatrix:
        """The checkpoint's tensor `name` as we lay it out, `shape`."""
        name = self._name_in_checkpoint(name, our_name)
        path = self._checkpoint.path(name)
        # One row may be stored without its axis.
        is_row = (
            len(shape) == 2 and shape[0] == 1 and self._checkpoint.info(name).shape == shape[1:]
        )
        if not is_row:
            self._check_shape(name, our_name, shape[::-1] if transposed else shape)
        tensor = self._checkpoint.tensor(name)
        for numbers in _floats(tensor):
            if (index := first_non_finite(numbers)) is not None:
                raise ValueError(
                    f"{path}: tensor {name} (our {our_name}) holds {numbers[index]} at "
                    f"{list(index)}: weights must be finite"
                )
        if (exponent := _largest_exponent(tensor)) > LARGEST_EXPONENT:
            raise ValueError(
                f"{path}: tensor {name} (our {our_name}) has a scale of exponent {exponent}: allowed are"
                f" exponents up to {LARGEST_EXPONENT}, which are 2^{LARGEST_EXPONENT - 127}"
            )
        self._mark_read(name)
        self._in_use.append(name)
        if is_row:
            return as_floats(tensor).reshape(shape)
        return np.ascontiguousarray(as_floats(tensor).T) if transposed else tensor

    def _check_shape(self, name: str, our_name: str, shape: tuple[int, ...]) -> None:
        if (actual := self._checkpoint.info(name).shape) != shape:
            raise ValueError(
                f"{self._checkpoint.path(name)}: tensor {name} (our {our_name}) has shape"
                f" {list(actual)}: config.json asks for {list(shape)}"
            )

    def _name_in_checkpoint(self, name: str, our_name: str) -> str:
        candidates = self._names.candidates(name)
        for candidate in candidates:
            if candidate in self._checkpoint:
                return candidate
        raise ValueError(
            f"{self._checkpoint.location}: tensor {' or '.join(candidates)} (our {our_name}) is missing"
        )

    def _mark_read(self, name: str) -> None:
        if name in self._unread:  # some tensors hold two weights
            self._unread.discard(name)
            self._done_bytes += self._checkpoint.info(name).num_bytes
        if self._on_progress is not None:
            done = max(0, self._done_bytes - self._weights.waiting_bytes)
            self._on_progress(done, self._total_bytes)

    def _drop_tied_head(self) -> None:
        """Some checkpoints hold the shared matrix twice."""
        heads = [f"{prefix}lm_head.weight" for prefix in self._names.prefixes]
        head = next((name for name in heads if name in self._unread), None)
        if head is None:
            return
        embedding = self._name_in_checkpoint(
            f"{self._names.recipe('embed_tokens').sources[0]}.weight", "embed_tokens.weight"
        )
        head_weight, embedding_weight = map(self._checkpoint.tensor, (head, embedding))
        if not np.array_equal(as_floats(head_weight), as_floats(embedding_weight)):
            raise ValueError(
                f"{self._checkpoint.path(head)}: {head} differs from {embedding}, although "
                "config.json says tie_word_embeddings=true: must be false to use it"
            )
        self._mark_read(head)


def _halves_first(tensor: UniformMatrix, facts: AttentionConfig) -> UniformMatrix:
    """q or k [heads * D, ...] whose rotated pairs of rows stand side by side: the first halves of all
    pairs of a head first, then the second ones."""
    heads = np.arange(tensor.shape[0]).reshape(-1, facts.head_dim)
    dim = facts.head_dim if facts.rope is None else facts.rope.dim
    pairs = heads[:, :dim].reshape(len(heads), -1, 2)
    halves = pairs.transpose(0, 2, 1).reshape(len(heads), dim)
    return _rows(tensor, np.concatenate([halves, heads[:, dim:]], axis=1).reshape(-1))


def _rows(tensor: UniformMatrix, order: npt.NDArray[np.intp]) -> UniformMatrix:
    return tensor.rows(order) if isinstance(tensor, QuantizedMatrix) else np.asarray(tensor[order])


def _floats(tensor: UniformMatrix) -> list[npt.NDArray[Any]]:
    """The arrays of a tensor that could hold a NaN or an infinity."""
    if not isinstance(tensor, QuantizedMatrix):
        return [tensor]
    return [array for array in tensor.arrays.values() if array.dtype.kind == "f"]


def _largest_exponent(tensor: UniformMatrix) -> int:
    """Of scales that are powers of two; 0 where a tensor has other scales or none."""
    if isinstance(tensor, QuantizedMatrix) and tensor.format.scale is ScaleKind.EXPONENT:
        return int(tensor.scales.max(initial=0))
    return 0


class _KeptParameters:
    """Asks `source` once for each weight, whatever its kind."""

    def __init__(self, source: Parameters) -> None:
        self._source = source
        self._handles: dict[str, Any] = {}

    def __getattr__(self, kind: str) -> Callable[..., Any]:
        def kept(name: str, *sizes: Any, **options: Any) -> Any:
            if name not in self._handles:
                self._handles[name] = getattr(self._source, kind)(name, *sizes, **options)
            return self._handles[name]

        return kept


def kept_parameters(source: Parameters) -> Parameters:
    """`Parameters` that keep the handles of `source`, so that a second decoder gets the same ones."""
    return cast(Parameters, _KeptParameters(source))


def _parts(tensor: UniformMatrix, count: int) -> Iterator[UniformMatrix]:
    """The matrices [N, K] of a tensor [count, N, K], whose codes stand in rows [count * N]."""
    if not isinstance(tensor, QuantizedMatrix):
        yield from tensor
        return
    num_rows = tensor.shape[0] // count
    for index in range(count):
        yield tensor.rows(slice(index * num_rows, (index + 1) * num_rows))
