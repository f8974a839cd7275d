"""Inspection of a running engine whose model has recurrent states."""

from pathlib import Path

import numpy as np
import pytest

from pellucid import LLM
from pellucid.engine import LLMEngine
from pellucid.engine.inspection import AnswerSoFar
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.outputs import RequestOutput
from support.checkpoints import write_checkpoint

PROMPT = np.random.default_rng(0).integers(3, 300, 40).tolist()
PARAMS = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.fixture
def engine(tmp_path: Path) -> LLMEngine:
    model = str(write_checkpoint(tmp_path, "lfm2"))
    return LLM(model, backend="numpy", block_size=16, speculation="off").engine


def answer_of(engine: LLMEngine, output: RequestOutput, num_outputs: int) -> AnswerSoFar:
    prepared = engine.prepare(output.prompt_token_ids, PARAMS)
    return AnswerSoFar(prepared, output.seed, 0, output.outputs[0].token_ids[:num_outputs], None)


def test_logits_seen_again_choose_the_same_tokens_and_change_none(engine: LLMEngine) -> None:
    alone = engine.add_request(PROMPT, PARAMS)
    while engine.has_unfinished_requests:
        engine.step()
    output = engine.add_request(PROMPT, PARAMS)
    while engine.has_unfinished_requests:
        engine.step()
        num_outputs = len(output.outputs[0].token_ids) - 1
        seen = engine.inspector.logits(answer_of(engine, output, num_outputs))
        assert seen.logits.argmax() == output.outputs[0].token_ids[-1]
        engine.scheduler.check_integrity()
    assert output.outputs[0].token_ids == alone.outputs[0].token_ids


def test_a_look_that_cannot_move_blocks_changes_no_request(
    engine: LLMEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first step ends where a snapshot is taken. Its states are copied at its end, so nothing that others
    need is moved by a look."""
    alone = engine.add_request(PROMPT, PARAMS)
    while engine.has_unfinished_requests:
        engine.step()
    engine.scheduler.kv_cache_manager.block_pool.unseal_all()
    output = engine.add_request(PROMPT, PARAMS)
    engine.step()
    with monkeypatch.context() as patch:
        patch.setattr(engine.model_runner, "transfer", explode)
        with pytest.raises(RuntimeError, match="poisoned"):
            engine.inspector.logits(answer_of(engine, output, 0))
    while engine.has_unfinished_requests:
        engine.step()
    assert output.outputs[0].finish_reason == "length"
    assert output.outputs[0].token_ids == alone.outputs[0].token_ids
    engine.scheduler.check_integrity()


def explode(ops: object) -> None:
    raise RuntimeError("poisoned")
