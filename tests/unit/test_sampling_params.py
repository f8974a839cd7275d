"""SamplingParams: what each field allows, and the errors that say so."""

import copy
import dataclasses
import pickle
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from pellucid.inputs.sampling_params import SamplingParams
from pellucid.inputs.structured_outputs import StructuredOutputsParams
from support.refusals import check_refusals

NAN, INF = float("nan"), float("inf")

BAD = {
    "n": [0, -1, 65, 1.0, True, "1", None],
    "best_of": [0, -1, 65, 1.0, True, "1"],
    "temperature": [-0.1, NAN, INF, True, "1", None, 1j, 10**400],
    "top_p": [0, -0.5, 1.0000001, NAN, False, "0.5", None],
    "top_k": [-2, 2**31, 1.5, True, NAN, None],
    "min_p": [-0.1, 1.1, NAN, None],
    "typical_p": [0, 1.1, NAN, None],
    "repetition_penalty": [0, -1, 1e-300, 1.1e6, NAN, INF, None],
    "presence_penalty": [-2.01, 2.01, NAN, None],
    "frequency_penalty": [-2.01, 2.01, NAN, None],
    "logit_bias": [{1: 100.5}, {1: NAN}, {1: None}, {-1: 0}, {"1": 0}, {1.5: 0}, {True: 0}, [1], 3],
    "allowed_token_ids": [[], [-1], [1.0], ["1"], [True], "12", 5, {1: 2}],
    "bad_words": [[""], [1], 7, b"word", {"word": 1}],
    "min_tokens": [-1, 1.0, True, None],
    "seed": [-1, 2**64, 1.0, True, "1"],
    "logprobs": [-1, 21, 1.0, True],
    "prompt_logprobs": [-1, 21, 1.0, True],
    "stop": ["", ["a", ""], [1], 7, b"stop"],
    "include_stop_str_in_output": [1, None, "yes"],
    "stop_in_reasoning": [0, None],
    "stop_token_ids": [[-1], [1.0], ["1"], "12", 3],
    "max_tokens": [0, -1, 1.0, True, "all"],
    "max_time": [0, -1.0, NAN, INF, True, "1"],
    "ignore_eos": [1, None],
    "skip_special_tokens": [0, None],
    "thinking_token_budget": [-1, 1.0, True],
    "structured_outputs": [{}, "json", True],
}

GOOD = {
    "n": [1, 64],
    "best_of": [None, 1, 64],
    "temperature": [0, 1e-300, 2.5, 100],
    "top_p": [1e-12, 0.5, 1],
    "top_k": [-1, 0, 1, 2**31 - 1],
    "min_p": [0, 1],
    "typical_p": [0.01, 1],
    "repetition_penalty": [1e-6, 0.01, 1, 1e6],
    "presence_penalty": [-2, 2],
    "frequency_penalty": [-2, 2],
    "logit_bias": [{}, {0: -100, 7: 100}, [(3, 1.5)], None],
    "allowed_token_ids": [None, [0], (3, 1)],
    "bad_words": ["word", ["a", "b c"], [], None],
    "min_tokens": [0, 16],
    "seed": [None, 0, 2**64 - 1],
    "logprobs": [None, 0, 20],
    "prompt_logprobs": [None, 0, 20],
    "stop": ["\n", ["a", "b"], (), None],
    "include_stop_str_in_output": [True],
    "stop_in_reasoning": [False],
    "stop_token_ids": [[], [0, 5], None],
    "max_tokens": [None, 1],
    "max_time": [None, 0.001, 3],
    "ignore_eos": [True],
    "skip_special_tokens": [False],
    "thinking_token_budget": [None, 0, 10**9],
    "structured_outputs": [None, StructuredOutputsParams(choice=["a"])],
}


def cases(by_field: dict[str, list[Any]]) -> list[Any]:
    return [
        pytest.param(name, value, id=f"{name}={str(value)[:20]}")
        for name, values in by_field.items()
        for value in values
    ]


def test_every_field_has_good_and_bad_cases() -> None:
    names = {field.name for field in dataclasses.fields(SamplingParams)}
    assert set(BAD) == names
    assert set(GOOD) == names


@pytest.mark.parametrize(("name", "value"), cases(BAD))
def test_refusal_names_the_field_and_what_is_allowed(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{name}(\[.*\])?=.*: must be ") as refusal:
        SamplingParams(**{name: value})
    offender = value
    if isinstance(value, list) and len(value) == 1 and name.endswith("_token_ids"):
        offender = value[0]
    if name != "logit_bias" and value != []:
        assert repr(offender)[:200] in str(refusal.value)


@pytest.mark.parametrize(("name", "value"), cases(GOOD))
def test_the_ends_of_each_range_are_allowed(name: str, value: Any) -> None:
    SamplingParams(**{name: value})


def test_defaults_are_those_of_vllm() -> None:
    params = SamplingParams()
    assert (params.n, params.temperature, params.max_tokens) == (1, 1.0, "auto")
    assert (params.top_p, params.top_k, params.min_p, params.typical_p) == (1.0, 0, 0.0, 1.0)
    assert params.seed is None
    assert params.stop == params.bad_words == params.stop_token_ids == params.logit_bias == ()


def test_positional_and_unknown_arguments_are_refused() -> None:
    with pytest.raises(TypeError):
        SamplingParams(0.5)  # type: ignore[misc]
    with pytest.raises(TypeError, match="use_beam_search"):
        SamplingParams(use_beam_search=True)  # type: ignore[call-arg]


def test_sequences_become_tuples_that_the_caller_cannot_change() -> None:
    stop, allowed, bias = ["a"], [3, 1], {7: 1, 2: -1}
    params = SamplingParams(stop=stop, allowed_token_ids=allowed, logit_bias=bias)
    stop.append("b")
    allowed.append(4)
    bias[9] = 1
    assert params.stop == ("a",)
    assert params.allowed_token_ids == (3, 1)
    assert params.logit_bias == ((2, -1.0), (7, 1.0))
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.temperature = 0.5  # type: ignore[misc]


def test_a_bare_string_is_one_string() -> None:
    assert SamplingParams(stop="end").stop == ("end",)
    assert SamplingParams(bad_words="word").bad_words == ("word",)


def test_none_is_the_same_as_leaving_a_list_out() -> None:
    given: dict[str, Any] = dict.fromkeys(("stop", "bad_words", "stop_token_ids", "logit_bias"))
    assert SamplingParams(**given) == SamplingParams()


def test_numbers_of_other_libraries_become_plain() -> None:
    params = SamplingParams(
        temperature=np.float32(0.5),  # type: ignore[arg-type]
        top_p=Fraction(1, 2),  # type: ignore[arg-type]
        seed=np.uint64(2**63 + 1),  # type: ignore[arg-type]
        max_tokens=np.int32(4),  # type: ignore[arg-type]
    )
    values = (params.temperature, params.top_p, params.seed, params.max_tokens)
    assert values == (0.5, 0.5, 2**63 + 1, 4)
    assert [type(value) for value in values] == [float, float, int, int]


def test_params_can_be_hashed_copied_pickled_and_replaced() -> None:
    params = SamplingParams(logit_bias={1: 2.0}, stop=["a"], allowed_token_ids=[1], seed=3)
    assert hash(params) == hash(copy.deepcopy(params))
    assert pickle.loads(pickle.dumps(params)) == params
    assert dataclasses.replace(params, seed=4, logit_bias=params.logit_bias).seed == 4
    assert SamplingParams(**dataclasses.asdict(params)) == params


@pytest.mark.parametrize(
    "given",
    [{"logit_bias": {9: 1.0, 10: 1.0}}, {"allowed_token_ids": [10]}, {"stop_token_ids": [2, 10]}],
)
def test_token_ids_beyond_the_vocabulary_are_refused(given: dict[str, Any]) -> None:
    params = SamplingParams(**given)
    params.check_vocabulary(11)
    with pytest.raises(ValueError, match=rf"^{next(iter(given))}: token id 10 .* 0\.\.9$"):
        params.check_vocabulary(10)


LONG = "y" * 20_000
REFUSED: list[dict[str, Any]] = [
    {"n": 3, "best_of": 2},
    {"min_tokens": 5, "max_tokens": 4},
    *({name: ["x"] * 1001} for name in ("stop", "bad_words")),
    *({name: ["x", LONG]} for name in ("stop", "bad_words")),
    # What vLLM has alone
    {"guided_decoding": 7},
    {"logits_processors": 7},
    {"lora_request": 7},
    {"truncate_prompt_tokens": 7},
]


def test_what_is_refused_and_the_bounds_that_are_not() -> None:
    check_refusals("sampling_params", REFUSED, lambda given: SamplingParams(**given))
    assert not SamplingParams(n=3, best_of=3).ranks
    assert SamplingParams(min_tokens=500, max_tokens=None).min_tokens == 500
    SamplingParams(stop=["x"] * 1000, bad_words=["x"] * 1000)
    SamplingParams(stop=LONG, bad_words=LONG)
