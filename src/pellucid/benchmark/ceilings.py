"""The lower bound of a step's time on this machine, by bandwidth and by arithmetic."""

from pellucid.engine.engine_events import Ceilings
from pellucid.inputs.config import EngineConfig
from pellucid.loaded_model import LoadedModel


def measure_ceilings(config: EngineConfig, model: LoadedModel) -> Ceilings:
    """Measures memory bandwidth, and operations in the arithmetic of the model's weights. Takes a second
    or two."""
    machine = model.backend.measure(config.num_threads)
    peak = machine.peak(model.decoder.step_weights.arithmetic)
    return Ceilings(machine.bandwidth_bytes_per_second, peak)
