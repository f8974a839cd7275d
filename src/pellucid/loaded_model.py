"""From an EngineConfig to a model that is ready to run."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pellucid.backends.base import Backend, Decoder
from pellucid.backends.numpy_backend import NumpyBackend
from pellucid.config import EngineConfig, ModelConfig
from pellucid.loading.decoder import load_decoder
from pellucid.loading.hub import resolve_model
from pellucid.tokenizer import Tokenizer

Progress = Callable[[int, int], None]  # (bytes read, bytes in all)


@dataclass(frozen=True)
class LoadedModel:
    """A checkpoint on a backend."""

    directory: Path
    config: ModelConfig
    decoder: Decoder
    tokenizer: Tokenizer
    backend: Backend


def load_model(config: EngineConfig, on_progress: Progress | None = None) -> LoadedModel:
    """Finds the checkpoint, checks it, and puts its weights where the backend wants them.

    Raises:
        ValueError: the checkpoint, the tokenizer or a knob cannot be used.
        OSError: a file cannot be read.
    """
    backend = make_backend(config)
    directory = resolve_model(config.model, config.revision)
    decoder, model_config = load_decoder(directory, backend, on_progress)
    tokenizer = Tokenizer.load(directory, model_config.vocab_size)
    return LoadedModel(directory, model_config, decoder, tokenizer, backend)


def make_backend(config: EngineConfig) -> Backend:
    if config.backend == "cpu":
        raise ValueError("backend='cpu': the native kernels are not built yet; allowed: 'numpy'")
    if config.quantization != "none":
        raise ValueError(
            f"quantization={config.quantization!r}: the numpy backend computes with the checkpoint's"
            " values; allowed: 'none'"
        )
    return NumpyBackend()
