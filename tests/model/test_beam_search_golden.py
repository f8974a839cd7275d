"""Beam search through the whole engine returns the completions of transformers, for every family."""

import json
from pathlib import Path

import pytest

from pellucid.llm import LLM
from support.beam_cases import GOLDEN_SEEDS, BeamCase, found
from support.checkpoints import write_checkpoint

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "beams.json").read_text())


@pytest.mark.parametrize("family", GOLDEN)
def test_beams_are_those_of_transformers(family, tmp_path):
    llm = LLM(str(write_checkpoint(tmp_path, family)), backend="numpy", kv_cache_dtype="f32")
    cases = [BeamCase.drawn(seed) for seed in GOLDEN_SEEDS]
    outputs = llm.beam_search(
        [case.prompt_token_ids for case in cases], [case.params for case in cases]
    )
    for output, golden in zip(outputs, GOLDEN[family], strict=True):
        token_ids, scores = zip(*found(output), strict=True)
        expected_token_ids, expected_scores = zip(*golden, strict=True)
        assert token_ids == expected_token_ids
        assert scores == pytest.approx(expected_scores, rel=1e-5)
