"""From the files of a model to a decoder on a backend."""

from pathlib import Path

from pellucid.backends.base import Backend, Decoder
from pellucid.backends.quantization.formats import FORMATS
from pellucid.config import ModelConfig
from pellucid.loading.parameters import CheckpointParameters, Progress
from pellucid.loading.stored_model import open_stored_model
from pellucid.models.registry import decoder_class


def load_decoder(
    path: Path,
    backend: Backend,
    on_progress: Progress | None = None,
    quantization: str = "none",
) -> tuple[Decoder, ModelConfig]:
    """Checks the checkpoint at `path` and puts its weights where `backend` wants them.

    Args:
        path: a directory in Hugging Face layout: config.json and safetensors.
        backend: makes the weights' handles and runs the decoder.
        on_progress: called with (bytes read, bytes in all) after each tensor.
        quantization: as in `EngineConfig`: what matrices become.

    Raises:
        ValueError: a file is missing or damaged, or the checkpoint is not one that we run; the
            message names the file and what is wrong with it.
    """
    model = open_stored_model(path)
    if model.weight_format is not None and quantization not in ("none", model.weight_format.name):
        raise ValueError(
            f"quantization={quantization!r}: {path} is quantized already; "
            f"allowed are 'none' and {model.weight_format.name!r}"
        )
    parameters = CheckpointParameters(
        model.tensors, model.names, model.config, backend, FORMATS.get(quantization), on_progress
    )
    decoder = decoder_class(model.config.architecture)(model.config, parameters, backend)
    parameters.check_all_used()
    return decoder, model.config
