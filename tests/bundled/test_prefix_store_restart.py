"""Blocks on disk serve a second engine: the same tokens, the same bits."""

import os
import shutil
from pathlib import Path

import pytest

from pellucid.engine import LLMEngine
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.loaded_model import LoadedModel, load_model
from pellucid.observing.events import Warn
from pellucid.outputs import RequestOutput
from support.bundled import bundled_model

BLOCK_SIZE = 16
PROMPT = [*range(40, 140)] * 2  # 200 tokens: 12 whole blocks
PARAMS = SamplingParams(temperature=0.8, seed=3, max_tokens=20, logprobs=3, ignore_eos=True)


@pytest.fixture(params=["cpu", "numpy"])
def model(request: pytest.FixtureRequest) -> LoadedModel:
    if request.param == "cpu":
        return bundled_model()
    return load_model(EngineConfig(backend="numpy"))


def engine(model: LoadedModel, directory: Path | None, **knobs: object) -> LLMEngine:
    where = None if directory is None else str(directory)
    config = EngineConfig(block_size=BLOCK_SIZE, prefix_store=where, **knobs)
    return LLMEngine(config, model)


def generate(
    engine: LLMEngine, prompt: list[int] = PROMPT, params: SamplingParams = PARAMS
) -> RequestOutput:
    output = engine.add_request(prompt, params)
    while not output.finished:
        engine.step()
    engine.close()
    return output


def test_a_restarted_engine_goes_on_from_the_disk(model: LoadedModel, tmp_path: Path) -> None:
    alone = generate(engine(model, None))
    first = generate(engine(model, tmp_path))
    again = generate(engine(model, tmp_path))
    assert first.outputs == again.outputs == alone.outputs
    assert (first.num_cached_tokens, again.num_cached_tokens) == (0, 192)

    # The answer's own blocks are there as well.
    longer = [*PROMPT, *alone.outputs[0].token_ids, 5]
    expected = generate(engine(model, None), longer)
    extended = generate(engine(model, tmp_path), longer)
    assert extended.outputs == expected.outputs
    assert extended.num_cached_tokens == 208


def test_a_copy_of_the_checkpoint_finds_the_blocks(tmp_path: Path) -> None:
    model = bundled_model()
    copy = tmp_path / "copy"
    shutil.copytree(model.path, copy)
    for file in copy.iterdir():
        os.utime(file, (0, 0))
    generate(engine(model, tmp_path / "blocks"))
    elsewhere = engine(load_model(EngineConfig(model=str(copy))), tmp_path / "blocks")
    assert elsewhere.identity == engine(model, None).identity
    assert generate(elsewhere).num_cached_tokens == 192


def test_another_format_or_salt_finds_nothing(tmp_path: Path) -> None:
    model = bundled_model()
    generate(engine(model, tmp_path))
    for knobs in ({"kv_cache_dtype": "int8"}, {"quantize_activations": False}):
        changed = engine(model, tmp_path, **knobs)
        assert generate(changed).num_cached_tokens == 0
    salted = engine(model, tmp_path)
    output = salted.add_request(PROMPT, PARAMS, cache_salt="mine")
    while not output.finished:
        salted.step()
    assert output.num_cached_tokens == 0
    assert generate(engine(model, tmp_path)).num_cached_tokens == 192


def test_blocks_that_the_pool_gave_away_come_back_from_the_disk(tmp_path: Path) -> None:
    model = bundled_model()
    small = engine(model, tmp_path, num_kv_blocks=14, max_model_len=14 * BLOCK_SIZE)
    outputs = []
    for prompt in (PROMPT, PROMPT[::-1], PROMPT):
        outputs.append(small.add_request(prompt, PARAMS))
        while not outputs[-1].finished:
            small.step()
    assert outputs[2].outputs == outputs[0].outputs
    assert outputs[2].num_cached_tokens == 192


def test_damaged_files_cost_time_and_nothing_else(tmp_path: Path) -> None:
    model = bundled_model()
    alone = generate(engine(model, tmp_path))
    files = sorted(tmp_path.rglob("*.kv"))
    for index, path in enumerate(files):
        data = bytearray(path.read_bytes())
        data[len(data) * index // len(files)] ^= 1
        path.write_bytes(data)

    again = engine(model, tmp_path)
    warnings: list[Warn] = []
    again.events.subscribe(
        lambda record: warnings.append(record.event) if record.event.ev == "warn" else None
    )
    output = generate(again)
    assert output.outputs == alone.outputs
    assert output.num_cached_tokens == 0
    # It looks no further than the first block that it cannot use; that one is written again.
    (warning,) = warnings
    assert warning.code == "prefix_cache" and warning.msg.endswith(": removed")
    mended = engine(model, tmp_path)
    assert generate(mended).outputs == alone.outputs
