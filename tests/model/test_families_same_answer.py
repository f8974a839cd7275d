"""Same request, same answer, for every family: through the whole engine, tokens and logprobs, on native kernels.

On NumPy: steps of every family in test_decoders, and traces in test_engine_fuzz.
"""

import numpy as np
import pytest

from pellucid.inputs.sampling_params import SamplingParams
from pellucid.llm import LLM
from support.checkpoints import DISTINCT_FAMILIES, write_checkpoint

PARAMS = SamplingParams(temperature=0.0, max_tokens=5, logprobs=2, ignore_eos=True)


def answers(outputs):
    return [(output.outputs[0].token_ids, output.outputs[0].logprobs) for output in outputs]


@pytest.mark.parametrize("family", DISTINCT_FAMILIES)
def test_same_answer(family, tmp_path, loaded_once):
    directory = str(write_checkpoint(tmp_path, family))
    text = np.random.default_rng(0).integers(3, 300, 49).tolist()
    prompts = [text[:24], text[:33], text, text[:32]]  # each begins another

    def generate(prompts, **knobs):
        return answers(LLM(directory, backend="cpu", **knobs).generate(prompts, PARAMS))

    alone = generate(prompts, enable_prefix_caching=False, max_num_seqs=1)
    assert len({tuple(token_ids) for token_ids, _ in alone}) == len(prompts)

    shared = LLM(directory, backend="cpu", block_size=16)
    assert answers(shared.generate(prompts, PARAMS)) == alone
    again = shared.generate(prompts, PARAMS)
    assert answers(again) == alone
    assert all(output.num_cached_tokens > 0 for output in again)

    assert generate(prompts, max_num_batched_tokens=40, block_size=64) == alone
    assert generate(prompts, use_kv_cache=False) == alone
