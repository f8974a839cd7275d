"""A GGUF checkpoint: one file, or the parts of a split one as llama-gguf-split writes them."""

from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pellucid.facts.json_object import JsonObject
from pellucid.loading.gguf_file import GgufFile, GgufTensorInfo
from pellucid.loading.gguf_names import part_names

_COUNT, _NUMBER, _NUM_TENSORS = "split.count", "split.no", "split.tensors.count"


class GgufCheckpoint:
    """The metadata of a GGUF model, and all of its tensors by name, whichever part holds them.

    Args:
        path: the file, or any part of a split one.

    Attributes:
        path: the file, or the first part.
        metadata: of the file, or of the first part.
        value_types: of the metadata, as in `GgufFile`.

    Raises:
        ValueError: a file is missing or damaged, or the parts do not belong together.
    """

    def __init__(self, path: Path) -> None:
        files = [GgufFile(path.with_name(name)) for name in part_names(path.name)]
        self.path = files[0].path
        self.metadata: MutableMapping[str, Any] = files[0].metadata
        self.value_types = files[0].value_types
        for number, file in enumerate(files):
            _check_part(file, number, len(files))
        self._files: dict[str, GgufFile] = {}
        for file in files:
            for name in file.tensors:
                if name in self._files:
                    raise ValueError(
                        f"{file.path}: tensor {name} is also in {self._files[name].path}"
                    )
                self._files[name] = file
        if len(files) > 1 and self.metadata.get(_NUM_TENSORS, len(self)) != len(self):
            raise JsonObject(self.path, self.metadata).error(
                _NUM_TENSORS, f"the {len(files)} parts have {len(self)} tensors"
            )

    def __len__(self) -> int:
        return len(self._files)

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def info(self, name: str) -> GgufTensorInfo:
        """Type, shape and place of the tensor `name`."""
        return self._files[name].tensors[name]

    def path_of(self, name: str) -> Path:
        """The file that holds the tensor `name`."""
        return self._files[name].path

    def rows(self, name: str) -> npt.NDArray[np.uint8]:
        """The bytes of the tensor `name`, in rows of its last axis: [..., bytes of a row]."""
        return self._files[name].rows(name)

    def release(self, name: str) -> None:
        """Frees the memory of the tensor `name`, which may be read again from its file."""
        self._files[name].release(name)


def _check_part(file: GgufFile, number: int, count: int) -> None:
    """Raises a ValueError for a file that is not part `number` of `count`."""
    metadata = JsonObject(file.path, file.metadata)
    if metadata.integer(_COUNT, 1, minimum=0) not in ({0, 1} if count == 1 else {count}):
        raise metadata.error(
            _COUNT,
            "the name of a part must end in its number and this count, as in -00001-of-00003.gguf"
            if count == 1
            else f"its name says {count}",
        )
    if count > 1 and metadata.integer(_NUMBER, minimum=0) != number:
        raise metadata.error(_NUMBER, f"its name says {number} (parts count from 0)")
