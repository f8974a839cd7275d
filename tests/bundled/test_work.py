"""The work of decode steps, counted: what speed rests on cannot get lost unnoticed, on however busy a machine."""

import gc
import resource
import sys
import tracemalloc
from functools import cache
from typing import Any

import pytest

from pellucid.engine import LLMEngine
from pellucid.execution.candidates import Candidates
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.inputs.structured_outputs import StructuredOutputsParams
from pellucid.loaded_model import LoadedModel, load_model
from pellucid.observing.events import Level
from support.bundled import bundled_engine

GREEDY: dict[str, Any] = {"temperature": 0}
DRAWN: dict[str, Any] = {"seed": 1, "top_k": 40, "top_p": 0.9, "repetition_penalty": 1.2}


@cache
def bundled_model_on_one_thread() -> LoadedModel:
    """Several compute threads wait for each other when the system takes a core away."""
    return load_model(EngineConfig(num_threads=1))


def decoding_engine(num_requests: int, params: dict[str, Any]) -> LLMEngine:
    """All requests have their first tokens."""
    config = EngineConfig(max_num_seqs=32, speculation="off", num_threads=1)
    engine = LLMEngine(config, bundled_model_on_one_thread())
    for number in range(num_requests):
        prompt = [5 + number] * 40
        engine.add_request(prompt, SamplingParams(max_tokens=200, ignore_eos=True, **params))
    for _ in range(8):
        engine.step()
    return engine


@pytest.mark.parametrize("params", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_a_decode_step_neither_waits_nor_asks_the_system_for_memory(params: dict[str, Any]) -> None:
    engine = decoding_engine(16, params)
    waits, faults = [], []
    for _ in range(
        3
    ):  # a wait of a step comes each time; one for another thread's lock, now and then
        before = resource.getrusage(resource.RUSAGE_THREAD)
        for _ in range(50):
            engine.step()
        after = resource.getrusage(resource.RUSAGE_THREAD)
        waits.append(after.ru_nvcsw - before.ru_nvcsw)
        faults.append(after.ru_minflt - before.ru_minflt)
    assert min(waits) <= 5
    # Answers grow; the rows of logits alone are 64 pages.
    assert min(faults) < 50 * 4


@pytest.mark.parametrize("params", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_calls_and_memory_of_a_decode_step(params: dict[str, Any]) -> None:
    calls, peaks = {}, {}
    for num_requests in (1, 17):
        engine = decoding_engine(num_requests, params)
        count = 0

        def note(frame: object, event: str, argument: object) -> None:
            nonlocal count
            count += event == "call"

        gc.disable()  # it calls finalizers of others
        try:
            sys.setprofile(note)
            engine.step()
        finally:
            sys.setprofile(None)
            gc.enable()
        calls[num_requests] = count
        tracemalloc.start()
        try:
            engine.step()
            tracemalloc.reset_peak()
            start, _ = tracemalloc.get_traced_memory()
            engine.step()
            peaks[num_requests] = tracemalloc.get_traced_memory()[1] - start
        finally:
            tracemalloc.stop()
    assert calls[1] < 180
    assert (calls[17] - calls[1]) / 16 < (80 if params is GREEDY else 90)
    # Of each request little more than its row of logits, once.
    row_bytes = engine.model_config.vocab_size * 4
    assert peaks[1] < row_bytes + 6_000
    assert (peaks[17] - peaks[1]) / 16 < row_bytes + 1_500


@pytest.mark.parametrize(
    ("params", "rows"),
    [
        (GREEDY, 0),
        (DRAWN, 0),
        ({"seed": 1, "min_p": 0.1, "typical_p": 0.9, "min_tokens": 3, "temperature": 0.7}, 0),
        ({"seed": 1, "presence_penalty": 1.0, "frequency_penalty": 0.5, "bad_words": [" the"]}, 0),
        ({**GREEDY, "logit_bias": {7: 2.0}, "allowed_token_ids": range(9, 999)}, 0),
        ({"seed": 1, "structured_outputs": StructuredOutputsParams(regex="[a-z ]+")}, 0),
        ({**GREEDY, "logprobs": 2}, 2 * 12),  # the model's own, and what is drawn from
    ],
    ids=["greedy", "drawn", "truncated", "penalties", "masks", "grammar", "logprobs"],
)
@pytest.mark.parametrize("speculation", ["off", "ngram"])
def test_rows_of_logits_that_python_looks_at(
    params: dict[str, Any], rows: int, speculation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None unless a request asks for log-probabilities: the backend draws within its step."""
    looked, of = [], Candidates.of
    monkeypatch.setattr(Candidates, "of", lambda logits: looked.append(1) or of(logits))
    engine = bundled_engine(speculation=speculation)
    engine.add_request(
        "Copy this: one two", SamplingParams(max_tokens=12, ignore_eos=True, **params)
    )
    while engine.has_unfinished_requests:
        engine.step()
    assert len(looked) == rows


def test_a_watched_token_is_summarized_once_whatever_was_drafted() -> None:
    engine = bundled_engine(speculation="ngram")
    engine.events.subscribe(lambda record: None, Level.TOKEN)
    decoder, asked = engine.model_runner.decoder, []
    summarize = decoder.summarize_rows

    def counted(rows, questions):  # type: ignore[no-untyped-def]
        asked.extend(questions)
        return summarize(rows, questions)

    decoder.summarize_rows = counted  # type: ignore[method-assign]
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    output = engine.add_request("Once upon a time, Mira had a small red key. " * 3, params)
    while engine.has_unfinished_requests:
        engine.step()
    drafts = engine.speculation
    assert drafts is not None and 0 < drafts.num_right < drafts.num_drafts
    assert len(asked) == len(output.outputs[0].token_ids)
