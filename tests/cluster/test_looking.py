"""Looking into an answer, and comparisons, where stages or ranks compute: as in one process, to the last bit."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pellucid.engine import LLMEngine
from pellucid.engine.inspection import AnswerSoFar
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.sampling_params import SamplingParams
from support.checkpoints import checkpoint_config, text_config, write_checkpoint
from support.looks import looks
from support.mpi import HAS_MPI, mpirun
from support.replies import without
from support.stages import deep, divisions, stages, write_key

PARAMS = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


def seen_attention(engine: LLMEngine) -> list[Any]:
    """Of an answer's last token: what each layer's attention is computed from, and its weights."""
    output = engine.add_request(np.random.default_rng(0).integers(3, 300, 75).tolist(), PARAMS)
    while engine.has_unfinished_requests:
        engine.step()
    prepared = engine.prepare(output.prompt_token_ids, PARAMS)
    answer = AnswerSoFar(prepared, output.seed, 0, output.outputs[0].token_ids, None)
    seen = engine.inspector.attention(answer)
    engine.scheduler.check_integrity()
    found: list[Any] = [seen.cost.num_cached, seen.cost.num_computed]
    for layer, call in seen.calls.items():
        weights, difference = seen.weights(layer)
        sinks = [] if call.sinks is None else call.sinks.tolist()
        found += [layer, call.q.tolist(), call.output.tolist(), sinks, weights.tolist(), difference]
        found += [call.scale, call.sliding_window, call.softcap]
        found += [each.tolist() for each in seen.numbers_of(layer, 1)]
    return found


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("llama", {"kv_cache_dtype": "int4", "block_size": 32}),  # with keys that are no codes yet
        ("gemma4", {}),  # windows; layers that share keys
        ("gpt-oss", {"backend": "numpy"}),  # sinks
        ("qwen3.5-moe", {}),  # recurrent layers
    ],
)
def test_attention_of_stages(family: str, settings: dict[str, Any], tmp_path: Path) -> None:
    overrides = deep(text_config(checkpoint_config(family)))
    model = write_checkpoint(tmp_path / "model", family, config_overrides=overrides)
    settings = {"backend": "cpu", "num_threads": 1, "block_size": 16, **settings}
    whole = LLMEngine.from_config(EngineConfig(model=str(model), **settings))
    with stages(model, divisions(whole.model_config, 3)[-1]) as addresses:
        staged = {"stages": addresses, "stages_key": write_key(tmp_path)}
        config = EngineConfig(model=str(model), **settings, **staged)
        with closing(LLMEngine.from_config(config)) as engine:
            assert seen_attention(engine) == seen_attention(whole)


@pytest.mark.parametrize(
    ("how", "kv_cache_dtype"), [("stage", "bf16"), ("stage", "int4"), ("ranks", "int4")]
)
def test_a_server_looks_as_in_one_process(how: str, kv_cache_dtype: str, tmp_path: Path) -> None:
    if how == "ranks" and not HAS_MPI:
        pytest.skip("needs mpirun")
    settings = {
        "backend": "cpu",
        "num_threads": 1,
        "kv_cache_dtype": kv_cache_dtype,
        "speculation": "off",
        "num_kv_blocks": 64,
        "max_model_len": 256,
    }
    expected = looks(LLMEngine.from_config(EngineConfig(**settings)))
    if how == "stage":
        with stages(None, [2]) as addresses:
            staged = {"stages": addresses, "stages_key": write_key(tmp_path)}
            with closing(LLMEngine.from_config(EngineConfig(**settings, **staged))) as engine:
                found = looks(engine)
        # Two requests decode in steps of their own, at the same time.
        for each in (expected, found):
            (batch,) = (name for name in each if "batch" in name)
            each[batch] = without_bytes(each[batch][-1:])
    else:
        divided = json.dumps({**settings, "tensor_parallel_size": 2})
        done = mpirun("-m", "support.looks", divided, str(tmp_path / "found"))
        assert done.returncode == 0, done.stderr
        found = json.loads((tmp_path / "found").read_text())
        expected, found = (without_bytes(each) for each in (expected, found))
    assert found == json.loads(json.dumps(expected))


def without_bytes(value: Any) -> Any:
    """JSON without bytes: those of a rank are its own."""
    return without(value, lambda name: "bytes" in name)
