"""From an EngineConfig to a model that is ready to run."""

from dataclasses import dataclass, field
from pathlib import Path

from threadpoolctl import threadpool_limits

from pellucid.backends.base import Backend, Decoder
from pellucid.backends.numpy_backend import NumpyBackend
from pellucid.config import EngineConfig, ModelConfig
from pellucid.loading.decoder import load_decoder
from pellucid.loading.generation_config import read_default_sampling_params
from pellucid.loading.hub import resolve_model
from pellucid.loading.parameters import Progress
from pellucid.sampling_params import SamplingParams
from pellucid.tokenizer import Tokenizer


@dataclass(frozen=True)
class LoadedModel:
    """A checkpoint on a backend."""

    directory: Path
    config: ModelConfig
    decoder: Decoder
    tokenizer: Tokenizer
    backend: Backend
    default_sampling_params: SamplingParams = field(default_factory=SamplingParams)


def load_model(config: EngineConfig, on_progress: Progress | None = None) -> LoadedModel:
    """Finds the checkpoint, checks it, and puts its weights where the backend wants them.

    Raises:
        ValueError: the checkpoint, the tokenizer or a knob cannot be used.
        OSError: a file cannot be read.
    """
    backend = make_backend(config)
    directory = resolve_model(config.model, config.revision)
    decoder, model_config = load_decoder(directory, backend, on_progress, config.quantization)
    tokenizer = Tokenizer.load(directory, model_config.vocab_size)
    return LoadedModel(
        directory,
        model_config,
        decoder,
        tokenizer,
        backend,
        read_default_sampling_params(directory),
    )


def make_backend(config: EngineConfig) -> Backend:
    if config.backend == "cpu":
        raise ValueError("backend='cpu': the native kernels are not built yet; allowed: 'numpy'")
    # One setting for the whole process: a BLAS has a single pool. The products here are small, and a
    # second thread costs more than it gives unless the machine is idle, so it has to be asked for.
    threadpool_limits(config.num_threads or 1, user_api="blas")
    return NumpyBackend(quantize_activations=config.quantize_activations)
