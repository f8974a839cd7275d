"""Writes the file layout of `quantized_layout`."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy.typing as npt
from safetensors.numpy import save_file

from pellucid.backends.quantization.formats import IntegerFormat
from pellucid.backends.quantization.matrix import QuantizedMatrix
from pellucid.loading.file_names import INDEX_FILE, SINGLE_FILE
from pellucid.loading.quantized_layout import file_metadata

MAX_FILE_BYTES = 1 << 30  # bytes held in memory before they are written


@dataclass(eq=False)
class QuantizedWriter:
    """Writes tensors into the safetensors files of a directory, one file after another.

    Args:
        directory: exists.
        weight_format: of the matrices.
        max_file_bytes: a file is closed once it holds as much.
    """

    _directory: Path
    _format: IntegerFormat
    max_file_bytes: int = MAX_FILE_BYTES
    num_bytes: int = 0
    _pending: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    _pending_shapes: dict[str, tuple[int, int]] = field(default_factory=dict)
    _pending_bytes: int = 0
    _names_by_file: list[list[str]] = field(default_factory=list)

    def add_matrix(self, name: str, matrix: QuantizedMatrix) -> None:
        """A matrix [N, K]; all its arrays go into one file."""
        assert matrix.format == self._format
        self._pending_shapes[name] = matrix.shape
        arrays = {f"{name}.codes": matrix.codes, f"{name}.scales": matrix.scales}
        if matrix.zero_points is not None:
            arrays[f"{name}.zero_points"] = matrix.zero_points
        self._add(arrays)

    def add_floats(self, name: str, tensor: npt.NDArray[Any]) -> None:
        """A vector, as it is."""
        self._add({name: tensor})

    def finish(self) -> None:
        """Closes the last file and renames all files."""
        self._close_file()
        num_files = len(self._names_by_file)
        if num_files == 1:
            self._file(0).rename(self._directory / SINGLE_FILE)
            return
        weight_map = {}
        for number, names in enumerate(self._names_by_file):
            file_name = f"model-{number + 1:05d}-of-{num_files:05d}.safetensors"
            self._file(number).rename(self._directory / file_name)
            weight_map.update(dict.fromkeys(names, file_name))
        index = {"metadata": {"total_size": self.num_bytes}, "weight_map": weight_map}
        (self._directory / INDEX_FILE).write_text(json.dumps(index, indent=2))

    def _add(self, arrays: dict[str, npt.NDArray[Any]]) -> None:
        num_bytes = sum(each.nbytes for each in arrays.values())
        self._pending |= arrays
        self._pending_bytes += num_bytes
        self.num_bytes += num_bytes
        if self._pending_bytes >= self.max_file_bytes:
            self._close_file()

    def _close_file(self) -> None:
        if not self._pending:
            return
        metadata = {"format": "pt", **file_metadata(self._format, self._pending_shapes)}
        save_file(self._pending, self._file(len(self._names_by_file)), metadata)
        self._names_by_file.append(list(self._pending))
        self._pending, self._pending_shapes, self._pending_bytes = {}, {}, 0

    def _file(self, number: int) -> Path:
        return self._directory / f"part-{number}.safetensors"
