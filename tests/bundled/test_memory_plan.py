"""The memory plan of the bundled model, compared with the memory that the process takes."""

import pytest

from pellucid import loaded_model
from pellucid.backends.base import Backend
from pellucid.backends.choice import make_backend
from pellucid.backends.quantization.formats import FORMATS
from pellucid.engine import LLMEngine
from pellucid.inputs.config import EngineConfig
from pellucid.loading.hub import BUNDLED_MODEL
from pellucid.loading.open_model import open_stored_model
from pellucid.loading.parameters import CheckpointParameters
from pellucid.memory.memory_plan import plan_weights
from pellucid.models.registry import decoder_class
from support.memory_use import OwnMemory

MIB = 1 << 20
PADDING = 0.01  # of layouts


class CountingParameters(CheckpointParameters):
    num_bytes = 0

    def matrix(self, *args, **kwargs):
        handle = super().matrix(*args, **kwargs)
        self.num_bytes += handle.num_bytes
        return handle

    def vector(self, *args):
        handle = super().vector(*args)
        self.num_bytes += handle.nbytes
        return handle


def counted_weights(backend: Backend, quantization: str) -> int:
    model = open_stored_model(BUNDLED_MODEL)
    parameters = CountingParameters(
        model.tensors, model.names, model.config, backend.weights, FORMATS.get(quantization)
    )
    decoder_class(model.config.architecture)(model.config, parameters, backend.ops)
    return parameters.num_bytes


@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
def test_weights_take_what_was_planned(quantization: str) -> None:
    backend = make_backend(EngineConfig(backend="cpu"))
    planned = plan_weights(
        open_stored_model(BUNDLED_MODEL), backend.weights.itemsize, quantization
    ).total
    assert planned == pytest.approx(counted_weights(backend, quantization), rel=PADDING)


def test_weights_that_do_not_fit_are_refused_before_they_are_read(monkeypatch) -> None:
    monkeypatch.setattr(Backend, "available_memory", lambda backend: 10_000_000)
    monkeypatch.setattr(loaded_model, "make_decoder", lambda *args: pytest.fail("was read"))
    with pytest.raises(
        ValueError,
        match=r"weights take \S+ MiB, .* 9\.54 MiB of memory are available: quantization='int8'",
    ):
        LLMEngine.from_config(EngineConfig())


@pytest.mark.parametrize("backend", ["cpu", "numpy"])
def test_a_large_kv_cache_costs_nothing_until_it_is_used(backend: str) -> None:
    memory = OwnMemory()
    before = memory.now()
    engine = LLMEngine.from_config(EngineConfig(backend=backend, kv_cache_memory=1 << 30))
    assert engine.memory_plan.kv_cache > 0.99 * (1 << 30)
    assert memory.now() - before < 200 * MIB  # weights, scratch and 30,000 blocks' bookkeeping
