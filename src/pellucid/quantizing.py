"""Writes a quantized copy of a checkpoint: the function behind `pellucid quantize`."""

import json
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pellucid.backends.base import Weights
from pellucid.backends.choice import make_backend
from pellucid.backends.ops import Parameters, Weight
from pellucid.backends.quantization.formats import FORMATS, IntegerFormat
from pellucid.backends.quantization.weights import QuantizationError, quantization_error
from pellucid.inputs.config import EngineConfig
from pellucid.loading.file_names import CONFIG_FILE, TOKENIZER_FILE
from pellucid.loading.hub import find_model
from pellucid.loading.json_file import read_json_object
from pellucid.loading.open_model import open_stored_model
from pellucid.loading.parameters import CheckpointParameters, Progress
from pellucid.loading.quantization_settings import CONFIG_KEY
from pellucid.loading.quantized_layout import quantization_config
from pellucid.loading.quantized_writer import QuantizedWriter
from pellucid.loading.stored_model import StoredModel
from pellucid.loading.tensor_source import as_floats
from pellucid.models.registry import decoder_class
from pellucid.text.compact_tokenizer import compact_tokenizer

# Copied as they are. Sums of the weights would be wrong, so SHA256SUMS is not among them.
_COPIED = (
    *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("chat_template.jinja", "chat_template.json", "generation_config.json"),
    "additional_chat_templates/tool_use.jinja",
    *("README.md", "LICENSE", "LICENSE.txt", "LICENSE.md", "NOTICE"),
)


@dataclass(frozen=True)
class MatrixReport:
    """What quantization did to one matrix [num_rows, num_columns]."""

    name: str
    num_rows: int
    num_columns: int
    error: QuantizationError


@dataclass(frozen=True)
class QuantizationReport:
    """What quantization did to a model.

    Args:
        quantization: the format, as in `EngineConfig.quantization`.
        bytes_before: of the tensors read.
        bytes_after: of the tensors written.
        matrices: in the order of the model.
    """

    source: Path
    output: Path
    quantization: str
    bytes_before: int
    bytes_after: int
    matrices: tuple[MatrixReport, ...]

    @property
    def relative_rms_error(self) -> float:
        """Of all weights together, each matrix measured by its own size of weights."""
        sizes = [matrix.num_rows * matrix.num_columns for matrix in self.matrices]
        squares = [matrix.error.relative_rms**2 for matrix in self.matrices]
        weighted = sum(size * square for size, square in zip(sizes, squares, strict=True))
        return float((weighted / sum(sizes)) ** 0.5)


def quantize_model(
    model: str | None,
    output: Path,
    quantization: str,
    revision: str | None = None,
    on_progress: Progress | None = None,
) -> QuantizationReport:
    """Quantizes all matrices of a checkpoint and writes a directory that loads as one.

    Args:
        model: a directory in Hugging Face layout, a hub id, or None for the bundled model.
        output: must not exist; it appears when it is complete.
        quantization: as in `EngineConfig`, not "none".
        on_progress: called with (bytes read, bytes in all) after each tensor.

    Raises:
        ValueError: the model cannot be read or is quantized already, `output` exists, or there is
            no such format.
        OSError: a file cannot be read or written.
    """
    if quantization not in FORMATS:
        raise ValueError(f"quantization={quantization!r}: allowed are {', '.join(FORMATS)}")
    if output.exists():
        raise ValueError(f"output={str(output)!r}: must not exist yet")
    source = find_model(model, revision).path
    if source.is_file():
        raise ValueError(
            f"model={str(source)!r}: must be a directory in Hugging Face layout; a GGUF file is "
            f"quantized while it loads, with quantization={quantization!r}"
        )
    stored = open_stored_model(source)
    if stored.weight_format is not None:
        raise ValueError(
            f"model={str(source)!r}: is quantized already: {stored.weight_format.name}"
        )

    output.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{output.name}-", dir=output.parent))
    try:
        report = _write(stored, partial, output, FORMATS[quantization], on_progress)
        _make_readable(partial)
        partial.rename(output)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return report


def _write(
    stored: StoredModel,
    partial: Path,
    output: Path,
    weight_format: IntegerFormat,
    on_progress: Progress | None,
) -> QuantizationReport:
    writer = QuantizedWriter(partial, weight_format)
    backend = make_backend(EngineConfig())
    source = CheckpointParameters(
        stored.tensors, stored.names, stored.config, backend.weights, on_progress=on_progress
    )
    parameters = _QuantizingParameters(source, weight_format, writer, backend.weights)
    decoder_class(stored.config.architecture)(stored.config, parameters, backend.ops)
    source.check_all_used()
    writer.finish()

    config = dict(read_json_object(stored.path / CONFIG_FILE).values)
    config[CONFIG_KEY] = quantization_config(weight_format)
    (partial / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n")
    if (tokenizer := stored.path / TOKENIZER_FILE).is_file():
        (partial / TOKENIZER_FILE).write_bytes(compact_tokenizer(tokenizer.read_bytes()))
    for name in _COPIED:
        if (stored.path / name).is_file():
            (partial / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(stored.path / name, partial / name)
    return QuantizationReport(
        stored.path,
        output,
        weight_format.name,
        sum(stored.tensors.info(name).num_bytes for name in stored.tensors),
        writer.num_bytes,
        tuple(parameters.reports),
    )


def _make_readable(directory: Path) -> None:
    """Directories of mkdtemp and files of safetensors are private: the user's umask shall decide."""
    mode = (directory / CONFIG_FILE).stat().st_mode & 0o777
    for file in directory.glob("*.safetensors"):
        file.chmod(mode)
    directory.chmod(mode | (mode & 0o444) >> 2)


@dataclass(eq=False)
class _QuantizingParameters(Parameters):
    """The `Parameters` of a decoder that is not going to run: what it asks for is written."""

    _source: CheckpointParameters
    _format: IntegerFormat
    _writer: QuantizedWriter
    _weights: Weights
    reports: list[MatrixReport] = field(default_factory=list)

    def make(self, weight: Weight) -> None:
        source, writer = self._source, self._writer
        match weight.kind:
            case "matrix":
                self._write_matrix(weight.name, as_floats(source.weight(weight)))
                source.release()
            case "experts":
                for expert, matrix in zip(
                    weight.matrices, source.expert_weights(weight), strict=True
                ):
                    self._write_matrix(expert.name, as_floats(matrix))
            case "table":
                rows = source.table_rows(weight)
                writer.add_floats(weight.numbers, rows.read(np.arange(weight.shape[0])))
            case (
                "router" | "vector" | "convolution"
            ):  # a vector's factor is for the written file's reader
                writer.add_floats(weight.numbers, as_floats(source.weight(weight)))
        if weight.has_bias:
            self._write_bias(weight)
        if weight.kind in ("experts", "convolution"):
            source.release()

    def _write_bias(self, weight: Weight) -> None:
        bias = weight.bias
        if weight.kind != "experts":
            self._writer.add_floats(bias.name, as_floats(self._source.weight(bias)))
            return
        for expert, own in zip(weight.matrices, self._source.expert_weights(bias), strict=True):
            self._writer.add_floats(expert.bias.name, as_floats(own))

    def _write_matrix(self, name: str, weight: npt.NDArray[Any]) -> None:
        try:
            matrix = self._weights.quantize(weight, self._format)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        self._writer.add_matrix(f"{name}.weight", matrix)
        moved = quantization_error(weight, matrix)
        self.reports.append(MatrixReport(name, *matrix.shape, moved))
