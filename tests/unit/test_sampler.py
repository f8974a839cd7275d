"""The sampler: the exact distribution of each parameter. test_sampler_statistics.py tests draws."""

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pellucid.execution.candidates import NonFiniteLogitsError
from pellucid.execution.sampler import (
    NoTokenLeftError,
    SampledToken,
    Sampler,
    SamplingRow,
)
from pellucid.execution.token_observation import NUM_CANDIDATES, TokenObservation
from pellucid.inputs.sampling_params import SamplingParams
from support.sampling_reference import final_distribution, softmax

Words = tuple[tuple[int, ...], ...]

# Probabilities 1/2, 1/4, 1/8, 1/16, 1/16 of tokens 3, 0, 4, 1, 2: the last two are equal.
HALVES = np.log(np.array([4, 1, 1, 8, 2]) / 16)


def make_row(
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    *,
    seed: int = 0,
    stop_token_ids: Sequence[int] = (),
    bad_words: Words = (),
    **params: Any,
) -> SamplingRow:
    return SamplingRow(
        params=SamplingParams(**params),
        prompt_token_ids=prompt,
        output_token_ids=output,
        seed=seed,
        stream=0,
        stop_token_ids=frozenset(stop_token_ids),
        bad_words_token_ids=bad_words,
    )


def distribution(logits: np.ndarray, row: SamplingRow) -> dict[int, float]:
    final = Sampler().distribution(logits, row)
    return dict(zip(final.token_ids.tolist(), final.probabilities.tolist(), strict=True))


def support(row: SamplingRow, logits: np.ndarray = HALVES) -> list[int]:
    return Sampler().distribution(logits, row).token_ids.tolist()


# -- against the definition in plain Python --------------------------------------------------------


@st.composite
def sampling_cases(draw: st.DrawFn) -> tuple[list[float], SamplingRow]:
    vocab_size = draw(st.integers(2, 12))
    token = st.integers(0, vocab_size - 1)
    # Few different values, so that many logits are equal.
    logit = st.sampled_from([-3.1, -0.7, 0.0, 0.4, 1.3, 2.9])
    logits = draw(st.lists(logit, min_size=vocab_size, max_size=vocab_size))
    penalty = st.sampled_from([-1.5, 0.0, 0.0, 0.6])
    share = st.sampled_from([0.13, 0.41, 0.77, 0.97])
    row = make_row(
        draw(st.lists(token, min_size=1, max_size=5)),
        draw(st.lists(token, max_size=6)),
        stop_token_ids=draw(st.lists(token, max_size=2)),
        bad_words=tuple(
            tuple(word)
            for word in draw(st.lists(st.lists(token, min_size=1, max_size=3), max_size=2))
        ),
        temperature=draw(st.sampled_from([0.3, 1.0, 1.0, 1.7])),
        top_k=draw(st.sampled_from([-1, 0, 1, 2, 3, 100])),
        top_p=draw(share | st.just(1.0)),
        min_p=draw(st.sampled_from([0.0, 0.0, 0.07, 0.3])),
        typical_p=draw(share | st.just(1.0)),
        repetition_penalty=draw(st.sampled_from([0.5, 1.0, 1.0, 1.9])),
        presence_penalty=draw(penalty),
        frequency_penalty=draw(penalty),
        logit_bias=draw(st.dictionaries(token, st.sampled_from([-100.0, -0.9, 2.2]), max_size=2)),
        allowed_token_ids=draw(st.none() | st.lists(token, min_size=1, max_size=6)),
        min_tokens=draw(st.sampled_from([0, 1, 4])),
    )
    return logits, row


@given(sampling_cases())
def test_the_final_distribution_is_the_defined_one(case: tuple[list[float], SamplingRow]) -> None:
    logits, row = case
    try:
        expected = final_distribution(logits, row)
    except ValueError:  # max() of nothing
        with pytest.raises(NoTokenLeftError):
            Sampler().sample(np.array(logits), row)
        return
    got = distribution(np.array(logits), row)
    assert list(got) == sorted(expected)
    assert got == pytest.approx(expected, rel=1e-12)


@given(sampling_cases(), st.sampled_from([None, 0, 3]))
@example(([1.0, 5.0, 5.0], make_row()), None)  # which no parameter slows down
def test_greedy_takes_the_most_probable_and_of_equals_the_lower_id(
    case: tuple[list[float], SamplingRow], logprobs: int | None
) -> None:
    logits, row = case
    everything = replace(row.params, temperature=1, top_k=0, top_p=1, min_p=0, typical_p=1)
    try:
        expected = final_distribution(logits, row._replace(params=everything))
    except ValueError:  # max() of nothing
        return
    greedy = replace(row.params, temperature=0, logprobs=logprobs)
    sampled = Sampler().sample(np.array(logits), row._replace(params=greedy))
    assert sampled.token_id == max(sorted(expected), key=expected.__getitem__)
    assert (sampled.chosen is None) == (logprobs is None)


# -- one parameter at a time, by hand --------------------------------------------------------------


DRAWN = {  # weights of tokens, which add up to any number
    "no parameter: the softmax": (make_row(), {0: 4, 1: 1, 2: 1, 3: 8, 4: 2}),
    "a temperature raises to its inverse": (make_row(temperature=0.5), {0: 16, 1: 1, 2: 1, 3: 64, 4: 4}),
    "a penalty does not depend on it": (
        make_row(output=[3], presence_penalty=math.log(2), temperature=0.5),
        {0: 16, 1: 1, 2: 1, 3: 16, 4: 4},
    ),
    "a bias is added, and brings nothing back": (
        make_row(logit_bias={1: math.log(8), 2: 100}, allowed_token_ids=[1, 3]), {1: 1, 3: 1}
    ),
}  # fmt: skip


@pytest.mark.parametrize(("row", "weights"), DRAWN.values(), ids=DRAWN)
def test_distributions_by_hand(row: SamplingRow, weights: dict[int, float]) -> None:
    expected = {token_id: weight / sum(weights.values()) for token_id, weight in weights.items()}
    assert distribution(HALVES, row) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("temperature", [5e-324, 1e-300])
def test_temperatures_near_zero_become_greedy(temperature: float) -> None:
    for logits, expected in ((HALVES, {3: 1.0}), (np.array([1.0, 2.0, 2.0]), {1: 0.5, 2: 0.5})):
        final = distribution(logits, make_row(temperature=temperature))
        assert {token_id: p for token_id, p in final.items() if p > 0} == expected
        assert temperature > 5e-324 or final == expected  # what is -inf by now is no candidate


def test_a_huge_temperature_becomes_uniform() -> None:
    assert set(distribution(HALVES, make_row(temperature=1e300)).values()) == {0.2}


ALL = [0, 1, 2, 3, 4]
KEPT: list[tuple[dict[str, Any], list[int]]] = [
    ({"top_k": 1}, [3]),
    ({"top_k": 2}, [0, 3]),
    ({"top_k": 3}, [0, 3, 4]),
    ({"top_k": 4}, [0, 1, 3, 4]),  # of equals the lower id
    *(({"top_k": off_or_beyond}, ALL) for off_or_beyond in (-1, 0, 5, 6, 10**9)),
    # The fewest that reach it
    *(({"top_p": p}, [3]) for p in (1e-9, 0.49)),
    *(({"top_p": p}, [0, 3]) for p in (0.51, 0.66)),
    ({"top_p": 0.8}, [0, 3, 4]),
    ({"top_p": 0.9}, [0, 1, 3, 4]),
    ({"top_p": math.nextafter(1, 0)}, ALL),
    ({"top_k": 2, "top_p": 0.66}, [3]),  # 2/3 and 1/3
    # A share of the top
    *(({"min_p": share}, [3]) for share in (1.0, 0.51)),
    ({"min_p": 0.49}, [0, 3]),
    ({"min_p": 0.24}, [0, 3, 4]),
    ({"min_p": 0.1}, ALL),
    # Entropy 1.875 bits; surprises of 1, 2, 3, 4, 4 bits are 0.875, 0.125, 1.125, 2.125, 2.125 away.
    ({"typical_p": 0.2}, [0]),
    ({"typical_p": 0.26}, [0, 3]),
    ({"typical_p": 0.76}, [0, 3, 4]),
    ({"typical_p": 0.88}, [0, 1, 3, 4]),
    ({"allowed_token_ids": [4, 1, 4]}, [1, 4]),
]


@pytest.mark.parametrize(("params", "kept"), KEPT, ids=repr)
def test_what_each_parameter_keeps(params: dict[str, Any], kept: list[int]) -> None:
    assert support(make_row(**params)) == kept


def test_no_share_is_so_small_that_a_weight_of_zero_has_it() -> None:
    assert support(make_row(min_p=1e-37), np.array([0.0, -60.0, -1000.0])) == [0, 1]


# -- the row alone decides -------------------------------------------------------------------------


@pytest.mark.parametrize("vocab_size", [50, 5_000])
def test_neighbours_memory_layout_and_order_change_nothing(vocab_size: int) -> None:
    logits = np.random.default_rng(1).normal(0, 3, (9, vocab_size)).astype(np.float32)
    sampler = Sampler()
    rows = [
        make_row(
            [1], [2] * i, seed=i, temperature=0.9, top_p=0.95, frequency_penalty=0.1, logprobs=3
        )
        for i in range(9)
    ]
    alone = [sampler.sample(logits[i].copy(), rows[i]) for i in range(9)]
    assert [sampler.sample(logits[i], rows[i]) for i in range(9)] == alone
    assert [Sampler().sample(logits[i], rows[i]) for i in reversed(range(9))] == alone[::-1]
    strided = np.asfortranarray(logits)
    assert [sampler.sample(strided[i], rows[i]) for i in range(9)] == alone
    assert [sampler.sample(logits[i].astype(np.float64), rows[i]) for i in range(9)] == alone


@pytest.mark.parametrize("params", [{}, {"typical_p": 0.9}, {"temperature": 1e-300}])
def test_no_noise_draws_a_token_of_probability_zero(
    params: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    extremes = np.array([2.0**-53, 53 * math.log(2), 2.0**-53])  # all there is
    monkeypatch.setattr(
        "pellucid.execution.sampler.exponential_noise",
        lambda seed, stream, position, token_ids: extremes[token_ids],
    )
    row = make_row(**params)
    assert Sampler().sample(np.array([-2000.0, 0.0, -2000.0]), row).token_id == 1
    assert Sampler().sample(np.array([-100.0, 0.0, -100.0]), row).token_id == 1


def test_moving_tokens_from_output_to_prompt_keeps_the_draw() -> None:
    logits = np.random.default_rng(2).normal(size=100)
    for seed in range(20):
        before = Sampler().sample(logits, make_row([1, 2], [3, 4], seed=seed))
        assert before == Sampler().sample(logits, make_row([1, 2, 3], [4], seed=seed))


def test_logits_are_not_written_to() -> None:
    logits = HALVES.copy()
    logits.flags.writeable = False
    everything = make_row(
        [1], [0], temperature=0.7, top_k=4, top_p=0.9, min_p=0.01, typical_p=0.9, logprobs=5,
        repetition_penalty=1.2, presence_penalty=0.1, frequency_penalty=0.1, logit_bias={1: 1.0},
        stop_token_ids=[4], min_tokens=3, bad_words=((2,),), allowed_token_ids=[0, 1, 2, 3],
    )  # fmt: skip
    Sampler().sample(logits, everything)


def test_a_large_vocabulary_is_cut_as_a_small_one() -> None:
    logits = np.random.default_rng(3).integers(-60, 60, size=20_000) / 8
    for params in (
        {"top_k": 700},
        {"top_p": 0.9},
        {"typical_p": 0.6},
        {"top_p": 0.99, "min_p": 1e-4},
    ):
        row = make_row(**params)
        expected = final_distribution(logits.tolist(), row)
        assert support(row, logits) == sorted(expected)


# -- log-probabilities -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0},
        {"temperature": 0.4},
        {"top_k": 2},
        {"top_p": 0.6, "temperature": 2.0},
        {"allowed_token_ids": [1, 2], "logit_bias": {1: 3}},
        {"repetition_penalty": 3.0, "presence_penalty": 2.0},
    ],
)
def test_logprob_is_the_models_and_final_logprob_that_of_the_draw(params: dict[str, Any]) -> None:
    row = make_row([3], [3, 0], logprobs=5, seed=4, **params)
    sampled = Sampler().sample(HALVES, row)
    final = distribution(HALVES, row)

    plain = row._replace(params=replace(row.params, logprobs=None))
    assert Sampler().sample(HALVES, plain) == SampledToken(sampled.token_id)
    assert Sampler().sample(HALVES, plain, drawn=4) == SampledToken(4)
    assert sampled.chosen is not None
    assert sampled.chosen.token_id == sampled.token_id
    assert sampled.chosen in sampled.top
    assert [top.token_id for top in sampled.top] == [3, 0, 4, 1, 2]
    assert [top.rank for top in sampled.top] == [1, 2, 3, 4, 5]
    for top in sampled.top:
        assert top.logprob == pytest.approx(HALVES[top.token_id], rel=1e-14)
        assert top.final_logprob is not None
        if top.token_id in final:
            assert math.exp(top.final_logprob) == pytest.approx(final[top.token_id], rel=1e-12)
        else:
            assert top.final_logprob == -math.inf
    for name in ("logprob", "final_logprob"):
        assert math.fsum(math.exp(getattr(top, name)) for top in sampled.top) == pytest.approx(1)


def test_rank_counts_larger_logits_and_equal_ones_of_lower_id() -> None:
    logits = np.array([1.0, 3.0, 1.0, 3.0, -np.inf])
    ranks = {}
    for token_id in range(5):
        (at,) = Sampler().prompt_logprobs(logits[None], [token_id], 0)
        ranks[token_id] = at.chosen.rank
    assert ranks == {1: 1, 3: 2, 0: 3, 2: 4, 4: 5}


def test_top_tokens_of_equal_logits_come_by_id() -> None:
    logits = np.random.default_rng(6).integers(4, size=(1, 300)).astype(np.float32)
    (at,) = Sampler().prompt_logprobs(logits, [0], 20)
    expected = sorted(range(300), key=lambda token_id: (-logits[0, token_id], token_id))[:20]
    assert [top.token_id for top in at.top] == expected
    beams = Sampler().beam_candidates(logits[0], make_row(), 20)
    assert [each.token_id for each in beams] == expected


def test_the_tail_has_a_logprob_where_its_probability_underflows() -> None:
    (at,) = Sampler().prompt_logprobs(np.array([[0.0, -2000.0]]), [1], 0)
    assert at.chosen.logprob == -2000.0


def test_prompt_logprobs_are_the_models_one_for_each_row() -> None:
    logits = np.stack([HALVES, HALVES[::-1]])
    first, second = Sampler().prompt_logprobs(logits, [0, 0], 2)
    assert (first.chosen.rank, second.chosen.rank) == (2, 3)
    assert [top.token_id for top in first.top] == [3, 0]
    assert [top.token_id for top in second.top] == [1, 4]
    assert second.chosen.logprob == pytest.approx(math.log(1 / 8), rel=1e-14)
    assert second.chosen.final_logprob is None
    sampled = Sampler().sample(HALVES, make_row(allowed_token_ids=[0], logprobs=0))
    assert sampled.chosen is not None
    assert sampled.chosen.logprob == first.chosen.logprob


# -- what an observer sees -------------------------------------------------------------------------


def observe(logits: np.ndarray, row: SamplingRow) -> TokenObservation:
    started = time.perf_counter()
    sampled, observation = Sampler().observe(logits, row)
    assert 0 < observation.seconds <= time.perf_counter() - started
    assert sampled == Sampler().sample(logits, row)
    return observation


def test_the_funnel_names_each_active_stage_with_what_it_kept() -> None:
    row = make_row(
        [2], [], top_k=4, top_p=0.85, repetition_penalty=1.1, stop_token_ids=[1], min_tokens=1
    )
    funnel = observe(HALVES, row).funnel
    assert [(stage.name, stage.num_kept) for stage in funnel] == [
        ("logits", 5),
        ("min_tokens", 4),
        ("repetition_penalty", 4),
        ("top_k", 4),
        ("top_p", 3),
    ]
    assert funnel[1].kept_mass == pytest.approx(15 / 16)
    assert funnel[2].kept_mass == funnel[3].kept_mass == 1.0
    assert 14 / 15 < funnel[4].kept_mass < 1


@given(sampling_cases())
@example(([0.0] * 46, make_row(logit_bias={45: -100}, top_k=45)))  # 45 / 45 is above 1
def test_the_funnel_ends_at_the_distribution(case: tuple[list[float], SamplingRow]) -> None:
    logits, row = case
    try:
        final = Sampler().distribution(np.array(logits), row)
    except NoTokenLeftError:
        return
    funnel = observe(np.array(logits), row).funnel
    assert funnel[-1].num_kept == len(final)
    kept = [stage.num_kept for stage in funnel]
    assert kept == sorted(kept, reverse=True)
    assert all(0 < stage.kept_mass <= 1 for stage in funnel)


def test_candidates_are_those_of_the_logits_in_both_distributions() -> None:
    logits = np.random.default_rng(0).normal(scale=3, size=500).astype(np.float32)
    row = make_row([1, 2], [3], temperature=0.7, top_k=4, repetition_penalty=1.2)
    seen = observe(logits, row)
    model = list(softmax(dict(enumerate(logits.tolist()))).values())
    assert [top.token_id for top in seen.logprobs.top] == np.argsort(-logits)[:10].tolist()
    for entry in (*seen.logprobs.top, seen.logprobs.chosen):
        assert entry.logprob == pytest.approx(math.log(model[entry.token_id]), rel=1e-12)
        final = distribution(logits, row).get(entry.token_id, 0.0)
        assert math.exp(entry.final_logprob or 0) == pytest.approx(final, rel=1e-12)
    top = sum(model[entry.token_id] for entry in seen.logprobs.top)
    assert seen.rest == pytest.approx(1 - top, rel=1e-9)
    assert seen.entropy_bits == pytest.approx(-sum(p * math.log2(p) for p in model), rel=1e-12)
    asked = Sampler().sample(
        logits, row._replace(params=replace(row.params, logprobs=NUM_CANDIDATES))
    )
    assert (asked.chosen, asked.top) == (seen.logprobs.chosen, seen.logprobs.top)


def test_a_model_that_is_certain_has_no_entropy_and_no_rest() -> None:
    seen = observe(np.array([0.0, -np.inf, -np.inf]), make_row())
    assert (seen.entropy_bits, seen.rest) == (0, 0)
    assert len(seen.logprobs.top) == 1


# -- what cannot be sampled ------------------------------------------------------------------------


@pytest.mark.parametrize("params", [{"temperature": 0}, {}, {"temperature": 0, "logprobs": 1}])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_logits_that_are_no_numbers_fail(value: float, dtype: type, params: dict[str, Any]) -> None:
    logits = HALVES.astype(dtype)
    logits[2] = value
    with pytest.raises(NonFiniteLogitsError, match="define no distribution"):
        Sampler().sample(logits, make_row(**params))
    with pytest.raises(NonFiniteLogitsError):
        Sampler().prompt_logprobs(logits[None], [0], 1)


@pytest.mark.parametrize("params", [{"temperature": 0}, {}])
def test_a_model_that_excludes_every_token_fails(params: dict[str, Any]) -> None:
    with pytest.raises(NonFiniteLogitsError):
        Sampler().sample(np.full(4, -np.inf), make_row(**params))


def test_tokens_that_the_model_excludes_are_no_candidates() -> None:
    logits = np.array([0.0, -np.inf, 1.0, -np.inf])
    assert support(make_row(), logits) == [0, 2]
    assert support(make_row(logit_bias={1: 100}, typical_p=0.99), logits) == [0, 2]
    sampled = Sampler().sample(logits, make_row(logprobs=4))
    assert [top.token_id for top in sampled.top] == [2, 0]
    assert Sampler().prompt_logprobs(logits[None], [1], 0)[0].chosen.logprob == -math.inf


def test_parameters_that_leave_nothing_are_named() -> None:
    row = make_row(
        allowed_token_ids=[1, 2], bad_words=((1,),), stop_token_ids=[2], min_tokens=1, top_p=0.5
    )
    with pytest.raises(NoTokenLeftError, match=r"^allowed_token_ids, bad_words, min_tokens: "):
        Sampler().sample(HALVES, row)


@pytest.mark.parametrize("penalty", [1e-6, 1e6])
def test_a_penalty_that_overflows_is_named(penalty: float) -> None:
    logits = np.array([1e33, -1e33])
    with pytest.raises(ValueError, match="repetition_penalty="):
        Sampler().sample(logits, make_row([0, 1], repetition_penalty=penalty))
