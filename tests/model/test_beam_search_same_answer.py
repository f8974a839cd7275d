"""A beam search has the same result, bit for bit, however it is scheduled: tiny models of three families."""

from dataclasses import replace

import numpy as np
import pytest

from pellucid.facts.kv_groups import kv_groups
from pellucid.inputs.beam_search_params import BeamSearchParams
from pellucid.llm import LLM
from pellucid.loading.hf_config import read_model_config
from support.checkpoints import write_checkpoint

PARAMS = BeamSearchParams(beam_width=5, n=3, max_tokens=8, stop_token_ids=range(40, 60))
FAMILIES = ("llama", "gemma2", "gpt2")  # full attention; windows and soft caps; learned positions


def found(outputs):
    return [
        [(one.token_ids, one.score, one.cumulative_logprob, one.text) for one in output.outputs]
        for output in outputs
    ]


@pytest.mark.parametrize(
    ("family", "backend"), [("gemma2", "numpy"), *((family, "cpu") for family in FAMILIES)]
)
def test_same_answer(family, backend, tmp_path, loaded_once):
    directory = write_checkpoint(tmp_path, family)
    text = np.random.default_rng(0).integers(3, 300, 50).tolist()
    prompts = [text[:24], text[:33], text, text[:3]]
    params = [PARAMS, replace(PARAMS, early_stopping=True), replace(PARAMS, beam_width=3), PARAMS]

    def search(prompts, params, **knobs):
        llm = LLM(str(directory), backend=backend, max_model_len=64, **knobs)
        outputs = llm.beam_search(prompts, params)
        llm.engine.scheduler.check_integrity()
        return found(outputs), sum(output.metrics.num_preemptions for output in outputs)

    alone = [search([prompt], own)[0][0] for prompt, own in zip(prompts, params, strict=True)]
    assert len({repr(answer) for answer in alone}) == len(prompts)

    assert search(prompts, params)[0] == alone
    num_kv_blocks = 4 * len(kv_groups(read_model_config(directory)))  # of one long sequence
    tiny, num_preemptions = search(
        prompts, params, num_kv_blocks=num_kv_blocks, block_size=16, max_num_seqs=6
    )
    assert tiny == alone and num_preemptions > 0
    assert search(prompts, params, max_num_batched_tokens=16, block_size=64)[0] == alone
    assert search(prompts, params, use_kv_cache=False, max_num_seqs=7)[0] == alone
