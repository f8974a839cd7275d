"""BeamSearchParams: what each field allows, and the errors that say so."""

import dataclasses
from typing import Any

import pytest

from pellucid.inputs.beam_search_params import BeamSearchParams
from pellucid.inputs.sampling_params import SamplingParams


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


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"beam_width": 0}, "beam_width=0: must be a whole number of at least 1 and at most 64"),
        ({"beam_width": 2.0}, "beam_width=2.0: must be a whole number"),
        ({"beam_width": 2, "max_tokens": "auto"}, "max_tokens='auto': must be a whole number"),
        ({"beam_width": 2, "n": 3}, "n=3: must be a whole number of at least 1 and at most 2"),
        ({"beam_width": 2, "n": 0}, "n=0: must be"),
        ({"beam_width": 2, "length_penalty": 11}, "length_penalty=11: must be a finite number"),
        ({"beam_width": 2, "length_penalty": float("nan")}, "length_penalty=nan: must be"),
        (
            {"beam_width": 2, "early_stopping": "always"},
            """early_stopping='always': must be True, False or "never\"""",
        ),
        ({"beam_width": 2, "early_stopping": 1}, "early_stopping=1: must be True"),
        ({"beam_width": 2, "early_stopping": None}, "early_stopping=None: must be True"),
        ({"beam_width": 2, "max_tokens": 0}, "max_tokens=0: must be"),
        ({"beam_width": 2, "min_tokens": 20}, "min_tokens=20: must be at most max_tokens=16"),
        ({"beam_width": 2, "repetition_penalty": 0}, "repetition_penalty=0: must be"),
        ({"beam_width": 2, "allowed_token_ids": []}, r"allowed_token_ids=\(\): must be"),
    ],
)
def test_what_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BeamSearchParams(**given)


@pytest.mark.parametrize("name", ["temperature", "top_p", "seed", "stop", "presence_penalty"])
def test_what_has_no_meaning_for_beams_is_no_field(name: str) -> None:
    with pytest.raises(TypeError, match=name):
        BeamSearchParams(beam_width=2, **{name: 1})
