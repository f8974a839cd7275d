"""BeamSearchParams: what each field allows, and the errors that say so."""

import dataclasses
from typing import Any

import pytest

from pellucid.inputs.beam_search_params import BeamSearchParams
from pellucid.inputs.sampling_params import SamplingParams
from support.refusals import check_refusals


def test_n_is_the_width_unless_given() -> None:
    assert BeamSearchParams(beam_width=3).num_results == 3
    assert BeamSearchParams(beam_width=3, n=1).num_results == 1
    assert dataclasses.replace(BeamSearchParams(beam_width=3), beam_width=5).num_results == 5


def test_what_it_shares_with_sampling_means_the_same() -> None:
    params = BeamSearchParams(
        beam_width=2, stop_token_ids=[3], logit_bias={4: 1}, min_tokens=2, max_tokens=7
    )
    assert params.stop_token_ids == (3,) and params.logit_bias == ((4, 1.0),)
    assert params.sampling_params == SamplingParams(
        stop_token_ids=[3], logit_bias={4: 1}, min_tokens=2, max_tokens=7, seed=0
    )
    assert BeamSearchParams(beam_width=2).max_tokens == 16  # what "auto" is for text
    ours = {field.name: field.default for field in dataclasses.fields(BeamSearchParams)}
    for field in dataclasses.fields(SamplingParams):
        if field.name in ours and field.name not in ("n", "max_tokens"):
            assert ours[field.name] == field.default


REFUSED: list[dict[str, Any]] = [
    {"beam_width": 0},
    {"beam_width": 2.0},
    {"beam_width": 2, "max_tokens": "auto"},
    {"beam_width": 2, "n": 3},
    {"beam_width": 2, "n": 0},
    {"beam_width": 2, "length_penalty": 11},
    {"beam_width": 2, "length_penalty": float("nan")},
    {"beam_width": 2, "early_stopping": "always"},
    {"beam_width": 2, "early_stopping": 1},
    {"beam_width": 2, "early_stopping": None},
    {"beam_width": 2, "max_tokens": 0},
    {"beam_width": 2, "min_tokens": 20},
    {"beam_width": 2, "repetition_penalty": 0},
    {"beam_width": 2, "allowed_token_ids": []},
]


def test_what_is_refused() -> None:
    check_refusals("beam_search_params", REFUSED, lambda given: BeamSearchParams(**given))


@pytest.mark.parametrize("name", ["temperature", "top_p", "seed", "stop", "presence_penalty"])
def test_what_has_no_meaning_for_beams_is_no_field(name: str) -> None:
    with pytest.raises(TypeError, match=name):
        BeamSearchParams(beam_width=2, **{name: 1})
