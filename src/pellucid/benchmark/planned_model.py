"""What an estimate needs to know of a model: its configuration and formats, without its weights."""

from dataclasses import dataclass, replace

from pellucid import formulas
from pellucid.backends.choice import make_backend
from pellucid.benchmark.estimate import ModelFormats, matrix_bytes
from pellucid.benchmark.machine_facts import MachineFacts
from pellucid.benchmark.native_machine import measure_machine
from pellucid.config import EngineConfig
from pellucid.loading.hub import find_model
from pellucid.loading.open_model import open_stored_model
from pellucid.memory.memory_plan import plan_weights
from pellucid.memory.process_memory import available_memory
from pellucid.model_config import ModelConfig
from pellucid.shapes import find_shape

NARROW = 0.9  # weights of fewer bytes, as a share of those in bf16, are multiplied as int8


@dataclass(frozen=True)
class PlannedModel:
    """A model that is not loaded.

    Args:
        name: for people.
        config: its facts.
        formats: of its weights, which are counted, and of the KV cache.
    """

    name: str
    config: ModelConfig
    formats: ModelFormats


def find_planned_model(shape: str | None, config: EngineConfig) -> PlannedModel:
    """A known shape, or the checkpoint that `config` names, whose weights are counted as loading would count them.

    Args:
        shape: a name in `SHAPES`; None: the checkpoint.

    Raises:
        ValueError: there is no such shape, or the checkpoint cannot be used.
        OSError: a file cannot be read.
    """
    formats = ModelFormats(config.quantization, config.kv_cache_dtype, config.block_size)
    if shape is not None:
        return PlannedModel(shape, find_shape(shape), formats)
    location = find_model(config.model, config.revision)
    stored = open_stored_model(location.path)
    backend = make_backend(config, stored.config)
    counted = replace(
        formats,
        weight_bytes=plan_weights(stored, backend, config.quantization).total,
        bytes_per_block=backend.kv_bytes_per_block(
            stored.config, config.block_size, config.kv_cache_dtype
        ),
    )
    return PlannedModel(location.name, stored.config, counted)


def measure_this_machine(model: PlannedModel, config: EngineConfig) -> MachineFacts:
    """This machine's bandwidth, its free memory, and its peak in the arithmetic of the model's weights. Takes a
    second or two.

    Raises:
        ValueError: the system does not report how much memory is free.
    """
    memory = available_memory()
    if memory is None:
        raise ValueError("the system does not report how much memory is free: set --memory")
    in_bf16 = formulas.stored_weight_bytes(model.config, matrix_bytes("none"))
    weight_bytes = model.formats.weight_bytes or formulas.stored_weight_bytes(
        model.config, matrix_bytes(model.formats.quantization)
    )
    ceilings = measure_machine(make_backend(config, model.config), config.num_threads)
    return MachineFacts(
        "this machine",
        "M",
        ceilings.bandwidth_bytes_per_second,
        ceilings.peak("int8" if weight_bytes < NARROW * in_bf16 else "bf16"),
        memory,
    )
