"""Gives a decoder its weights out of a checkpoint, each one checked."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from pellucid.backends.base import Backend, Matrix, Vector
from pellucid.config import ModelConfig
from pellucid.loading.checkpoint import Checkpoint
from pellucid.loading.non_finite import first_non_finite
from pellucid.loading.weight_names import source_rows, weight_names

Progress = Callable[[int, int], None]  # (bytes read, bytes in all)

_MAX_NAMES_SHOWN = 5


class CheckpointParameters:
    """The `Parameters` of a checkpoint: finds, checks and joins tensors for a backend.

    Args:
        checkpoint: the tensors.
        config: what config.json says of them.
        backend: makes the handles.
        on_progress: called after each tensor.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: ModelConfig,
        backend: Backend,
        on_progress: Progress | None = None,
    ) -> None:
        self._checkpoint = checkpoint
        self._config = config
        self._backend = backend
        self._on_progress = on_progress
        self._names = weight_names(config.architecture)
        self._unread = {name for name in checkpoint if not self._names.unused.fullmatch(name)}
        self._total_bytes = sum(checkpoint.info(name).num_bytes for name in self._unread)
        self._done_bytes = 0

    def matrix(self, name: str, num_rows: int, num_columns: int, bias: bool = False) -> Matrix:
        """`name`.weight [num_rows, num_columns] and, if asked for, `name`.bias [num_rows].

        Raises:
            ValueError: a tensor is missing, has another shape or a dtype that we do not read, or
                holds a NaN or an infinity. The message names our weight, the checkpoint's tensor
                and its file.
        """
        return self._backend.matrix(
            self._weight(f"{name}.weight", (num_rows, num_columns)),
            self._weight(f"{name}.bias", (num_rows,)) if bias else None,
        )

    def vector(self, name: str, size: int) -> Vector:
        """`name` [size]; `name` ends in ".weight" or ".bias". Raises as `matrix` does."""
        return self._backend.vector(self._weight(name, (size,)))

    def check_all_used(self) -> None:
        """To be called once the decoder is built.

        Raises:
            ValueError: the checkpoint holds tensors that the decoder did not ask for, so it is
                not the model that config.json describes.
        """
        if self._config.tie_word_embeddings:
            self._drop_tied_head()
        if self._unread:
            names = sorted(self._unread)
            shown = ", ".join(names[:_MAX_NAMES_SHOWN])
            if len(names) > _MAX_NAMES_SHOWN:
                shown += f" and {len(names) - _MAX_NAMES_SHOWN} more"
            raise ValueError(
                f"{self._checkpoint.path(names[0])}: {self._config.architecture} as config.json "
                f"describes it has no place for the tensors {shown}"
            )

    def _weight(self, name: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """Our weight `name`, a matrix or a vector, contiguous."""
        module, kind = name.rsplit(".", 1)
        recipe = self._names.recipe(module)
        parts = [
            self._source(f"{source}.{kind}", (num_rows, *shape[1:]), recipe.transposed, name)
            for source, num_rows in zip(
                recipe.sources, source_rows(self._config, recipe, shape[0]), strict=True
            )
        ]
        weight = parts[0] if len(parts) == 1 else np.concatenate(parts)
        assert weight.shape == shape
        if recipe.offset and kind == "weight":
            weight = weight.astype(np.float32) + np.float32(recipe.offset)
        return weight

    def _source(
        self, name: str, shape: tuple[int, ...], transposed: bool, our_name: str
    ) -> npt.NDArray[Any]:
        """The checkpoint's tensor `name` as we lay it out, `shape`."""
        name = self._name_in_checkpoint(name, our_name)
        path = self._checkpoint.path(name)
        stored_shape = shape[::-1] if transposed else shape
        if (actual := self._checkpoint.info(name).shape) != stored_shape:
            raise ValueError(
                f"{path}: tensor {name} (our {our_name}) has shape {list(actual)}: "
                f"config.json asks for {list(stored_shape)}"
            )
        tensor = self._checkpoint.tensor(name)
        if (index := first_non_finite(tensor)) is not None:
            raise ValueError(
                f"{path}: tensor {name} (our {our_name}) holds {tensor[index]} at {list(index)}: "
                "weights must be finite"
            )
        self._mark_read(name)
        return np.ascontiguousarray(tensor.T) if transposed else tensor

    def _name_in_checkpoint(self, name: str, our_name: str) -> str:
        prefixed = self._names.prefix + name
        for candidate in (prefixed, name):
            if candidate in self._checkpoint:
                return candidate
        raise ValueError(
            f"{self._checkpoint.directory}: tensor {prefixed} or {name} (our {our_name}) "
            "is missing from the safetensors files"
        )

    def _mark_read(self, name: str) -> None:
        self._unread.discard(name)
        self._done_bytes += self._checkpoint.info(name).num_bytes
        if self._on_progress is not None:
            self._on_progress(self._done_bytes, self._total_bytes)

    def _drop_tied_head(self) -> None:
        """Some checkpoints hold the shared matrix twice."""
        head = "lm_head.weight"
        if head not in self._unread:
            return
        embedding = self._name_in_checkpoint(
            f"{self._names.recipe('embed_tokens').sources[0]}.weight", "embed_tokens.weight"
        )
        if not np.array_equal(self._checkpoint.tensor(head), self._checkpoint.tensor(embedding)):
            raise ValueError(
                f"{self._checkpoint.path(head)}: {head} differs from {embedding}, although "
                "config.json says tie_word_embeddings=true: must be false to use it"
            )
        self._mark_read(head)
