"""Makes a decoder on a backend from the files of a model."""

from pathlib import Path

from pellucid.backends.base import Backend, Weights
from pellucid.backends.ops import Decoder
from pellucid.backends.quantization.formats import FORMATS
from pellucid.config import ModelConfig
from pellucid.loading.open_model import open_stored_model
from pellucid.loading.parameters import CheckpointParameters, Progress, bytes_to_read
from pellucid.loading.stored_model import StoredModel
from pellucid.models.registry import decoder_class


def load_decoder(
    path: Path, backend: Backend, on_progress: Progress | None = None, quantization: str = "none"
) -> tuple[Decoder, ModelConfig]:
    """Opens the checkpoint at `path` and makes its decoder: `open_stored_model`, then `make_decoder`."""
    model = open_stored_model(path)
    return make_decoder(model, backend, on_progress, quantization), model.config


def make_decoder(
    model: StoredModel,
    backend: Backend,
    on_progress: Progress | None = None,
    quantization: str = "none",
) -> Decoder:
    """Checks the weights of a checkpoint and puts them where `backend` wants them.

    Args:
        model: the checkpoint.
        backend: makes the weights' handles and runs the decoder.
        on_progress: called with (bytes read, bytes in all) after each tensor.
        quantization: as in `EngineConfig`: what matrices become.

    Raises:
        ValueError: a tensor is missing, damaged or left over, or is quantized otherwise already; the
            message names the file and what is wrong with it.
    """
    if model.weight_format is not None and quantization not in ("none", model.weight_format.name):
        raise ValueError(
            f"quantization={quantization!r}: {model.path} is quantized already; "
            f"allowed are 'none' and {model.weight_format.name!r}"
        )
    parameters = CheckpointParameters(
        model.tensors,
        model.names,
        model.config,
        backend.weights,
        FORMATS.get(quantization),
        on_progress,
    )
    decoder = decoder_class(model.config.architecture)(model.config, parameters, backend.ops)
    parameters.check_all_used()
    return decoder


def finish_weights(
    model: StoredModel, weights: Weights, on_progress: Progress | None = None
) -> None:
    """Has `weights` read what `make_decoder` left to it. Other arguments are those of `make_decoder`."""
    total = bytes_to_read(model.tensors, model.names)
    while waiting := weights.read():
        if on_progress is not None:
            on_progress(total - waiting, total)
