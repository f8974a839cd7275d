"""What is measured: a model on a backend, a checkpoint's or one of random weights."""

from collections.abc import Sequence
from dataclasses import dataclass

from pellucid import formulas
from pellucid.backends.base import Backend, Decoder
from pellucid.backends.choice import make_backend
from pellucid.backends.quantization.formats import FORMATS
from pellucid.benchmark.kv_plan import KVPlan, plan_kv_cache
from pellucid.benchmark.workloads import Workload
from pellucid.config import EngineConfig, ModelConfig
from pellucid.engine.step_weights import StepWeights, planned_matrix_bytes, step_weights
from pellucid.loading.decoder import make_decoder
from pellucid.loading.hub import find_model
from pellucid.loading.open_model import open_stored_model
from pellucid.loading.parameters import Progress
from pellucid.loading.random_parameters import RandomParameters
from pellucid.memory.memory_plan import check_weights_fit
from pellucid.memory.process_memory import available_memory
from pellucid.models.registry import decoder_class
from pellucid.shapes import find_shape


@dataclass(frozen=True)
class BenchModel:
    """A decoder that is ready to run, and what it takes to count its work.

    Args:
        weights: what a step reads.
        weight_bytes: of all weights in memory.
    """

    name: str
    config: ModelConfig
    decoder: Decoder
    backend: Backend
    weights: StepWeights
    weight_bytes: int


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
    backend = make_backend(engine_config, config)
    kv_plan = plan_kv_cache(workloads, engine_config, config, backend)
    weight_bytes = _check_memory(shape, config, engine_config, backend, kv_plan)
    backend.expect_weights(weight_bytes)
    parameters = RandomParameters(backend, FORMATS.get(engine_config.quantization))
    decoder = decoder_class(config.architecture)(config, parameters, backend)
    return _bench_model(shape, config, decoder, backend, engine_config, weight_bytes)


def stored_model(engine_config: EngineConfig, on_progress: Progress | None = None) -> BenchModel:
    """The model that `engine_config` names, loaded as an engine does but for its tokenizer, which may be
    missing. Raises as `load_model`."""
    location = find_model(engine_config.model, engine_config.revision)
    stored = open_stored_model(location.path)
    backend = make_backend(engine_config, stored.config)
    weights = check_weights_fit(stored, backend, engine_config.quantization, available_memory())
    backend.expect_weights(weights.total)
    decoder = make_decoder(stored, backend, on_progress, engine_config.quantization)
    return _bench_model(
        location.name, stored.config, decoder, backend, engine_config, weights.total
    )


def _bench_model(
    name: str,
    config: ModelConfig,
    decoder: Decoder,
    backend: Backend,
    engine_config: EngineConfig,
    weight_bytes: int,
) -> BenchModel:
    compiled = backend.compile(decoder, config)
    weights = step_weights(engine_config, config, backend, compiled)
    return BenchModel(name, config, compiled, backend, weights, weight_bytes)


def _check_memory(
    shape: str,
    config: ModelConfig,
    engine_config: EngineConfig,
    backend: Backend,
    kv_plan: KVPlan,
) -> int:
    """Before anything is allocated: a machine that swaps measures its disk. Returns bytes of weights."""
    matrix_bytes = planned_matrix_bytes(engine_config, backend)
    weights = formulas.weight_bytes(config, matrix_bytes)
    embedding = matrix_bytes(config.vocab_size, config.hidden_size)
    weights += 0 if config.tie_word_embeddings else embedding
    available = available_memory()
    # While a matrix is laid out for the kernels it is there twice; the embedding is the largest.
    if available is not None and weights + embedding + kv_plan.num_bytes > available:
        raise ValueError(
            f"shape={shape!r} with quantization={engine_config.quantization!r} needs {weights} bytes"
            f" of weights, {embedding} to lay them out and {kv_plan.num_bytes} of KV cache; there are"
            f" {available}: a smaller shape, quantization, depth or batch would fit"
        )
    return weights
