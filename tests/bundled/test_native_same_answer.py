"""Same request, same answer on native kernels, in every format of weights and cache, on any threads."""

import pytest

from pellucid import loaded_model
from pellucid.backends.cpu.backend import CpuBackend
from pellucid.engine import LLMEngine
from pellucid.inputs.config import EngineConfig, fitting_block_size
from pellucid.inputs.sampling_params import SamplingParams
from support.bundled import prompts_of_all_kinds

PROMPTS = prompts_of_all_kinds(5)
PARAMS = SamplingParams(temperature=0.8, seed=3, max_tokens=12, logprobs=2, ignore_eos=True)
FORMATS = [("none", "f32"), ("none", "bf16"), ("int8", "int8"), ("int4", "bf16"), ("int4", "int4")]
STEPS = {
    "all together": {"max_num_seqs": 8, "block_size": 64},
    "in chunks": {"max_num_batched_tokens": 13, "block_size": 16},
    "without the cache": {"use_kv_cache": False, "max_num_seqs": 3},
}


def answers(config, num_threads, monkeypatch, *, together):
    with monkeypatch.context() as patch:
        # Threads take part in every step, however small.
        patch.setattr(
            loaded_model, "make_backend", lambda *_: CpuBackend(num_threads, small_step_bytes=0)
        )
        engine = LLMEngine.from_config(config)
    outputs = []
    for prompt in PROMPTS:
        outputs.append(engine.add_request(prompt, PARAMS))
        while engine.has_unfinished_requests and not together:
            engine.step()
    while engine.has_unfinished_requests:
        engine.step()
    return [(output.outputs[0].token_ids, output.outputs[0].logprobs) for output in outputs]


@pytest.mark.parametrize(("quantization", "kv_cache_dtype"), FORMATS)
def test_same_answer(quantization, kv_cache_dtype, monkeypatch):
    formats = {"quantization": quantization, "kv_cache_dtype": kv_cache_dtype}
    alone = answers(EngineConfig(**formats, max_num_seqs=1), 1, monkeypatch, together=False)
    assert len({tuple(token_ids) for token_ids, _ in alone}) > len(PROMPTS) // 2
    for num_threads, steps in enumerate(STEPS.values(), start=1):
        block_size = fitting_block_size(steps.get("block_size", 32), kv_cache_dtype)
        config = EngineConfig(**formats, **{**steps, "block_size": block_size})
        assert answers(config, num_threads, monkeypatch, together=True) == alone
