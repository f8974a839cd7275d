"""The bytes that `pellucid bench` counts are those that native weights take."""

import pytest

from pellucid.benchmark.random_model import planned_matrix_bytes, random_model
from pellucid.benchmark.session import Session
from pellucid.benchmark.workloads import Decode
from pellucid.inputs.config import QUANTIZATIONS, EngineConfig
from pellucid.shapes import SHAPES
from support.tiny_shape import TINY_SHAPE

ARITHMETIC = {"none": "bf16"}


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_planned_and_packed_weights_agree(
    quantization: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outputs fill whole panels of 32 here, so packing adds nothing but what fills short groups."""
    monkeypatch.setitem(SHAPES, "tiny", TINY_SHAPE)  # type: ignore[arg-type]
    config = EngineConfig(backend="cpu", quantization=quantization)
    model = random_model("tiny", config, [Decode(1)])
    weights = model.decoder.step_weights
    matrix_bytes = planned_matrix_bytes(config, model.backend)
    assert weights.arithmetic == ARITHMETIC.get(quantization, "int8")
    if not quantization.startswith("int4-g128"):
        assert weights.head_bytes == matrix_bytes(96, 32)
    assert weights.layer_bytes >= 2 * sum(
        matrix_bytes(*matrix) for matrix in ((64, 32), (32, 32), (96, 32), (32, 48))
    )


def test_a_native_run_costs_what_its_steps_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SHAPES, "tiny", TINY_SHAPE)  # type: ignore[arg-type]
    config = EngineConfig(backend="cpu", kv_cache_dtype="f32")
    workload = Decode(2, depth=40, batch=3)
    model = random_model("tiny", config, [workload])
    session = Session(model, config, [workload])
    cost = session.cost(session.run(workload))
    block_bytes = model.backend.kv_bytes_per_block(TINY_SHAPE, 32, "f32")
    positions = (41 + 16) + (42 + 16)  # of the two layers, each a group, in the two steps
    per_step = model.decoder.step_weights
    weights = 2 * per_step.num_bytes(with_head=True)
    assert cost.num_bytes == weights + 3 * positions * block_bytes // 32
