"""Passes weights from a checkpoint to a decoder, and checks each of them."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from pellucid.backends.base import MatrixShape, Weights
from pellucid.backends.joined_matrix import (
    JoinedMatrix,
    UniformMatrix,
    WeightMatrix,
    in_arrays,
    join_matrices,
    rows_of,
)
from pellucid.backends.ops import Matrix, Parameters, Weight
from pellucid.backends.quantization.blocks import BlockMatrix
from pellucid.backends.quantization.formats import LARGEST_EXPONENT, IntegerFormat, ScaleKind
from pellucid.backends.quantization.matrix import QuantizedMatrix
from pellucid.backends.row_table import RowTable
from pellucid.facts.model_config import LayerConfig, ModelConfig
from pellucid.loading.non_finite import first_non_finite
from pellucid.loading.steps import selects_rows, stored_rows, take
from pellucid.loading.tensor_source import ALL, RowIndex, TensorSource, as_floats
from pellucid.models.family import WeightNames
from pellucid.models.stored_weights import Shape, Source, Step

Progress = Callable[[int, int], None]  # (bytes read, bytes in all)

_MAX_NAMES_SHOWN = 5


def bytes_to_read(checkpoint: TensorSource, names: WeightNames) -> int:
    """Of the tensors of a checkpoint, but for those that no model uses, and those of which steps read rows."""
    used = (name for name in checkpoint if not names.is_unused(name) and not names.is_table(name))
    return sum(checkpoint.info(name).num_bytes for name in used)


class CheckpointParameters(Parameters):
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

    def make(self, weight: Weight) -> Any:
        """The handle of a weight.

        Raises:
            ValueError: a tensor is missing, has another shape or a dtype that we do not read, or
                holds a NaN or an infinity. The message names our weight, the checkpoint's tensor
                and its file.
        """
        handle = self._handle(weight)
        self.release()
        return handle

    def _handle(self, weight: Weight) -> Any:
        match weight.kind:
            case "matrix":
                num_rows = weight.shape[0]
                own = self._weights.own_rows(num_rows)
                matrix = self._quantized(weight.name, self.weight(weight, own))
                bias = self._bias(weight)
                handle = self._weights.matrix(matrix, None if bias is None else bias[own])
                return self._weights.shared(handle, num_rows)
            case "router":
                floats = as_floats(self.weight(weight))
                return self._weights.matrix(floats, self._bias(weight), rounds_activations=False)
            case "experts":
                return self._weights.stack(self._experts(weight))
            case "table":  # not read here: a NaN in it is found when a step reads it
                return self._weights.table(self.table_rows(weight))
            case "vector":
                numbers = as_floats(self.weight(weight))
                if weight.factor != 1.0:
                    numbers = numbers.astype(np.float32) * np.float32(weight.factor)
                return self._weights.vector(numbers)
            case "convolution":
                kernels = as_floats(self.weight(weight))
                return self._weights.vector(np.ascontiguousarray(kernels.T).reshape(-1))

    def _bias(self, weight: Weight) -> npt.NDArray[Any] | None:
        return as_floats(self.weight(weight.bias)) if weight.has_bias else None

    def _experts(self, weight: Weight) -> Iterator[Matrix]:
        own = self._weights.own_experts(weight.shape[0])
        matrices = self.expert_weights(weight, own)
        biases = self.expert_weights(weight.bias, own) if weight.has_bias else repeat(None)
        for number in range(weight.shape[0]):
            if number not in own:
                shape = self._pass_over_expert(weight, number)
                yield self._weights.planned([shape], weight.has_bias)
                continue
            matrix, bias = next(matrices), next(biases)
            if self._format is not None:
                matrix = self._quantized_part(weight.name, matrix)
            yield self._weights.expert(matrix, None if bias is None else as_floats(bias))

    def _pass_over_expert(self, weight: Weight, number: int) -> MatrixShape:
        """The shape of an expert of which no number is needed. Raises as `_pass_over` does."""
        own = tuple(weight.shape[1:])
        [source] = self._names.recipe(weight.name).sources
        stored = self._name_of_experts(source, "weight", weight.numbers)
        if stored is None:
            stored = self._pass_over(source.of_expert(number), "weight", own, weight.numbers)
            if weight.has_bias:
                self._pass_over(source.of_expert(number), "bias", own[:1], weight.bias.numbers)
        return MatrixShape(self._format or self._checkpoint.matrix_format(stored), *own)

    def table_rows(self, weight: Weight) -> RowTable:
        """The rows of a table in their file. Raises as `make` does."""
        [source] = self._names.recipe(weight.name).sources
        stored = self._name_in_checkpoint(source.tensor("weight"), weight.numbers)
        self._check_shape(stored, weight.numbers, weight.shape)
        self._unread.discard(stored)
        return self._checkpoint.table(stored)

    def weight(self, weight: Weight, rows: slice = ALL) -> WeightMatrix:
        """The numbers of a weight as they are stored, joined and contiguous. Raises as `make` does.

        Args:
            rows: which of them; others are not read where the file allows that.
        """
        module, kind = weight.numbers.rsplit(".", 1)
        sources = self._names.recipe(module).sources
        rows_of_sources = weight.shape[:1] if len(sources) == 1 else weight.parts
        wanted, first = range(weight.shape[0])[rows], 0
        parts = []
        for source, num_rows in zip(sources, rows_of_sources, strict=True):
            own = slice(max(wanted.start - first, 0), min(wanted.stop - first, num_rows))
            shape = num_rows, *weight.shape[1:]
            if own.start < own.stop:
                parts.append(self._rows_of(source, kind, shape, weight.numbers, own))
            else:
                self._pass_over(source, kind, shape, weight.numbers)
            first += num_rows
        joined = join_matrices(parts)
        assert joined.shape == (len(wanted), *weight.shape[1:])
        return joined

    def expert_weights(
        self, weight: Weight, experts: range | None = None
    ) -> Iterator[UniformMatrix]:
        """The numbers of a weight [experts, ...] as they are stored, expert by expert: in a tensor of each, or in
        one of all. Raises as `make` does.

        Args:
            experts: which of them; None: all.
        """
        our_name, (num_experts, *own) = weight.numbers, weight.shape
        own_experts = range(num_experts) if experts is None else experts
        module, kind = our_name.rsplit(".", 1)
        [source] = self._names.recipe(module).sources
        if (name := self._name_of_experts(source, kind, our_name)) is not None:
            together = source.of_all_experts
            shapes = together.shapes(tuple(own), self._checkpoint.info(name).shape[1:])
            rows = ALL
            if len(own_experts) < num_experts:
                rows = slice(own_experts.start, own_experts.stop)
            tensor = self._tensor(name, (num_experts, *shapes[0]), our_name, rows)
            for part in _parts(tensor, len(own_experts)):
                yield self._after_steps(source.steps, part, shapes[1:], name, our_name)
            return
        for expert in own_experts:
            yield self._rows_of(source.of_expert(expert), kind, tuple(own), our_name)
            self.release()

    def _name_of_experts(self, source: Source, kind: str, our_name: str) -> str | None:
        """The tensor of all experts of a layer; None: each has one of its own."""
        together = source.of_all_experts
        candidates = self._names.candidates(together.tensor(kind))
        if source == together or any(each in self._checkpoint for each in candidates):
            return self._name_in_checkpoint(together.tensor(kind), our_name)
        return None

    def _rows_of(
        self, source: Source, kind: str, shape: Shape, our_name: str, rows: slice = ALL
    ) -> UniformMatrix:
        """What a source gives to our weight, `shape`: the rows asked for."""
        name = self._name_in_checkpoint(source.tensor(kind), our_name)
        shapes = source.shapes(shape, self._checkpoint.info(name).shape)
        if len(range(shape[0])[rows]) == shape[0]:
            tensor = self._tensor(name, shapes[0], our_name)
            return self._after_steps(source.steps, tensor, shapes[1:], name, our_name)
        layer = self._layer_of(our_name)
        with self._named_errors(name, our_name):
            stored = stored_rows(source.steps, shapes, layer, rows)
        if stored is None:
            tensor = self._tensor(name, shapes[0], our_name)
            whole = self._after_steps(source.steps, tensor, shapes[1:], name, our_name)
            return rows_of(whole, rows)
        tensor = self._tensor(name, shapes[0], our_name, stored)
        left = [step for step in source.steps if not selects_rows(step)]
        return self._after_steps(left, tensor, [tensor.shape] * len(left), name, our_name)

    def _pass_over(self, source: Source, kind: str, shape: Shape, our_name: str) -> str:
        """Checks the shape of a tensor of which no number is needed. Returns its name."""
        name = self._name_in_checkpoint(source.tensor(kind), our_name)
        shapes = source.shapes(shape, self._checkpoint.info(name).shape)
        self._check_shape(name, our_name, shapes[0])
        self._mark_read(name)
        return name

    def _after_steps(
        self,
        steps: Sequence[Step],
        tensor: UniformMatrix,
        shapes: Sequence[Shape],
        name: str,
        our_name: str,
    ) -> UniformMatrix:
        """The tensor `name` after `steps`, each of which leads to one of `shapes`."""
        layer = self._layer_of(our_name)
        with self._named_errors(name, our_name):
            for step, shape in zip(steps, shapes, strict=True):
                tensor = take(step, tensor, shape, layer)
        return np.ascontiguousarray(tensor) if isinstance(tensor, np.ndarray) else tensor

    def _layer_of(self, our_name: str) -> LayerConfig | None:
        match = re.match(r"layers\.(\d+)\.", our_name)
        return None if match is None else self._config.layers[int(match[1])]

    @contextmanager
    def _named_errors(self, name: str, our_name: str) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            path = self._checkpoint.path(name)
            raise ValueError(f"{path}: tensor {name} (our {our_name}) {error}") from None

    def release(self) -> None:
        """Frees the memory of the tensors read so far; `make` does so by itself."""
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

    def _quantized_part(self, name: str, weight: UniformMatrix) -> UniformMatrix:
        if not isinstance(weight, np.ndarray) and weight.format == self._format:
            return weight
        assert self._format is not None
        try:
            return self._weights.quantize(as_floats(weight), self._format)
        except ValueError as error:
            raise ValueError(f"{self._checkpoint.location}: our {name}: {error}") from None

    def _tensor(
        self, name: str, shape: Shape, our_name: str, index: RowIndex = ALL
    ) -> UniformMatrix:
        """The checkpoint's tensor `name`, whose shape must be `shape`: what `index` selects along its first axis,
        checked."""
        path = self._checkpoint.path(name)
        # One row may be stored without its axis.
        is_row = (
            len(shape) == 2 and shape[0] == 1 and self._checkpoint.info(name).shape == shape[1:]
        )
        if not is_row:
            self._check_shape(name, our_name, shape)
        tensor = self._checkpoint.tensor(name, index)
        if not (
            self._weights.takes_blocks and isinstance(tensor, BlockMatrix) and tensor.is_finite
        ):
            tensor = in_arrays(tensor)
        for numbers in _floats(tensor):
            if (place := first_non_finite(numbers)) is not None:
                among = "" if index is ALL else " of the rows of this process"
                raise ValueError(
                    f"{path}: tensor {name} (our {our_name}) holds {numbers[place]} at "
                    f"{list(place)}{among}: weights must be finite"
                )
        if (exponent := _largest_exponent(tensor)) > LARGEST_EXPONENT:
            raise ValueError(
                f"{path}: tensor {name} (our {our_name}) has a scale of exponent {exponent}: allowed are"
                f" exponents up to {LARGEST_EXPONENT}, which are 2^{LARGEST_EXPONENT - 127}"
            )
        self._mark_read(name)
        self._in_use.append(name)
        return as_floats(tensor).reshape(shape) if is_row else tensor

    def _check_shape(self, name: str, our_name: str, shape: Shape) -> None:
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
            self._names.recipe("embed_tokens").sources[0].tensor("weight"), "embed_tokens.weight"
        )
        head_weight, embedding_weight = map(self._checkpoint.tensor, (head, embedding))
        if not np.array_equal(as_floats(head_weight), as_floats(embedding_weight)):
            raise ValueError(
                f"{self._checkpoint.path(head)}: {head} differs from {embedding}, although "
                "config.json says tie_word_embeddings=true: must be false to use it"
            )
        self._mark_read(head)


def _floats(tensor: UniformMatrix) -> list[npt.NDArray[Any]]:
    """The arrays of a tensor that could hold a NaN or an infinity."""
    if isinstance(tensor, BlockMatrix):
        return []  # it would have been unpacked
    if isinstance(tensor, np.ndarray):
        return [tensor]
    return [array for array in tensor.arrays.values() if array.dtype.kind == "f"]


def _largest_exponent(tensor: UniformMatrix) -> int:
    """Of scales that are powers of two; 0 where a tensor has other scales or none."""
    if isinstance(tensor, QuantizedMatrix) and tensor.format.scale is ScaleKind.EXPONENT:
        return int(tensor.scales.max(initial=0))
    return 0


class KeptParameters(Parameters):
    """Asks `source` once for each weight, so that a second decoder gets the same handles."""

    def __init__(self, source: Parameters) -> None:
        self._make = cache(source.make)

    def make(self, weight: Weight) -> Any:
        return self._make(weight)


def _parts(tensor: UniformMatrix, count: int) -> Iterator[UniformMatrix]:
    """The matrices [N, K] of a tensor [count, N, K], whose codes stand in rows [count * N]."""
    if isinstance(tensor, np.ndarray):
        yield from tensor
        return
    num_rows = tensor.shape[0] // count
    for index in range(count):
        yield tensor.rows(slice(index * num_rows, (index + 1) * num_rows))
