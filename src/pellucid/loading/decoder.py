"""From a model directory to a decoder on a backend."""

from pathlib import Path

from pellucid.backends.base import Backend, Decoder
from pellucid.config import ModelConfig
from pellucid.loading.checkpoint import Checkpoint
from pellucid.loading.hf_config import read_model_config
from pellucid.loading.integrity import verify_checksums
from pellucid.loading.parameters import CheckpointParameters, Progress
from pellucid.models.registry import decoder_class


def load_decoder(
    directory: Path, backend: Backend, on_progress: Progress | None = None
) -> tuple[Decoder, ModelConfig]:
    """Checks the checkpoint in `directory` and puts its weights where `backend` wants them.

    Args:
        directory: in Hugging Face layout: config.json and safetensors.
        backend: makes the weights' handles and runs the decoder.
        on_progress: called with (bytes read, bytes in all) after each tensor.

    Raises:
        ValueError: a file is missing or damaged, or the checkpoint is not one that we run; the
            message names the file and what is wrong with it.
    """
    verify_checksums(directory)
    config = read_model_config(directory)
    checkpoint = Checkpoint(directory)
    parameters = CheckpointParameters(checkpoint, config, backend, on_progress)
    decoder = decoder_class(config.architecture)(config, parameters, backend)
    parameters.check_all_used()
    return decoder, config
