"""What an estimate needs to know of a model: its configuration and what it takes of memory, without its weights."""

from dataclasses import dataclass, replace

from pellucid.backends.base import Backend
from pellucid.backends.choice import make_backend
from pellucid.backends.quantization.formats import BF16, FORMATS, MatrixFormat
from pellucid.benchmark.machine_facts import MachineFacts
from pellucid.benchmark.measured_speed import SecondsByKind
from pellucid.benchmark.speed_file import find_speed, speed_key
from pellucid.facts import formulas
from pellucid.facts.kv_groups import share_of_heads
from pellucid.facts.model_config import ModelConfig
from pellucid.inputs.config import EngineConfig
from pellucid.loading.file_names import CONFIG_FILE, has_weights
from pellucid.loading.hub import ModelLocation
from pellucid.loading.hub_headers import find_headers
from pellucid.loading.open_model import open_stored_model
from pellucid.loading.planned_parameters import FindFormats, PlannedParameters, stored_formats
from pellucid.loading.stored_model import StoredModel
from pellucid.memory.engine_plan import (
    EngineModels,
    EnginePlan,
    ModelNeeds,
    longest_model_len,
    plan_engine,
)
from pellucid.models.registry import decoder_class
from pellucid.shapes import find_shape

NARROW = 0.9  # weights of fewer bytes, as a share of those in bf16, are multiplied as int8


@dataclass(frozen=True)
class PlannedModel:
    """A model that is not loaded.

    Args:
        settings: of the engine that would run it.
        models: what it and its draft model take of memory.
    """

    name: str
    settings: EngineConfig
    models: EngineModels

    @property
    def config(self) -> ModelConfig:
        return self.models.model.config

    @property
    def num_ranks(self) -> int:
        """Processes that compute each step together. All bytes are those of one of them."""
        return self.models.model.backend.weights.num_ranks

    @property
    def num_kv_shares(self) -> int:
        """Into which the kv-heads are divided among these processes."""
        return self.models.model.backend.kv_shares(self.config)

    @property
    def own_heads(self) -> ModelConfig:
        """The model with the heads of one process."""
        return share_of_heads(self.config, self.num_kv_shares)

    @property
    def weight_bytes(self) -> int:
        """Of the model and of its draft model."""
        draft = self.models.draft
        return self.models.model.weight_bytes + (0 if draft is None else draft.weight_bytes)

    def engine_plan(self, memory_bytes: float) -> EnginePlan | None:
        """The sizes of an engine on a machine, as the engine plans them. Where there is no room for a sequence of
        `max_model_len` tokens, for the longest one that there is room for.

        Args:
            memory_bytes: free, before the weights are loaded.

        Returns:
            None if there is no room for any sequence.

        Raises:
            ValueError: the settings ask for more than there is.
        """
        available = max(0, int(memory_bytes) - self.weight_bytes)
        longest = longest_model_len(self.settings, self.models, available)
        if not longest:
            return None
        return plan_engine(replace(self.settings, max_model_len=longest), self.models, available)


def find_planned_model(shape: str | None, settings: EngineConfig) -> PlannedModel:
    """A known shape, or the checkpoint that `settings` names.

    Weights are counted as loading would count them, by the headers of a file or directory here, or of a GGUF file
    on the hub. Otherwise config.json is enough, if it says how the weights are stored.

    Args:
        shape: a name in `SHAPES`; None: the checkpoint.

    Raises:
        ValueError: there is no such shape, or the checkpoint cannot be used.
        OSError: a file cannot be read.
    """
    if shape is not None:
        return plan_shape(shape, find_shape(shape), settings)
    name, model = _find_needs(settings.model, settings.revision, settings)
    draft = None
    if settings.draft_model is not None:
        _, draft = _find_needs(settings.draft_model, None, settings, model.backend)
    return PlannedModel(name, settings, EngineModels(model, draft, settings.speculation != "off"))


def plan_shape(
    name: str, model: ModelConfig, settings: EngineConfig, backend: Backend | None = None
) -> PlannedModel:
    """A model of these facts whose weights are bf16, if `settings` do not ask for another format.

    Args:
        backend: that would run it; None: as `settings` say.
    """
    needs = _needs(model, settings, _all_of(BF16), backend)
    return PlannedModel(name, settings, EngineModels(needs, None, settings.speculation != "off"))


def plan_stored_model(name: str, stored: StoredModel, settings: EngineConfig) -> PlannedModel:
    """An open checkpoint, whose weights are counted as loading would count them."""
    needs = _needs(stored.config, settings, stored_formats(stored))
    return PlannedModel(name, settings, EngineModels(needs, None, settings.speculation != "off"))


def _find_needs(
    model: str | None, revision: str | None, settings: EngineConfig, backend: Backend | None = None
) -> tuple[str, ModelNeeds]:
    """The name of a checkpoint, and what it needs."""
    with find_headers(model, revision, with_weights=False) as location:
        path = location.path
        if not path.is_dir() or has_weights(path) or not (path / CONFIG_FILE).exists():
            return location.name, _open_needs(location, settings, backend)
        # Imported here: the header of a GGUF file needs none of it.
        from pellucid.loading.hf_config import read_model_config
        from pellucid.loading.stored_size import stored_matrix_format

        config = read_model_config(path)
        stored_format = stored_matrix_format(path)
        if stored_format is not None or settings.quantization != "none":
            formats = _all_of(stored_format or BF16)
            return location.name, _needs(config, settings, formats, backend)
    with find_headers(model, revision) as location:
        return location.name, _open_needs(location, settings, backend)


def _open_needs(
    location: ModelLocation, settings: EngineConfig, backend: Backend | None
) -> ModelNeeds:
    stored = open_stored_model(location.path, verifies_checksums=False)
    return _needs(stored.config, settings, stored_formats(stored), backend)


def _needs(
    model: ModelConfig,
    settings: EngineConfig,
    find_formats: FindFormats,
    backend: Backend | None = None,
) -> ModelNeeds:
    """Compiles the decoder over weights without numbers."""
    backend = backend or make_backend(settings, model, is_planned=True)
    weight_format = FORMATS.get(settings.quantization)
    parameters = PlannedParameters(backend.weights, find_formats, weight_format)
    decoder = decoder_class(model.architecture)(model, parameters, backend.ops)
    compiled = backend.compile(decoder, model)
    scratch = compiled.scratch_bytes(settings.max_step_tokens(model.context_length))
    return ModelNeeds(model, backend, parameters.num_bytes, scratch)


def _all_of(stored_format: MatrixFormat) -> FindFormats:
    return lambda name: [stored_format]


def measure_this_machine(model: PlannedModel) -> MachineFacts:
    """This machine's bandwidth, its free memory, and its peak in the arithmetic of the model's weights. Takes a
    second or two.

    Raises:
        ValueError: the system does not report how much memory is free.
    """
    needs = model.models.model
    memory = needs.backend.available_memory()
    if memory is None:
        raise ValueError("the system does not report how much memory is free: set --memory")
    in_bf16 = formulas.stored_weight_bytes(model.config, BF16.num_bytes)
    ceilings = needs.backend.measure(model.settings.num_threads)
    device = needs.backend.device_facts
    return MachineFacts(
        "this machine" if device is None else device.words,
        "M",
        ceilings.bandwidth_bytes_per_second,
        ceilings.peak("int8" if needs.weight_bytes < NARROW * in_bf16 else "bf16"),
        memory,
    )


def speed_of_this_machine(model: PlannedModel) -> SecondsByKind | None:
    """As `bench` measured models in the formats of `model`; None: it has measured none."""
    needs = model.models.model
    key = speed_key(model.settings, needs.backend, needs.config, needs.weight_bytes)
    speed = find_speed(key)
    return None if speed is None else speed.seconds_by_kind()
