"""The offline facade around a fake model: lists of any length, refused before they begin, progress."""

import io
import sys

import pytest

from pellucid import llm as llm_module
from pellucid.llm import LLM
from pellucid.sampling_params import SamplingParams
from support.fake_model import fake_engine


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> LLM:
    engine = fake_engine(max_num_seqs=4, max_num_batched_tokens=32)
    monkeypatch.setattr(llm_module.LLMEngine, "from_config", lambda *_: engine)
    return LLM(max_num_seqs=4)


def alone(prompt: list[int], params: SamplingParams) -> list:
    engine = fake_engine()
    output = engine.add_request(prompt, params)
    while engine.has_unfinished_requests:
        engine.step()
    return output.outputs


def test_a_long_list_is_added_as_places_become_free(llm: LLM) -> None:
    prompts = [[1 + i % 31, 1 + i // 31] for i in range(200)]
    all_params = [SamplingParams(max_tokens=1 + i % 5, seed=i, n=1 + i % 2) for i in range(200)]
    most, step = 0, llm.engine.step

    def watched():
        nonlocal most
        most = max(most, len(llm.engine.unfinished_request_ids))
        return step()

    llm.engine.step = watched
    outputs = llm.generate(prompts, all_params)
    assert [output.prompt_token_ids for output in outputs] == prompts
    for prompt, params, output in zip(prompts, all_params, outputs, strict=True):
        assert output.outputs == alone(prompt, params)
    assert most == 8
    assert not llm.engine.unfinished_request_ids


def test_a_bad_prompt_far_down_the_list_is_refused_before_anything_is_computed(llm: LLM) -> None:
    prompts = [[1, 2]] * 50
    with pytest.raises(ValueError, match="prompt: is empty"):
        llm.generate([*prompts, []])
    with pytest.raises(ValueError, match="stop_token_ids"):
        llm.generate(prompts, [SamplingParams()] * 49 + [SamplingParams(stop_token_ids=[99])])
    with pytest.raises(ValueError, match="params: 3 given for 50 prompts"):
        llm.generate(prompts, [SamplingParams()] * 3)
    assert not llm.engine.model_runner.decoder.batches


def test_a_list_that_can_never_fit_is_refused_by_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = fake_engine(context_length=64, num_kv_blocks=4, block_size=16)
    engine.scheduler.kv_cache_manager.fits_alone = lambda num_tokens: num_tokens < 30
    monkeypatch.setattr(llm_module.LLMEngine, "from_config", lambda *_: engine)
    with pytest.raises(ValueError, match=r"prompts\[2\].* needs up to 36 positions"):
        LLM().generate([[1], [1, 2], [3] * 21])
    assert not engine.has_unfinished_requests


def test_interrupted_it_leaves_the_engine_to_others(llm: LLM) -> None:
    step = llm.engine.step

    def interrupted():
        if len(llm.engine.model_runner.decoder.batches) == 3:
            raise KeyboardInterrupt
        return step()

    with llm.stream([5, 6], SamplingParams(max_tokens=30, seed=1, ignore_eos=True)) as stream:
        llm.engine.step = interrupted
        with pytest.raises(KeyboardInterrupt):
            llm.generate([[1, 2]] * 50)
        llm.engine.step = step
        assert list(llm.engine.unfinished_request_ids) == [stream.output.request_id]
        tokens = [token_id for delta in stream for token_id in delta.token_ids]
    assert tokens == stream.output.outputs[0].token_ids
    assert len(tokens) == 30


@pytest.mark.parametrize(("progress", "live"), [(None, True), (None, False), (True, True)])
def test_progress_on_a_terminal(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, progress: bool | None, live: bool
) -> None:
    screen = Terminal() if live else io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("pellucid.progress.BAR_DELAY", 0.0)
    llm.generate([[1, 2]] * 300, SamplingParams(max_tokens=20), progress=progress)
    assert ("of 300 prompts" in screen.getvalue()) == live


def test_progress_can_be_off(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", screen := Terminal())
    monkeypatch.setattr("pellucid.progress.BAR_DELAY", 0.0)
    llm.generate([[1, 2]] * 300, progress=False)
    assert screen.getvalue() == ""


def test_progress_where_nothing_can_be_drawn_is_lines(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pellucid.progress.LINE_INTERVAL", 0.0)
    llm.generate([[1, 2]] * 9, SamplingParams(max_tokens=3), progress=True)
    assert capsys.readouterr().err.splitlines()[-1].startswith("generate: 9 of 9 prompts, ")


def test_answers_that_are_ranked_cannot_be_streamed(llm: LLM) -> None:
    with pytest.raises(ValueError, match="best_of=4: a stream allows at most n=2"):
        llm.stream("abc", SamplingParams(n=2, best_of=4))
