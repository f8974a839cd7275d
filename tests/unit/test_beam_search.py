"""BeamSearch, the algorithm alone, over a table of log-probabilities."""

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from pellucid.inputs.beam_search_params import BeamSearchParams
from pellucid.scheduling.beam_search import BeamSearch
from pellucid.scheduling.request import EndRule, FinishReason
from pellucid.scheduling.scheduler_output import BeamCandidate
from support.beam_search_reference import Logprobs, reference_beam_search

VOCAB_SIZE = 40


def table(seed: int, bias: dict[int, float]) -> Callable[[tuple[int, ...]], Logprobs]:
    """A model: random log-probabilities after each output, with some tokens likelier throughout."""

    def logprobs(token_ids: tuple[int, ...]) -> Logprobs:
        digest = hashlib.sha256(repr((seed, token_ids)).encode()).digest()
        logits = np.random.default_rng(int.from_bytes(digest[:8], "little")).normal(size=VOCAB_SIZE)
        for token_id, added in bias.items():
            logits[token_id] += added
        return logits - np.log(np.exp(logits).sum())

    return logprobs


def candidates(logprobs: Logprobs, count: int) -> list[BeamCandidate]:
    best = np.argsort(-logprobs, kind="stable")[:count]
    return [BeamCandidate(int(i), float(logprobs[i]), float(logprobs[i])) for i in best]


def search(
    model: Callable[[tuple[int, ...]], Logprobs],
    params: BeamSearchParams,
    max_tokens: int,
    stop_token_ids: Sequence[int] = (),
) -> BeamSearch:
    limit = "max_tokens" if max_tokens == params.max_tokens else "context_length"
    run = BeamSearch(params, EndRule(frozenset(stop_token_ids), max_tokens, limit))
    while not run.done:
        run.advance([candidates(model(beam.token_ids), run.num_candidates) for beam in run.live])
    return run


def found(run: BeamSearch) -> list[tuple[tuple[int, ...], float]]:
    return [
        (hypothesis.token_ids, hypothesis.score)
        for hypothesis in run.finished[: run.params.num_results]
    ]


@pytest.mark.parametrize("early_stopping", [True, False, "never"])
def test_as_transformers_defines_it(early_stopping: bool | str) -> None:
    for seed in range(120):
        rng = np.random.default_rng(seed)
        width = int(rng.integers(1, 9))
        params = BeamSearchParams(
            beam_width=width,
            n=int(rng.integers(1, width + 1)),
            length_penalty=float(rng.choice([-2, -0.5, 0, 0.3, 1, 2, 5])),
            early_stopping=early_stopping,
        )
        stop_token_ids = frozenset(rng.integers(0, VOCAB_SIZE, rng.integers(0, 4)).tolist())
        model = table(seed, dict.fromkeys(stop_token_ids, float(rng.uniform(-1, 5))))
        max_tokens = int(rng.integers(1, 12))
        run = search(model, params, max_tokens, stop_token_ids)
        expected = reference_beam_search(model, params, max_tokens, stop_token_ids)
        assert [tokens for tokens, _ in found(run)] == [tokens for tokens, _ in expected], seed
        scores = [score for _, score in found(run)]
        assert scores == pytest.approx([score for _, score in expected], rel=1e-12)


def test_wide_enough_it_finds_the_likeliest_text() -> None:
    """As wide as there are texts, it is an exhaustive search."""
    model = table(3, {})
    run = search(model, BeamSearchParams(beam_width=64, max_tokens=2), 2)
    first = model(())
    best = max(first[a] + model((a,))[b] for a in range(VOCAB_SIZE) for b in range(VOCAB_SIZE))
    assert run.finished[0].score * 2 == pytest.approx(best, rel=1e-12)


def test_why_sequences_end() -> None:
    params = BeamSearchParams(beam_width=4, max_tokens=5)
    at_limit = search(table(0, {}), params, 5)
    assert {(one.finish_reason, one.stop_reason) for one in at_limit.finished} == {
        (FinishReason.LENGTH, "max_tokens")
    }
    at_context = search(table(0, {}), params, 3)
    assert {one.stop_reason for one in at_context.finished} == {"context_length"}
    stopped = search(table(0, {7: 4.0}), params, 5, [7])
    assert stopped.finished[0].token_ids[-1] == 7
    assert stopped.finished[0].finish_reason is FinishReason.STOP
    assert stopped.finished[0].stop_reason == 7


def test_a_width_of_one_that_stops_early_is_greedy() -> None:
    model = table(1, {5: 2.0})
    params = BeamSearchParams(beam_width=1, early_stopping=True, max_tokens=30)
    greedy: list[int] = []
    while len(greedy) < 30 and 5 not in greedy:
        greedy.append(int(model(tuple(greedy)).argmax()))
    assert search(model, params, 30, [5]).finished[0].token_ids == tuple(greedy)


def test_fewer_continuations_than_beams() -> None:
    """Masks may leave so few tokens that there are fewer sequences than asked for."""
    run = BeamSearch(
        BeamSearchParams(beam_width=4, max_tokens=2), EndRule(frozenset(), 2, "max_tokens")
    )
    while not run.done:
        run.advance([candidates(np.log([0.9]), run.num_candidates) for _ in run.live])
    assert [hypothesis.token_ids for hypothesis in run.finished] == [(0, 0)]


def test_of_equals_the_better_beam_and_the_better_candidate_come_first() -> None:
    run = BeamSearch(
        BeamSearchParams(beam_width=2, max_tokens=3), EndRule(frozenset(), 3, "max_tokens")
    )
    equal = [BeamCandidate(token_id, -1.0, -1.0) for token_id in range(4)]
    run.advance([equal])
    assert [(beam.parent, beam.token_ids) for beam in run.live] == [(0, (0,)), (0, (1,))]
    run.advance([equal, equal])
    assert [(beam.parent, beam.token_ids) for beam in run.live] == [(0, (0, 0)), (0, (0, 1))]


def test_a_beam_as_good_as_the_worst_that_is_finished_does_not_go_on() -> None:
    params = BeamSearchParams(beam_width=1, max_tokens=9, length_penalty=0, early_stopping=False)
    run = BeamSearch(params, EndRule(frozenset({7}), 9, "max_tokens"))
    run.advance([[BeamCandidate(7, -1.0, -1.0), BeamCandidate(1, -1.0, -1.0)]])
    assert run.done and len(run.live) == len(run.finished) == 1


def test_both_sums_are_kept() -> None:
    run = BeamSearch(
        BeamSearchParams(beam_width=1, max_tokens=2), EndRule(frozenset(), 2, "max_tokens")
    )
    while not run.done:
        run.advance([[BeamCandidate(1, -0.5, -3.0)]])
    assert (run.finished[0].cumulative_logprob, run.finished[0].score) == (-1.0, -3.0)
