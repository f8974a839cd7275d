"""What is planned of a model by its config.json alone is what an engine allocates that has loaded its weights."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType

from pellucid import loaded_model
from pellucid.backends.base import Backend
from pellucid.benchmark.planned_model import find_planned_model
from pellucid.engine import LLMEngine
from pellucid.inputs.config import EngineConfig, fitting_block_size
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.memory.engine_plan import EnginePlan
from support.checkpoints import DISTINCT_FAMILIES, write_checkpoint
from support.gguf_files import write_gguf

MIB = 1 << 20
SMALL = {"num_threads": 2, "max_num_batched_tokens": 128}
DENSE, WINDOWED, RECURRENT = "llama", "gemma3", "qwen3.5"
SETTINGS: list[tuple[str, dict[str, Any]]] = [
    *((family, {}) for family in DISTINCT_FAMILIES),
    *((DENSE, {"kv_cache_dtype": dtype}) for dtype in ("f32", "int8", "int8,int4", "int4")),
    *((DENSE, {"quantization": name}) for name in ("int8", "int4", "int4-g128-zp", "int8-channel")),
    *((family, {"backend": "numpy"}) for family in (DENSE, WINDOWED, RECURRENT, "qwen3-moe")),
    *((family, {"num_kv_blocks": 100}) for family in (DENSE, WINDOWED)),
    *((family, {"kv_cache_memory": MIB}) for family in (DENSE, WINDOWED)),
    *((family, {"max_num_seqs": 3}) for family in (DENSE, WINDOWED, RECURRENT)),
    *((family, {"max_model_len": 80}) for family in (DENSE, WINDOWED)),
    *((family, {"block_size": 128}) for family in (DENSE, WINDOWED)),
    (DENSE, {"memory_utilization": 0.5}),
    (DENSE, {"quantize_activations": False}),
    (DENSE, {"max_num_batched_tokens": 2048}),
    (RECURRENT, {"enable_prefix_caching": False}),
    (RECURRENT, {"speculation": "off"}),
    ("qwen3-moe", {"quantization": "int4"}),
    ("qwen3-moe", {"experts": "mapped"}),
]


def config_alone(directory: Path) -> Path:
    """The same model without its weights."""
    alone = directory.with_name(f"{directory.name}-config")
    alone.mkdir()
    shutil.copy(directory / "config.json", alone)
    return alone


def loaded(monkeypatch: pytest.MonkeyPatch, config: EngineConfig, available: int) -> EnginePlan:
    """Of an engine where so many bytes are available once the weights have been loaded."""
    monkeypatch.setattr(Backend, "available_memory", lambda backend: available)
    model = loaded_model.load_model(config)
    draft = loaded_model.load_draft_model(config, model)
    engine = LLMEngine(config, model, draft=draft)
    plan = engine.plan
    assert engine.scheduler.kv_cache_manager.block_pool.num_blocks == plan.cache.num_blocks
    engine.close()
    return plan


def assert_same(planned: EnginePlan | None, allocated: EnginePlan) -> None:
    assert planned is not None
    for name in ("cache", "draft_cache", "max_pending_blocks", "max_extra_logits"):
        assert getattr(planned, name) == getattr(allocated, name)
    for name in ("num_blocks", "bytes_per_block", "scratch", "states", "max_model_len"):
        assert getattr(planned.memory, name) == getattr(allocated.memory, name)
    for num_positions in {
        *range(1, 130),
        *range(130, planned.memory.max_model_len, 61),
        planned.memory.max_model_len,
    }:
        assert planned.num_requests(num_positions) == allocated.num_requests(num_positions)


@pytest.mark.parametrize(("family", "settings"), SETTINGS)
def test_config_json_says_what_is_allocated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, settings: dict[str, Any]
) -> None:
    full = write_checkpoint(tmp_path / "model", family, dtype="bfloat16")
    settings = SMALL | settings
    planned = find_planned_model(None, EngineConfig(model=str(config_alone(full)), **settings))
    config = EngineConfig(model=str(full), **settings)
    for available in (24 * MIB, 1 << 30):  # all of them limit some model
        allocated = loaded(monkeypatch, config, available)
        assert_same(planned.engine_plan(available + planned.weight_bytes), allocated)


@pytest.mark.parametrize("family", ["mistral", RECURRENT])
def test_a_draft_model_is_planned_with_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    deep = {"num_hidden_layers": 12}
    model = write_checkpoint(tmp_path / "model", DENSE, dtype="bfloat16", config_overrides=deep)
    draft = write_checkpoint(tmp_path / "draft", family, dtype="bfloat16")
    settings = {**SMALL, "speculation": "draft"}
    config = EngineConfig(model=str(model), draft_model=str(draft), **settings)
    allocated = loaded(monkeypatch, config, 40 * MIB)
    alone = [str(config_alone(each)) for each in (model, draft)]
    planned = find_planned_model(
        None, EngineConfig(model=alone[0], draft_model=alone[1], **settings)
    )
    assert allocated.draft_cache is not None
    assert_same(planned.engine_plan(40 * MIB + planned.weight_bytes), allocated)


@pytest.mark.parametrize("other_types", [{}, {"blk.1.attn_v.weight": GGMLQuantizationType.F16}])
def test_the_header_of_a_gguf_file_says_what_is_allocated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other_types: dict[str, GGMLQuantizationType]
) -> None:
    directory = write_checkpoint(tmp_path / "model", DENSE)
    file = write_gguf(
        tmp_path / "model.gguf",
        directory,
        matrix_type=GGMLQuantizationType.Q8_0,
        other_types=other_types,
    )
    config = EngineConfig(model=str(file), **SMALL)
    planned = find_planned_model(None, config)
    allocated = loaded(monkeypatch, config, 30 * MIB)
    assert_same(planned.engine_plan(30 * MIB + planned.weight_bytes), allocated)
    assert planned.weight_bytes == pytest.approx(allocated.memory.weights, rel=0.02)


@pytest.mark.parametrize("num_tokens", [(30, 3), (30, 4), (31, 2), (1, 48)])
def test_as_many_requests_run_together_as_are_planned(
    tmp_path: Path, num_tokens: tuple[int, int]
) -> None:
    prompt, output = num_tokens
    path = write_checkpoint(tmp_path, DENSE)
    config = EngineConfig(
        model=str(path),
        num_kv_blocks=19,
        block_size=16,
        max_model_len=64,
        enable_prefix_caching=False,
        speculation="off",
        num_threads=2,
    )
    plan = find_planned_model(None, config).engine_plan(1 << 30)
    assert plan is not None
    fitting = plan.num_requests(prompt + output - 1)
    assert 1 < fitting < config.max_num_seqs
    for num_requests, is_one_too_many in ((fitting, False), (fitting + 1, True)):
        engine = LLMEngine.from_config(config)
        params = SamplingParams(temperature=0, max_tokens=output, ignore_eos=True)
        outputs = [
            engine.add_request([5 + number] * prompt, params) for number in range(num_requests)
        ]
        engine.step()
        has_waited = not all(each.outputs[0].token_ids for each in outputs)
        while engine.has_unfinished_requests:
            engine.step()
        has_waited |= any(each.metrics.num_preemptions for each in outputs)
        assert has_waited == is_one_too_many


@pytest.mark.parametrize("dtype", ["int8", "int8,int4", "int4"])
def test_a_context_that_does_not_fit_does_in_the_format_that_the_error_names(
    tmp_path: Path, dtype: str
) -> None:
    # The codes of smaller heads are padded to 32.
    checkpoint = write_checkpoint(tmp_path, DENSE, config_overrides={"head_dim": 64})
    block_size = fitting_block_size(16, dtype)
    knobs = {"model": str(checkpoint), "block_size": block_size, **SMALL}
    sizes = []
    for each in ("bf16", dtype):
        plan = find_planned_model(None, EngineConfig(kv_cache_dtype=each, **knobs)).engine_plan(
            1 << 30
        )
        assert plan is not None
        sizes.append(plan.memory.bytes_per_block)
    full, smaller = sizes
    num_blocks = 160 // block_size
    knobs |= {"max_model_len": 160, "kv_cache_memory": -(-num_blocks * smaller // full) * full}
    with pytest.raises(ValueError, match=f"kv_cache_dtype='{dtype}'"):
        LLMEngine.from_config(EngineConfig(**knobs))
    LLMEngine.from_config(EngineConfig(kv_cache_dtype=dtype, **knobs)).close()
