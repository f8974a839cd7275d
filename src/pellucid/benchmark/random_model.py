"""A model with random weights, to measure the speed of a known shape."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from pellucid.backends.base import Backend
from pellucid.backends.choice import make_backend
from pellucid.backends.quantization.formats import FORMATS
from pellucid.benchmark.kv_plan import KVPlan, plan_kv_cache
from pellucid.benchmark.workloads import Workload
from pellucid.facts import formulas
from pellucid.facts.model_config import ModelConfig
from pellucid.inputs.config import EngineConfig
from pellucid.loaded_model import LoadedModel
from pellucid.loading.random_parameters import RandomParameters
from pellucid.memory.memory_plan import in_gib
from pellucid.models.registry import decoder_class
from pellucid.shapes import find_shape
from pellucid.text.no_tokenizer import NoTokenizer

BF16_BYTES = 2


def random_model(
    shape: str, engine_config: EngineConfig, workloads: Sequence[Workload]
) -> LoadedModel:
    """A model of a known shape with random weights and without a tokenizer.

    Args:
        shape: a name in `SHAPES`.
        engine_config: `quantization` is the format of all matrices.

    Raises:
        ValueError: there is no such shape, or it needs more memory than there is, or a workload does
            not fit the model.
    """
    config = find_shape(shape)
    backend = make_backend(engine_config, config)
    kv_plan = plan_kv_cache(workloads, engine_config, config, backend)
    weight_bytes = _check_memory(shape, config, engine_config, backend, kv_plan)
    backend.weights.expect(weight_bytes)
    parameters = RandomParameters(backend.weights, FORMATS.get(engine_config.quantization))
    decoder = decoder_class(config.architecture)(config, parameters, backend.ops)
    return LoadedModel(
        shape,
        Path(shape),
        config,
        backend.compile(decoder, config),
        NoTokenizer(config.vocab_size),
        backend,
        weight_bytes=weight_bytes,
    )


def _check_memory(
    shape: str,
    config: ModelConfig,
    engine_config: EngineConfig,
    backend: Backend,
    kv_plan: KVPlan,
) -> int:
    """Before anything is allocated: a machine that swaps measures its disk. Returns bytes of weights."""
    matrix_bytes = planned_matrix_bytes(engine_config, backend)
    weights = formulas.stored_weight_bytes(config, matrix_bytes)
    embedding = matrix_bytes(config.vocab_size, config.hidden_size)
    available = backend.available_memory()
    # While a matrix is laid out for the kernels it is there twice; the embedding is the largest.
    if available is not None and weights + embedding + kv_plan.num_bytes > available:
        raise ValueError(
            f"shape={shape!r} with quantization={engine_config.quantization!r} takes {in_gib(weights)}"
            f" of weights, {in_gib(embedding)} to lay them out and {in_gib(kv_plan.num_bytes)} of KV"
            f" cache; {in_gib(available)} of memory are available: a smaller shape, quantization, depth"
            " or batch would fit"
        )
    return weights


def planned_matrix_bytes(
    engine_config: EngineConfig, backend: Backend
) -> Callable[[int, int], int]:
    """Bytes of a matrix of (outputs, inputs) that is not made yet: of the format that `engine_config`
    asks for; without one in the backend's floats, or in bf16."""
    integer_format = FORMATS.get(engine_config.quantization)
    if integer_format is None:
        float_bytes = backend.weights.itemsize or BF16_BYTES
        return lambda num_outputs, num_inputs: num_outputs * num_inputs * float_bytes

    def integer_bytes(num_outputs: int, num_inputs: int) -> int:
        arrays = integer_format.arrays(num_outputs, num_inputs).values()
        return sum(dtype.itemsize * math.prod(shape) for dtype, shape in arrays)

    return integer_bytes
