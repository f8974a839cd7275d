"""Native draws equal the sampler's: on every level, with any number of threads, alone and in batches."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pytest

from pellucid.backends.cpu.program_decoder import native_draws
from pellucid.backends.drawing import DrawTable, TokenIds
from pellucid.backends.native import Draw, Program, RowSet, ThreadPool, find_kernels, kernel_levels
from pellucid.execution.request_draws import DRAWN_PARAMETERS, OTHER_PARAMETERS, RequestDraws
from pellucid.execution.request_state import RequestState
from pellucid.execution.sampler import Sampler, SamplingRow
from pellucid.execution.sampling_order import PARAMETERS
from pellucid.inputs.beam_search_params import BeamSearchParams
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.inputs.structured_outputs import StructuredOutputsParams
from pellucid.observing.events import Level
from pellucid.scheduling.scheduler_output import ScheduledRequest
from support.bundled import bundled_engine
from support.draw_cases import defined, make_request, random_logits, random_params

VOCAB_SIZES = [1, 5, 127, 128, 1000, 20_011]


def draw_natively(
    logits: np.ndarray, draws: Sequence[tuple[int, Draw]], isa: str = "", num_threads: int = 1
) -> list[int]:
    """A program that does nothing but draw from its input [R, V]."""
    num_rows, vocab_size = logits.shape
    program = Program(find_kernels(isa), ThreadPool(num_threads), num_rows, 0)
    given = program.add_buffer(RowSet.TOKENS, vocab_size)
    buffer = program.add_buffer(RowSet.LOGITS, vocab_size)
    program.input(0, vocab_size, (given, 0))
    program.gather((given, 0), vocab_size, (buffer, 0))
    program.largest((buffer, 0), vocab_size)
    program.draw((buffer, 0), vocab_size)
    program.finish(buffer)
    zeros, none = np.zeros(num_rows, np.int32), np.zeros(0, np.int32)
    output = np.empty_like(logits)
    _, drawn, _ = program.run(
        output,
        zeros,
        zeros,
        np.zeros((0, num_rows), np.int64),
        np.zeros(1, np.int32),
        none,
        np.zeros((0, 0, 0), np.int32),
        np.arange(num_rows, dtype=np.int32),
        none,
        [],
        [logits],
        draws=draws,
    )
    assert output.tobytes() == logits.tobytes()  # edits are taken back
    return drawn


@pytest.mark.parametrize("isa", kernel_levels())
@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
def test_native_draws_are_the_defined_ones(vocab_size: int, isa: str) -> None:
    rng = np.random.default_rng(vocab_size)
    num_rows = 60
    logits = np.stack([random_logits(rng, vocab_size) for _ in range(num_rows)])
    requests = [
        make_request(rng, vocab_size, random_params(rng, vocab_size)) for _ in range(num_rows)
    ]
    wanted = [defined(*pair) for pair in zip(logits, requests, strict=True)]
    table = DrawTable()
    for row, request in enumerate(requests):
        RequestDraws(RequestState(request.started()), vocab_size).add_to(table, row, 0)
    draws = native_draws(table)
    for num_threads in (1, 2, 3):
        drawn = draw_natively(logits, draws, isa, num_threads)
        for own, right in zip(drawn, wanted, strict=True):
            # Penalties that overflow are looked at by the definition, which may know better.
            assert own in (right, -1)
        failed = [own for own, right in zip(drawn, wanted, strict=True) if own != right]
        assert len(failed) <= num_rows // 8
    alone = [draw_natively(logits[row : row + 1], [(0, draw)], isa)[0] for row, draw in draws[:9]]
    assert alone == drawn[:9]


@pytest.mark.parametrize("isa", kernel_levels())
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"temperature": 0.8, "top_p": 0.95},
        {"top_p": 0.02},
        {"min_p": 0.02},
        {"top_k": 40, "top_p": 0.9},
        {"typical_p": 0.5},
        {"temperature": 1e60},
    ],
)
def test_a_large_vocabulary_and_many_seeds(given: dict[str, Any], isa: str) -> None:
    rng = np.random.default_rng(5)
    vocab_size = 30_000
    logits = rng.normal(0, 1.5, (1, vocab_size)).astype(np.float32)
    requests = [make_request(rng, vocab_size, SamplingParams(**given)) for _ in range(12)]
    table = DrawTable()
    for request in requests:
        RequestDraws(RequestState(request.started()), vocab_size).add_to(table, 0, 0)
    wanted = [defined(logits[0], request) for request in requests]
    assert draw_natively(logits, native_draws(table), isa, num_threads=2) == wanted
    assert len(set(wanted)) > 3 or "top_p" in given


def test_drafts_count_as_text() -> None:
    """Row i of a request is drawn as if its first i drafts were output."""
    rng = np.random.default_rng(2)
    vocab_size = 300
    params = SamplingParams(
        repetition_penalty=1.4,
        frequency_penalty=0.9,
        bad_words=["word"],
        min_tokens=12,
        max_tokens=None,
    )
    for _ in range(20):
        request = make_request(rng, vocab_size, params)
        state = RequestState(request.started())
        own = RequestDraws(state, vocab_size)
        texts: list[TokenIds | None] = []
        for _ in range(3):  # steps, whose tokens overwrite the drafts of those before
            drafts = rng.integers(vocab_size, size=4).tolist()
            start, known = len(request.prompt_token_ids), len(request.output_token_ids)
            token_ids = [*request.output_token_ids, *drafts]
            end = start + len(token_ids)
            state.follow(ScheduledRequest("r", start, end, token_ids, 0, 4, ("r",), start, 0))
            assert state.num_output_tokens == known
            logits = rng.normal(0, 2, (5, vocab_size)).astype(np.float32)
            table = DrawTable()
            for i in range(5):
                own.add_to(table, i, i)
            wanted = [defined(logits[i], request, drafts[:i]) for i in range(5)]
            assert draw_natively(logits, native_draws(table)) == wanted
            request.output_token_ids += rng.integers(vocab_size, size=3).tolist()
            texts += table.texts
        # A step writes into the text of the one before: a long answer is not copied at each of its tokens.
        assert len({id(text.base) for text in texts if text is not None}) < 5


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"forbidden": np.array([9], np.int32)}, "forbidden: 9 is not in the vocabulary of 9"),
        ({"text": np.array([-1], np.int32)}, "text: -1 is not"),
        (
            {"bias_ids": np.array([1], np.int32), "biases": np.zeros(2)},
            "biases: must be as many as bias_ids",
        ),
        ({"allowed": np.zeros(0, np.uint32)}, "allowed: has fewer bits than"),
    ],
)
def test_what_would_read_out_of_bounds_is_refused(arrays: dict[str, Any], message: str) -> None:
    logits = np.zeros((1, 9), np.float32)
    with pytest.raises(ValueError, match=message):
        draw_natively(logits, [(0, Draw(1, 0, 0, 1.0, **arrays))])


def test_draws_belong_to_rows_in_order() -> None:
    logits = np.zeros((2, 9), np.float32)
    draw = Draw(1, 0, 0, 1.0)
    with pytest.raises(ValueError, match="draws: there is no row 2"):
        draw_natively(logits, [(2, draw)])
    with pytest.raises(ValueError, match="draws: must be in order of rows"):
        draw_natively(logits, [(1, draw), (0, draw)])


@pytest.mark.parametrize(
    "params",
    [{}, {"temperature": 0}, {"logit_bias": {7: -100}}, {"allowed_token_ids": [3]}]
    + [{name: 2.0} for name in ("repetition_penalty", "presence_penalty", "frequency_penalty")],
    ids=str,
)
def test_the_token_that_a_budget_of_reasoning_forces_is_drawn(params: dict[str, Any]) -> None:
    class Budget:
        def forced_token(self, token_ids: Sequence[int]) -> int | None:
            return 7 if len(token_ids) == 2 else None

    rng = np.random.default_rng(0)
    request = make_request(rng, 127, SamplingParams(max_tokens=9, **params))
    request.output_token_ids, request.thinking_budget = [7, 7], Budget()
    table = DrawTable()
    RequestDraws(RequestState(request.started()), 127).add_to(table, 0, 0)
    for _ in range(9):
        assert draw_natively(random_logits(rng, 127)[None], native_draws(table)) in ([7], [-1])


GREEDY = {"temperature": 0}


def test_a_plain_request_asks_for_no_more_than_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest logit is noted as it is; a draw without rules has neither text nor a place in it."""
    monkeypatch.setattr(RequestState, "row", None)
    rng = np.random.default_rng(0)
    for params, takes_largest in (
        (GREEDY, True),
        ({**GREEDY, "top_k": 3, "typical_p": 0.5}, True),
        ({**GREEDY, "allowed_token_ids": [3]}, False),
        ({**GREEDY, "logit_bias": {3: 1.0}}, False),
        ({**GREEDY, "presence_penalty": 1.0}, False),
        ({**GREEDY, "min_tokens": 3}, False),
        ({}, False),
    ):
        own = RequestDraws(
            RequestState(make_request(rng, 127, SamplingParams(**params)).started()), 127
        )
        assert own.takes_largest == takes_largest
    own.add_to(table := DrawTable(), 0, 0)
    assert (table.allowed, table.forbidden, table.texts) == ([None], [None], [None])


@pytest.mark.parametrize(
    "params",
    [
        {},
        GREEDY,
        {**GREEDY, "repetition_penalty": 1.5},
        {**GREEDY, "frequency_penalty": 2.0},
        {**GREEDY, "presence_penalty": 2.0},
        {**GREEDY, "logit_bias": {300: 50.0}},
        {**GREEDY, "bad_words": [" was", " the", "."]},
        {**GREEDY, "allowed_token_ids": range(300, 400)},
        {**GREEDY, "min_tokens": 20, "stop_token_ids": range(0, 4096, 2)},
        {**GREEDY, "structured_outputs": StructuredOutputsParams(regex="[xyz ]{30}")},
    ],
    ids=lambda params: " ".join(params) or "drawn",
)
def test_an_engine_draws_what_the_sampler_would(
    params: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = []
    for _ in range(2):
        engine = bundled_engine()
        output = engine.add_request(
            "Once upon a time", SamplingParams(seed=1, max_tokens=20, **params)
        )
        while engine.has_unfinished_requests:
            engine.step()
        texts.append(output.outputs[0].token_ids)
        engine.step()  # tells execution that it has ended
        assert not engine.model_runner._draws
        always = property(lambda draws: False, lambda draws, value: None)
        monkeypatch.setattr(RequestDraws, "are_complete", always, raising=False)
    assert texts[0] == texts[1]


def test_watched_tokens_are_observed_by_summaries_of_their_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each token once, no row behind a wrong draft, and no row by the sampler. Beams are neither drawn nor observed."""
    engine = bundled_engine(speculation="ngram")
    engine.events.subscribe(lambda record: None, Level.TOKEN)
    decoder, asked = engine.model_runner.decoder, []
    summarize = decoder.summarize_rows
    monkeypatch.setattr(
        decoder, "summarize_rows", lambda rows, own: asked.extend(own) or summarize(rows, own)
    )
    monkeypatch.setattr(Sampler, "observe", None)
    prompt, params = 3 * "once upon a time ", SamplingParams(max_tokens=20, top_k=9, seed=2)
    output = engine.add_request(prompt, params)
    while engine.has_unfinished_requests:
        engine.step()
    assert engine.speculation.num_drafts > engine.speculation.num_right
    assert len(asked) == len(output.outputs[0].token_ids)
    engine.add_request(prompt, BeamSearchParams(beam_width=3, max_tokens=2))
    engine.step()
    assert engine.model_runner._states and not engine.model_runner._draws


@pytest.mark.parametrize("params", [{}, GREEDY], ids=str)
def test_a_token_of_logits_that_are_no_numbers_is_an_error(
    params: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = bundled_engine()
    step = engine.model_runner.decoder.step

    def poisoned(*args: Any) -> Any:
        logits = step(*args)
        logits.rows[0, [*logits.largest, *logits.drawn]] = np.nan
        return logits

    monkeypatch.setattr(engine.model_runner.decoder, "step", poisoned)
    output = engine.add_request("Once", SamplingParams(max_tokens=2, **params))
    engine.step()
    assert "define no distribution" in str(output.outputs[0].stop_reason)


# -- parameters that are not drawn natively --------------------------------------------------------


def test_every_parameter_is_drawn_or_decides_no_token() -> None:
    """Of a new parameter one has to say which. Until then the sampler chooses the tokens of requests with it."""
    names = {field.name for field in fields(SamplingParams)}
    assert names == DRAWN_PARAMETERS | {each.name for each in PARAMETERS} | OTHER_PARAMETERS
    assert not DRAWN_PARAMETERS & OTHER_PARAMETERS


@dataclass(frozen=True)
class NewParams(SamplingParams):
    """With a parameter that native draws do not know."""

    top_n_sigma: float = 0.0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_unknown_parameter_is_left_to_the_sampler(
    temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampled: list[int | None] = []
    sample = Sampler.sample

    def watched(self: Sampler, logits: Any, row: SamplingRow, drawn: int | None = None) -> Any:
        sampled.append(drawn)
        return sample(self, logits, row, drawn)

    monkeypatch.setattr(Sampler, "sample", watched)
    for top_n_sigma, is_drawn in ((0.0, True), (1.0, False)):
        engine = bundled_engine()
        sampled.clear()
        params = NewParams(temperature=temperature, max_tokens=3, top_n_sigma=top_n_sigma, seed=1)
        engine.add_request("Once upon a time", params)
        while engine.has_unfinished_requests:
            engine.step()
        assert sampled == ([] if is_drawn else [None] * 3)
