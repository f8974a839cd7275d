"""What an estimate needs to know of a model: its configuration and formats, without its weights."""

from dataclasses import dataclass, replace
from functools import partial

from pellucid import formulas
from pellucid.backends.base import Backend
from pellucid.backends.choice import make_backend
from pellucid.benchmark.estimate import ModelFormats, matrix_bytes
from pellucid.benchmark.machine_facts import MachineFacts
from pellucid.benchmark.native_machine import measure_machine
from pellucid.config import EngineConfig
from pellucid.loading.file_names import CONFIG_FILE, has_weights
from pellucid.loading.hf_config import read_model_config
from pellucid.loading.hub import ModelLocation
from pellucid.loading.hub_headers import find_headers
from pellucid.loading.open_model import open_stored_model
from pellucid.loading.stored_model import StoredModel
from pellucid.loading.stored_size import stored_matrix_bytes
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
    """A known shape, or the checkpoint that `config` names.

    Weights are counted as loading would count them, by the headers of a file or directory here, or of a GGUF file
    on the hub. Otherwise config.json is enough, if it says how the weights are stored.

    Args:
        shape: a name in `SHAPES`; None: the checkpoint.

    Raises:
        ValueError: there is no such shape, or the checkpoint cannot be used.
        OSError: a file cannot be read.
    """
    if shape is not None:
        return PlannedModel(shape, find_shape(shape), _formats(config))
    with find_headers(config.model, config.revision, with_weights=False) as location:
        path = location.path
        if not path.is_dir() or has_weights(path) or not (path / CONFIG_FILE).exists():
            stored = open_stored_model(path, verifies_checksums=False)
            return plan_stored_model(location.name, stored, config)
        if (found := _plan_by_config(location, config)) is not None:
            return found
    with find_headers(config.model, config.revision) as location:
        stored = open_stored_model(location.path, verifies_checksums=False)
        return plan_stored_model(location.name, stored, config)


def plan_stored_model(name: str, stored: StoredModel, config: EngineConfig) -> PlannedModel:
    """An open checkpoint, whose weights are counted as loading would count them."""
    backend = make_backend(config, stored.config)
    weight_bytes = plan_weights(stored, backend.weights.itemsize, config.quantization).total
    return _with_counted(name, stored.config, weight_bytes, backend, config)


def _plan_by_config(location: ModelLocation, config: EngineConfig) -> PlannedModel | None:
    """A directory by its config.json; None if that does not say how its weights are stored.

    Raises:
        ValueError: it is not supported, or there is none.
    """
    model = read_model_config(location.path)
    backend = make_backend(config, model)
    bytes_of = stored_matrix_bytes(location.path)
    if config.quantization != "none":
        bytes_of = matrix_bytes(config.quantization)
    if (itemsize := backend.weights.itemsize) is not None:
        bytes_of = partial(_matrix_of_items, itemsize)
    if bytes_of is None:
        return None
    weight_bytes = formulas.stored_weight_bytes(model, bytes_of)
    return _with_counted(location.name, model, weight_bytes, backend, config)


def _matrix_of_items(item_bytes: int, num_outputs: int, num_inputs: int) -> int:
    return item_bytes * num_outputs * num_inputs


def _with_counted(
    name: str, model: ModelConfig, weight_bytes: int, backend: Backend, config: EngineConfig
) -> PlannedModel:
    bytes_per_block = backend.kv_bytes_per_block(model, config.block_size, config.kv_cache_dtype)
    counted = replace(_formats(config), weight_bytes=weight_bytes, bytes_per_block=bytes_per_block)
    return PlannedModel(name, model, counted)


def _formats(config: EngineConfig) -> ModelFormats:
    return ModelFormats(
        config.quantization,
        config.kv_cache_dtype,
        config.block_size,
        memory_utilization=config.memory_utilization,
    )


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
