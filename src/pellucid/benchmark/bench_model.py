"""What is measured: a model on a backend, a checkpoint's or one of random weights."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import ml_dtypes

from pellucid import formulas
from pellucid.backends.base import Backend, Decoder
from pellucid.backends.choice import make_backend
from pellucid.backends.quantization.formats import FORMATS
from pellucid.backends.quantization.matrix import QuantizedMatrix
from pellucid.benchmark.machine import Arithmetic
from pellucid.benchmark.workloads import Workload, check_fits, kv_positions
from pellucid.config import EngineConfig, ModelConfig
from pellucid.loading.decoder import load_decoder
from pellucid.loading.hub import resolve_model
from pellucid.loading.parameters import Progress
from pellucid.loading.random_parameters import RandomParameters
from pellucid.loading.stored_model import open_stored_model
from pellucid.loading.tensor_source import TensorSource
from pellucid.memory import available_memory
from pellucid.models.registry import decoder_class
from pellucid.shapes import find_shape

F32_BYTES = 4


@dataclass(frozen=True)
class WeightFormat:
    """How matrices are kept, for counting: exact in bytes for one format, a mean for a mixture.

    Args:
        bytes_per_weight: scales and zero points included.
        arithmetic: in which they are multiplied.
    """

    bytes_per_weight: float
    arithmetic: Arithmetic

    def matrix_bytes(self, num_outputs: int, num_inputs: int) -> int:
        return round(num_outputs * num_inputs * self.bytes_per_weight)


BF16 = WeightFormat(2, "bf16")


@dataclass(frozen=True)
class BenchModel:
    """A decoder that is ready to run, and what it takes to count its work."""

    name: str
    config: ModelConfig
    decoder: Decoder
    backend: Backend
    weight_format: WeightFormat


def random_model(
    shape: str, engine_config: EngineConfig, workloads: Sequence[Workload]
) -> BenchModel:
    """A model of a known shape with random weights.

    Args:
        shape: a name in `SHAPES`.
        engine_config: `quantization` is the format of all matrices.
        workloads: what it is for.

    Raises:
        ValueError: there is no such shape, or it needs more memory than there is, or a workload does
            not fit the model.
    """
    config = find_shape(shape)
    check_fits(workloads, engine_config, config)
    backend = make_backend(engine_config)
    weight_format = _weight_format(engine_config, backend, config, lambda: BF16)
    num_positions = kv_positions(workloads, engine_config.block_size)
    _check_memory(shape, config, engine_config, backend, weight_format, num_positions)
    parameters = RandomParameters(backend, FORMATS.get(engine_config.quantization))
    decoder = decoder_class(config.architecture)(config, parameters, backend)
    return BenchModel(shape, config, backend.compile(decoder, config), backend, weight_format)


def stored_model(engine_config: EngineConfig, on_progress: Progress | None = None) -> BenchModel:
    """The model that `engine_config` names, loaded as an engine does but for its tokenizer, which may be
    missing. Raises as `load_model`."""
    backend = make_backend(engine_config)
    path = resolve_model(engine_config.model, engine_config.revision)
    decoder, config = load_decoder(path, backend, on_progress, engine_config.quantization)
    tensors = open_stored_model(path).tensors
    weight_format = _weight_format(engine_config, backend, config, lambda: _mean_format(tensors))
    return BenchModel(path.name, config, backend.compile(decoder, config), backend, weight_format)


def _weight_format(
    engine_config: EngineConfig,
    backend: Backend,
    config: ModelConfig,
    unquantized: Callable[[], WeightFormat],
) -> WeightFormat:
    """What `engine_config` makes of weights.

    Args:
        unquantized: the format that they have without it.
    """
    integer_format = FORMATS.get(engine_config.quantization)
    if integer_format is None:
        weight_format = unquantized()
    else:
        arrays = integer_format.arrays(1, config.hidden_size).values()
        num_bytes = sum(dtype.itemsize * math.prod(shape) for dtype, shape in arrays)
        weight_format = WeightFormat(num_bytes / config.hidden_size, "int8")
    if backend.name == "numpy":
        is_float = weight_format.arithmetic != "int8"
        return WeightFormat(F32_BYTES if is_float else weight_format.bytes_per_weight, "f32")
    if not engine_config.quantize_activations:
        return replace(weight_format, arithmetic="f32")
    return weight_format


def _mean_format(tensors: TensorSource) -> WeightFormat:
    """The mean of what the files hold; the arithmetic is that of their largest tensor."""
    infos = {name: tensors.info(name) for name in tensors}
    num_bytes = sum(info.num_bytes for info in infos.values())
    num_weights = sum(math.prod(info.shape) for info in infos.values())
    largest = tensors.tensor(max(infos, key=lambda name: infos[name].num_bytes))
    arithmetic: Arithmetic = "f32"
    if isinstance(largest, QuantizedMatrix):
        arithmetic = "int8"
    elif largest.dtype == ml_dtypes.bfloat16:
        arithmetic = "bf16"
    return WeightFormat(num_bytes / num_weights, arithmetic)


def _check_memory(
    shape: str,
    config: ModelConfig,
    engine_config: EngineConfig,
    backend: Backend,
    weight_format: WeightFormat,
    num_positions: int,
) -> None:
    """Before anything is allocated: a machine that swaps measures its disk."""
    weights = formulas.weight_bytes(config, weight_format.matrix_bytes)
    embedding = weight_format.matrix_bytes(config.vocab_size, config.hidden_size)
    weights += 0 if config.tie_word_embeddings else embedding
    block_bytes = backend.kv_bytes_per_block(
        config, engine_config.block_size, engine_config.kv_cache_dtype
    )
    kv_cache = num_positions * block_bytes // engine_config.block_size
    available = available_memory()
    # While a matrix is laid out for the kernels it is there twice; the embedding is the largest.
    if available is not None and weights + embedding + kv_cache > available:
        raise ValueError(
            f"shape={shape!r} with quantization={engine_config.quantization!r} needs {weights} bytes"
            f" of weights, {embedding} to lay them out and {kv_cache} of KV cache; there are"
            f" {available}: a smaller shape, quantization, depth or batch would fit"
        )
