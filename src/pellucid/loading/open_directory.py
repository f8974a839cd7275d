"""Opens a checkpoint in a directory in Hugging Face layout."""

from pathlib import Path

from pellucid.facts.json_object import JsonObject
from pellucid.facts.model_config import ModelConfig
from pellucid.loading.checkpoint import Checkpoint
from pellucid.loading.checksums import verify_checksums
from pellucid.loading.file_names import CONFIG_FILE, has_weights
from pellucid.loading.gguf_names import models_among, shown_names
from pellucid.loading.hf_config import (
    read_default_sampling_params,
    read_model_config,
)
from pellucid.loading.json_file import read_json_object
from pellucid.loading.matrix_checkpoint import MatrixCheckpoint
from pellucid.loading.other_formats import recognize_files
from pellucid.loading.quantization_settings import find_quantization
from pellucid.loading.quantized_layout import own_matrices, read_quantization_config
from pellucid.loading.stored_model import StoredModel
from pellucid.loading.tensor_source import TensorSource
from pellucid.models.family import WeightNames
from pellucid.models.registry import family_of
from pellucid.models.stored_weights import Offset, Transposed
from pellucid.models.unused_parts import count_parts, left_out_note


def open_directory(directory: Path, verifies_checksums: bool) -> StoredModel:
    """Opens the checkpoint in `directory`. Arguments and errors are those of `open_stored_model`."""
    _check_layout(directory)
    if verifies_checksums:
        verify_checksums(directory)
    config = read_model_config(directory)
    quantization = find_quantization(directory, read_json_object(directory / CONFIG_FILE))
    weight_format = None if quantization is None else read_quantization_config(quantization)
    checkpoint = Checkpoint(directory)
    sampling_params = read_default_sampling_params(directory)
    if weight_format is None:
        tensors, names = _tensors_and_names(config, quantization, checkpoint)
        return StoredModel(
            directory,
            config,
            tensors,
            names,
            default_sampling_params=sampling_params,
            notes=left_out_note(count_parts(checkpoint, names.parts)),
        )
    own_tensors = MatrixCheckpoint(checkpoint, own_matrices(checkpoint, weight_format))
    own_names = family_of(config.architecture).own_names()
    return StoredModel(directory, config, own_tensors, own_names, weight_format, sampling_params)


def _tensors_and_names(
    config: ModelConfig, quantization: JsonObject | None, checkpoint: Checkpoint
) -> tuple[TensorSource, WeightNames]:
    """Of a checkpoint in Hugging Face's names: floats, or what another quantizer made of them."""
    find_matrices = None
    if quantization is not None:
        # Imported here: few checkpoints need it.
        from pellucid.loading.foreign.quantization_config import read_foreign_config

        find_matrices = read_foreign_config(quantization)
    tensors: TensorSource = checkpoint
    if find_matrices is not None:
        if not (matrices := find_matrices(checkpoint)):
            raise ValueError(
                f"{checkpoint.location}: its configuration says how weights are quantized, but no tensor is"
                " quantized so"
            )
        tensors = MatrixCheckpoint(checkpoint, matrices)
    names = family_of(config.architecture).hf_names(config, tensors)
    if find_matrices is not None:  # whose matrices are all [out, in]
        names = names.without(Transposed)
    if any(_is_mlx_convolution(checkpoint.info(name).shape) for name in checkpoint):
        names = names.without(Offset)
    return tensors, names


def _is_mlx_convolution(shape: tuple[int, ...]) -> bool:
    """Whether a tensor is a convolution [channels, kernel, 1], as mlx-lm stores one; Hugging Face's has the 1 in
    the middle. mlx-lm itself knows by it that its norms of hybrid models are whole (qwen3_5.py, sanitize)."""
    return len(shape) == 3 and shape[1] > 1 == shape[2]


def _check_layout(directory: Path) -> None:
    """Raises a ValueError for a directory without a model, or with one in another format that has a name."""
    if (directory / CONFIG_FILE).exists() and has_weights(directory):
        return
    names = [path.name for path in directory.iterdir()]
    if models := models_among(names):
        files = shown_names(str(directory / parts[0]) for parts in models.values())
        raise ValueError(f"{directory}: it holds GGUF files: name one of them: {files}")
    if (found := recognize_files(names)) is not None:
        raise ValueError(f"{directory}: it holds {found}")
    if CONFIG_FILE not in names:
        raise ValueError(
            f"{directory}: is not a model: the directory has no {CONFIG_FILE}; a model is a directory with"
            f" {CONFIG_FILE} and model.safetensors, a .gguf file or owner/name on the hub"
        )
