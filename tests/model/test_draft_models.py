"""Draft models of other shapes than their models': small steps, windows, groups of layers, padded vocabularies."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pellucid.engine import LLMEngine
from pellucid.facts.kv_groups import block_needs
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.inputs.structured_outputs import StructuredOutputsParams
from pellucid.loaded_model import LoadedModel, load_draft_model, load_model
from pellucid.outputs import RequestOutput
from pellucid.speculation.proposers.draft_model import DraftModel
from support.checkpoints import write_checkpoint

RNG = np.random.default_rng(0)
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


def load(directory: Path, family: str, backend: str = "numpy", **overrides: Any) -> LoadedModel:
    write_checkpoint(directory, family, config_overrides=overrides)
    return load_model(EngineConfig(model=str(directory), backend=backend))


def engine(model: LoadedModel, draft: LoadedModel | None, **knobs: Any) -> LLMEngine:
    speculation = "off" if draft is None else "draft"
    config = EngineConfig(**{"speculation": speculation, "block_size": 16, **knobs})
    return LLMEngine(config, model, draft=draft)


def draft_model(running: LLMEngine) -> DraftModel:
    assert running._core.speculation is not None
    proposer = running._core.speculation._proposer
    assert isinstance(proposer, DraftModel)
    return proposer


def prompts(*lengths: int) -> list[list[int]]:
    return [RNG.integers(4, 300, length).tolist() for length in lengths]


def generate(
    running: LLMEngine, texts: list[list[int]], params: SamplingParams = GREEDY
) -> list[RequestOutput]:
    outputs = [running.add_request(text, params) for text in texts]
    while running.has_unfinished_requests:
        running.step()
        running.scheduler.check_integrity()
    return outputs


def assert_same(
    running: LLMEngine, texts: list[list[int]], params: SamplingParams = GREEDY
) -> None:
    """Drafts are right and wrong, and change no answer."""
    plain = engine(running.model, None)
    for own, other in zip(
        generate(running, texts, params), generate(plain, texts, params), strict=True
    ):
        assert own.outputs == other.outputs
    assert running.speculation is not None and running.speculation.num_right > 0


def assert_no_proposal_failed(caplog: pytest.LogCaptureFixture) -> None:
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize(
    ("backend", "family"), [("cpu", "llama"), ("numpy", "llama"), ("cpu", "lfm2")]
)
def test_a_draft_that_the_step_dropped_and_that_was_right(
    backend: str, family: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The twin has computed the new token already, as a draft: it computes this token again."""
    model = load(tmp_path, family, backend)
    knobs = {"num_draft_tokens": 5, "max_num_batched_tokens": 17}
    assert_same(engine(model, model, **knobs), prompts(4, 4, 4, 4))
    assert_no_proposal_failed(caplog)


@pytest.mark.parametrize("num_tokens", [15, 16, 17, 40])
def test_a_draft_model_with_windows_reads_a_prompt_of_a_whole_step(
    num_tokens: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The drafts behind the text need blocks besides those of the step that reads it."""
    model = load(tmp_path, "gemma3")
    running = engine(model, model, num_draft_tokens=6, max_num_batched_tokens=16)
    assert_same(running, prompts(num_tokens))
    assert_no_proposal_failed(caplog)


def test_a_draft_model_with_windows_frees_what_has_left_them(tmp_path: Path) -> None:
    model = load(tmp_path, "gemma3")
    running = engine(model, model, num_draft_tokens=4, max_num_batched_tokens=16)
    proposer, held = draft_model(running), []
    running.add_request(
        prompts(40)[0], SamplingParams(temperature=0, max_tokens=150, ignore_eos=True)
    )
    while running.has_unfinished_requests:
        running.step()
        manager = proposer._blocks
        held += [manager.num_blocks(twin.own) for twin in proposer._twins.values()]
        manager.check_integrity()
    assert max(held) <= block_needs(model.config, 16, 16).most(190 + 4)


@pytest.mark.parametrize(
    ("family", "draft_family"), [("llama", "gemma3"), ("gemma3", "llama"), ("gemma3", "gemma3")]
)
@pytest.mark.parametrize("length", [20, 250])
def test_the_draft_model_has_blocks_for_as_many_texts_as_the_model(
    family: str, draft_family: str, length: int, tmp_path: Path
) -> None:
    model = load(tmp_path / "model", family)
    draft = load(tmp_path / "draft", draft_family)
    running = engine(model, draft, num_kv_blocks=100, max_num_batched_tokens=64)
    own = block_needs(model.config, 16, 64).most(length)
    needed = block_needs(draft.config, 16, 64).most(length)
    pool = draft_model(running)._blocks.block_pool
    assert pool.num_blocks // needed >= 100 // own
    plan = running.memory_plan
    per_block = model.backend.kv_bytes_per_block(draft.config, 16, "bf16")
    assert plan.scratch >= per_block * pool.num_blocks


@pytest.mark.parametrize(
    ("backend", "size", "draft_size"), [("cpu", 320, 400), ("cpu", 400, 320), ("numpy", 400, 320)]
)
def test_vocabularies_that_differ_by_padding(
    backend: str, size: int, draft_size: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = load(tmp_path / "model", "llama", backend, vocab_size=size)
    draft = tmp_path / "draft"
    write_checkpoint(
        draft, "llama", config_overrides={"vocab_size": draft_size, "num_hidden_layers": 1}
    )
    config = EngineConfig(
        draft_model=str(draft), speculation="draft", model=str(model.path), quantization="none"
    )
    loaded = load_draft_model(config, model)
    assert loaded is not None and loaded.config.vocab_size == draft_size
    for params in (
        SamplingParams(temperature=1.5, seed=1, max_tokens=24, ignore_eos=True),
        SamplingParams(
            temperature=1.0,
            seed=2,
            max_tokens=24,
            ignore_eos=True,
            repetition_penalty=1.2,
            logit_bias={size - 1: 1.0, 7: 3.0},
        ),
        SamplingParams(
            temperature=1.0, seed=3, max_tokens=24, allowed_token_ids=[*range(5, 90), size - 1]
        ),
        SamplingParams(
            temperature=1.0,
            seed=4,
            max_tokens=24,
            structured_outputs=StructuredOutputsParams(regex="[a-z ]{20,40}"),
        ),
    ):
        running = engine(model, loaded, num_draft_tokens=4)
        # The last prompt has a token that a smaller draft model does not know.
        texts = [*prompts(5, 20), [5, size - 1, 7]]
        outputs = generate(running, texts, params)
        plain = generate(engine(model, None), texts, params)
        assert [own.outputs for own in outputs] == [own.outputs for own in plain]
        assert running.speculation is not None and running.speculation.num_drafts > 0
    assert_no_proposal_failed(caplog)


def test_drafts_are_tokens_of_the_model(tmp_path: Path) -> None:
    """Padding of the draft model is never drawn, however likely it is."""
    model = load(tmp_path / "model", "llama")

    def prefer_padding(weights: Any) -> None:
        weights["model.embed_tokens.weight"][320:] *= 50

    write_checkpoint(
        tmp_path / "draft",
        "llama",
        config_overrides={"vocab_size": 400, "tie_word_embeddings": True},
        edit_weights=prefer_padding,
    )
    draft = load_model(EngineConfig(model=str(tmp_path / "draft"), backend="numpy"))
    running = engine(model, draft, num_draft_tokens=4)
    proposer, drafts = draft_model(running), []
    propose = proposer.propose

    def record(*args: Any) -> Any:
        made = propose(*args)
        drafts.extend(token_id for own in made.values() for token_id in own)
        return made

    proposer.propose = record  # type: ignore[method-assign]
    generate(running, prompts(5, 20))
    assert drafts and max(drafts) < 320
