"""Tensors in mapped files: where each one stands, and in which file."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Generic, TypeVar

from msgspec import Struct

from pellucid.loading.files import MappedFile


class PlacedTensor(Struct, frozen=True):
    """What the header of a file says about a tensor.

    Args:
        shape: in NumPy's order, rows first.
        start: byte of the file.
        end: the byte after its last one.
    """

    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def num_bytes(self) -> int:
        return self.end - self.start


Info = TypeVar("Info", bound=PlacedTensor)


class TensorFile(Generic[Info]):
    """A mapped file.

    Attributes:
        path: of the file.
        tensors: by name.
    """

    path: Path
    tensors: Mapping[str, Info]
    _file: MappedFile

    def release(self, name: str) -> None:
        """Frees the memory of the tensor `name`, which may be read again from its file."""
        self._file.release(self.tensors[name].start, self.tensors[name].end)


class TensorFiles(Generic[Info]):
    """The part of a `TensorSource` that knows in which of several files a tensor stands."""

    _files: Mapping[str, TensorFile[Info]]  # by the name of the tensor

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def info(self, name: str) -> Info:
        """What is known of the tensor `name` before it is read."""
        return self._files[name].tensors[name]

    def path(self, name: str) -> Path:
        """The file that holds the tensor `name`."""
        return self._files[name].path

    def release(self, name: str) -> None:
        """As `TensorFile.release`."""
        self._files[name].release(name)
