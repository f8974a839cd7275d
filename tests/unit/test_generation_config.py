"""Default sampling parameters from generation_config.json."""

import json
from pathlib import Path

import pytest

from pellucid.inputs.sampling_params import SamplingParams
from pellucid.loading.hf_config import read_default_sampling_params


def read(directory: Path, **values: object) -> SamplingParams:
    (directory / "generation_config.json").write_text(json.dumps(values))
    return read_default_sampling_params(directory)


def test_without_the_file_nothing_changes(tmp_path: Path) -> None:
    assert read_default_sampling_params(tmp_path) == SamplingParams()


def test_what_the_makers_recommend(tmp_path: Path) -> None:
    values = {
        "temperature": 0.7,
        "top_p": 0.8,
        "top_k": 20,
        "min_p": 0.05,
        "typical_p": 0.9,
        "repetition_penalty": 1.05,
    }
    others = {"do_sample": True, "max_new_tokens": 2048, "eos_token_id": [1, 2]}
    assert read(tmp_path, **values, **others) == SamplingParams(**values)


def test_null_is_the_same_as_left_out(tmp_path: Path) -> None:
    assert read(tmp_path, temperature=None, top_k=None) == SamplingParams()


def test_no_sampling_is_greedy(tmp_path: Path) -> None:
    assert read(tmp_path, do_sample=False, temperature=0.6) == SamplingParams(temperature=0.0)


@pytest.mark.parametrize("wrong", [{"top_p": 1.5}, {"temperature": "hot"}, {"do_sample": 1}])
def test_a_wrong_value_names_file_and_key(tmp_path: Path, wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"generation_config.json: {next(iter(wrong))}="):
        read(tmp_path, **wrong)
