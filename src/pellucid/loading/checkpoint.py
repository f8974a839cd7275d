"""Reads the tensors of a model directory, from one safetensors file or from shards."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy.typing as npt

from pellucid.backends.quantization.formats import BF16, F16, F32, FloatFormat
from pellucid.backends.row_table import MatrixRows
from pellucid.loading.file_names import INDEX_FILE, SINGLE_FILE
from pellucid.loading.json_file import read_json_object
from pellucid.loading.mapped_tensors import TensorFiles
from pellucid.loading.safetensors_file import SafetensorsFile, TensorInfo
from pellucid.loading.tensor_source import ALL, RowIndex, select

_FP8 = "F8_E4M3"
_FORMATS = {"BF16": BF16, "F16": F16, _FP8: BF16}


class Checkpoint(TensorFiles[TensorInfo]):
    """All tensors of a directory by name, wherever they are stored.

    Args:
        directory: holds model.safetensors, or model.safetensors.index.json and its shards.

    Raises:
        ValueError: a file is missing or damaged, or the index and the shards do not agree.
    """

    _files: Mapping[str, SafetensorsFile]

    def __init__(self, directory: Path):
        self.location = directory
        if (directory / INDEX_FILE).exists():
            self._files = _open_shards(directory / INDEX_FILE)
        elif (directory / SINGLE_FILE).exists():
            file = SafetensorsFile(directory / SINGLE_FILE)
            self._files = dict.fromkeys(file.tensors, file)
        else:
            raise ValueError(
                f"{directory}: has no weights: neither {SINGLE_FILE} nor {INDEX_FILE} is there"
            )

    @property
    def files(self) -> tuple[SafetensorsFile, ...]:
        """The safetensors files."""
        return tuple(dict.fromkeys(self._files.values()))

    def matrix_format(self, name: str) -> FloatFormat:
        """The format of the matrix `name` in memory. Numbers that are not here become f32."""
        return _FORMATS.get(self.info(name).dtype, F32)

    def tensor(self, name: str, index: RowIndex = ALL) -> npt.NDArray[Any]:
        """The tensor `name`, a read-only view of its file; FP8, which has no scales then, as bf16."""
        if self.info(name).dtype == _FP8:
            return select(self.array(name), index).astype(ml_dtypes.bfloat16)
        return select(self._files[name].tensor(name), index)

    def reads_rows(self, name: str) -> bool:
        return True

    def table(self, name: str) -> MatrixRows:
        """The rows of the matrix `name`, in its file."""
        return MatrixRows(self.tensor(name))

    def array(self, name: str) -> npt.NDArray[Any]:
        """The tensor `name` of floats, integers or FP8, a read-only view of its file."""
        return self._files[name].array(name)

    def codes(self, name: str) -> npt.NDArray[Any]:
        """The tensor `name` of 8-bit integers, a read-only view of its file."""
        return self._files[name].codes(name)


def _open_shards(index_path: Path) -> dict[str, SafetensorsFile]:
    weight_map = read_json_object(index_path).optional_object("weight_map")
    if weight_map is None or not weight_map.values:
        raise ValueError(f"{index_path}: weight_map: must name the file of each tensor")
    shards: dict[str, SafetensorsFile] = {}
    files: dict[str, SafetensorsFile] = {}
    for name in weight_map.values:
        file_name = weight_map.string(name)
        if file_name not in shards:
            if "/" in file_name or "\\" in file_name:
                raise weight_map.error(name, "must be a file in the same directory")
            if not (index_path.parent / file_name).exists():
                raise weight_map.error(name, "there is no such file beside the index")
            shards[file_name] = SafetensorsFile(index_path.parent / file_name)
        if name not in shards[file_name].tensors:
            raise weight_map.error(name, "that file does not hold the tensor")
        files[name] = shards[file_name]
    for shard in shards.values():
        for name in shard.tensors:
            if name not in files:
                raise ValueError(f"{shard.path}: tensor {name} is not in {index_path.name}")
            if files[name] is not shard:
                raise ValueError(f"{shard.path}: tensor {name} is also in {files[name].path.name}")
    return files
