"""Beam search, compared live with transformers: the same completions and scores, over many random searches."""

import pytest

from pellucid.inputs.beam_search_params import BeamSearchParams
from pellucid.llm import LLM
from support.beam_cases import FAMILIES, BeamCase, found
from support.checkpoints import write_checkpoint

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SEEDS = range(100, 120)


def load_theirs(directory):
    return transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    )


@pytest.fixture(scope="module", params=FAMILIES)
def models(request, tmp_path_factory):
    """Ours and theirs."""
    directory = write_checkpoint(tmp_path_factory.mktemp(request.param), request.param)
    llm = LLM(str(directory), backend="numpy", kv_cache_dtype="f32", max_num_seqs=64)
    return llm, load_theirs(directory)


def assert_same(ours, theirs, label):
    """Scores to what float32 leaves of a difference of logits of about 10."""
    assert [token_ids for token_ids, _ in ours] == [token_ids for token_ids, _ in theirs], label
    assert [score for _, score in ours] == pytest.approx(
        [score for _, score in theirs], rel=1e-5, abs=1e-5
    ), label


def test_random_searches(models):
    llm, theirs = models
    cases = [BeamCase.drawn(seed) for seed in SEEDS]
    outputs = llm.beam_search(
        [case.prompt_token_ids for case in cases], [case.params for case in cases]
    )
    for case, output in zip(cases, outputs, strict=True):
        assert_same(found(output), case.transformers_answer(theirs), case)


def test_the_models_own_end_tokens(models):
    """As a user calls both: end tokens from the checkpoint, made likely by a bias."""
    llm, theirs = models
    end_token_ids = llm.engine.model_config.eos_token_ids
    params = BeamSearchParams(
        beam_width=4, max_tokens=12, logit_bias=dict.fromkeys(end_token_ids, 4.0)
    )
    case = BeamCase([5, 6, 7], params)
    expected = case.transformers_answer(theirs, end_token_ids)
    assert any(token_ids[-1] in end_token_ids for token_ids, _ in expected)
    (output,) = llm.beam_search(case.prompt_token_ids, params)
    assert_same(found(output), expected, case)
    assert {completion.finish_reason for completion in output.outputs} <= {"stop", "length"}


def test_a_width_of_one_that_stops_early_is_their_greedy_search(models):
    llm, theirs = models
    params = BeamSearchParams(beam_width=1, early_stopping=True, max_tokens=12, ignore_eos=True)
    theirs.generation_config.eos_token_id = None
    prompt = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        expected = theirs.generate(prompt, do_sample=False, max_new_tokens=12, pad_token_id=0)
    (output,) = llm.beam_search([5, 6, 7], params)
    assert output.outputs[0].token_ids == expected[0, 3:].tolist()
