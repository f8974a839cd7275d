"""Decoders of checkpoints, opened and made in one call."""

from pathlib import Path

from pellucid.backends.base import Backend
from pellucid.backends.ops import Decoder
from pellucid.facts.model_config import ModelConfig
from pellucid.loading.decoder import make_decoder
from pellucid.loading.open_model import open_stored_model
from pellucid.loading.parameters import Progress


def load_decoder(
    path: Path, backend: Backend, on_progress: Progress | None = None, quantization: str = "none"
) -> tuple[Decoder, ModelConfig]:
    """Opens the checkpoint at `path` and makes its decoder: `open_stored_model`, then `make_decoder`."""
    model = open_stored_model(path)
    return make_decoder(model, backend, on_progress, quantization).decoder, model.config
