"""The bundled draft model drafts for the bundled model: the same completions in fewer steps."""

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pellucid.backends.base import Backend
from pellucid.backends.cpu.backend import CpuBackend
from pellucid.backends.numpy.backend import NumpyBackend
from pellucid.engine import LLMEngine
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.loaded_model import LoadedModel, load_draft_model, load_model
from pellucid.loading.hub import BUNDLED_DRAFT_MODEL
from pellucid.observing.events import DraftRound, EventRecord, Level
from pellucid.outputs import RequestOutput
from support.bundled import bundled_engine, prompts_of_all_kinds
from support.checkpoints import write_checkpoint
from support.refusals import check_refusals

DRAFT = EngineConfig(speculation="draft")
PARAMS = [
    SamplingParams(temperature=0, max_tokens=30),
    SamplingParams(temperature=0.7, top_p=0.95, max_tokens=30, seed=1, logprobs=2),
    SamplingParams(temperature=1.0, max_tokens=25, seed=2, n=3),
    SamplingParams(temperature=1.4, min_p=0.05, max_tokens=30, seed=3, repetition_penalty=1.3),
    SamplingParams(
        temperature=0.8,
        top_k=20,
        max_tokens=20,
        seed=4,
        frequency_penalty=0.7,
        presence_penalty=0.3,
        logit_bias={5: 3.0},
        min_tokens=15,
        bad_words=["the"],
    ),
    SamplingParams(temperature=0.9, typical_p=0.8, max_tokens=30, seed=5, stop=["e", "."]),
]


@functools.cache
def models(make_backend: Callable[[], Backend]) -> tuple[LoadedModel, LoadedModel]:
    model = load_model(DRAFT, backend=make_backend())
    draft = load_draft_model(DRAFT, model)
    assert draft is not None
    return model, draft


def make_engine(make_backend: Callable[[], Backend], **knobs: Any) -> LLMEngine:
    model, draft = models(make_backend)
    knobs = {"speculation": "off", **knobs}
    if knobs["speculation"] == "off":
        return LLMEngine(EngineConfig(**knobs), model)
    return LLMEngine(EngineConfig(**knobs), model, draft=draft)


def answers(engine: LLMEngine, count: int) -> list[RequestOutput]:
    outputs = [
        engine.add_request(prompt, PARAMS[index % len(PARAMS)])
        for index, prompt in enumerate(prompts_of_all_kinds(count))
    ]
    while engine.has_unfinished_requests:
        engine.step()
    return outputs


@pytest.mark.parametrize(
    "knobs",
    [
        {},
        {"num_draft_tokens": 1, "block_size": 16},
        {"num_draft_tokens": 7, "max_num_batched_tokens": 40, "kv_cache_dtype": "int8"},
        {"num_kv_blocks": 80, "max_num_seqs": 5, "num_draft_tokens": 3},
        {"speculation": "auto"},
    ],
)
def test_answers_are_those_without_it(knobs: dict[str, Any]) -> None:
    own = {"speculation": "draft", **knobs}
    engine = make_engine(CpuBackend, **own)
    got = answers(engine, 6)
    expected = answers(make_engine(CpuBackend, **{**own, "speculation": "off"}), 6)
    for output, alone in zip(got, expected, strict=True):
        assert output.outputs == alone.outputs
    assert engine.speculation is not None
    if own["speculation"] == "draft":
        assert engine.speculation.acceptance > 0.15
    engine.scheduler.check_integrity()


def test_the_definition_of_the_ops_gives_its_own_answers_with_it() -> None:
    engine = make_engine(NumpyBackend, speculation="draft", num_draft_tokens=3)
    plain = make_engine(NumpyBackend)
    params = SamplingParams(temperature=0.7, top_p=0.9, seed=3, max_tokens=8)
    got = [each.add_request("Once upon a time", params) for each in (engine, plain)]
    for each in (engine, plain):
        while each.has_unfinished_requests:
            each.step()
    assert got[0].outputs == got[1].outputs
    assert engine.speculation is not None and engine.speculation.num_right > 0


def test_a_request_that_has_the_name_of_another_one_has_drafts_of_its_own() -> None:
    engine = make_engine(CpuBackend, speculation="draft")
    params = SamplingParams(temperature=0.5, seed=1, max_tokens=20)
    alone = bundled_engine()
    for prompt in ("Once upon a time", "The capital of France is", "Once upon a hill"):
        output = engine.add_request(prompt, params, "mine")
        expected = alone.add_request(prompt, params, "mine")
        for each in (engine, alone):
            while each.has_unfinished_requests:
                each.step()
        assert output.outputs == expected.outputs


def test_the_plan_holds_both_models() -> None:
    with_draft = make_engine(CpuBackend, speculation="draft", num_kv_blocks=100).memory_plan
    without = make_engine(CpuBackend, num_kv_blocks=100).memory_plan
    model, draft = models(CpuBackend)
    assert with_draft.weights - without.weights == draft.weight_bytes > 0
    draft_block = model.backend.kv_bytes_per_block(draft.config, 32, "bf16")
    assert with_draft.scratch - without.scratch > 100 * draft_block
    assert with_draft.bytes_per_block == without.bytes_per_block


def test_a_draft_model_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    model, draft = models(CpuBackend)
    other, bundled = str(write_checkpoint(tmp_path / "other", "llama")), str(model.path)
    refused = [
        ({"draft_model": other}, model),
        ({"draft_model": other, "speculation": "ngram"}, model),
        ({"model": other}, model),
        ({"draft_model": bundled}, draft),
        ({"draft_model": "nothere"}, model),
        ({"draft_model": "a/b/c"}, model),
    ]

    def load(case: tuple[dict[str, str], LoadedModel]) -> None:
        load_draft_model(EngineConfig(**{"speculation": "draft"} | case[0]), case[1])

    hidden = (tmp_path, model.path)
    check_refusals("draft_model", refused, load, name=lambda _: "", hidden=hidden)
    with pytest.raises(ValueError, match="needs a draft model"):
        LLMEngine(DRAFT, model)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_rounds_tell_both_distributions(temperature: float) -> None:
    """With the model as its own draft model the distributions are the same."""
    model, draft = models(CpuBackend)
    params = SamplingParams(temperature=temperature, top_k=40, seed=3, max_tokens=24)
    for own_draft, is_same in ((model, True), (draft, False)):
        engine = LLMEngine(EngineConfig(speculation="draft"), model, draft=own_draft)
        records: list[EventRecord] = []
        engine.events.subscribe(records.append, Level.TOKEN)
        engine.add_request("Once upon a time", params)
        while engine.has_unfinished_requests:
            engine.step()
        rounds = [record.event for record in records if isinstance(record.event, DraftRound)]
        assert rounds
        for each in rounds:
            assert each.p_target is not None and each.p_draft is not None
            assert each.overlap is not None and each.leviathan_tok is not None
            num_drafts = len(each.draft)
            assert len(each.p_target) == len(each.p_draft) == len(each.overlap) == num_drafts
            for p, q, overlap in zip(each.p_target, each.p_draft, each.overlap, strict=True):
                assert min(p, q) - 1e-9 <= overlap <= 1
                assert q > 0  # it was drawn from q
            if is_same:
                assert each.n_right == num_drafts and each.p_target == each.p_draft
                assert each.leviathan_tok == pytest.approx(num_drafts)
            assert each.leviathan_tok <= num_drafts


def test_a_draft_model_with_another_tokenizer_is_refused_with_what_differs(tmp_path: Path) -> None:
    """The vocabularies are equally large: two tokens have changed places."""
    model, _ = models(CpuBackend)
    other = tmp_path / "other"
    shutil.copytree(BUNDLED_DRAFT_MODEL, other)
    (other / "SHA256SUMS").unlink()
    tokenizer = other / "tokenizer.json"
    stored = json.loads(tokenizer.read_text())
    vocab = stored["model"]["vocab"]
    vocab["ĠHaiti"], vocab["apest"] = vocab["apest"], vocab["ĠHaiti"]
    tokenizer.write_text(json.dumps(stored))
    with pytest.raises(ValueError, match=r"token 4093 is b'apest' and b' Haiti'"):
        load_draft_model(EngineConfig(speculation="draft", draft_model=str(other)), model)


def test_memory_that_does_not_hold_both_caches_is_told_with_the_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alone = make_engine(CpuBackend, num_kv_blocks=4000).memory_plan
    enough_for_one = alone.scratch + alone.kv_cache
    monkeypatch.setattr(Backend, "available_memory", lambda backend: enough_for_one)
    make_engine(CpuBackend, num_kv_blocks=4000)
    with pytest.raises(
        ValueError,
        match=r"num_kv_blocks=4000: the KV cache would take \S+ GiB, but \S+ GiB of memory are available,"
        r" of which a step takes \S+ MiB: num_kv_blocks=\d+ would fit",
    ):
        make_engine(CpuBackend, num_kv_blocks=4000, speculation="draft")
