"""vLLM's offline use of logprobs and prompt_logprobs, with the import changed."""

import math

from vllm import LLM, SamplingParams

llm = LLM("MODEL", max_num_seqs=8, enable_chunked_prefill=True)
params = SamplingParams(
    n=2, temperature=1.0, seed=5, max_tokens=6, logprobs=3, prompt_logprobs=1, stop=["\n"]
)
[output] = llm.generate("The capital of Peru is", params)
print(output.request_id, output.finished, output.prompt_token_ids)
assert output.prompt_logprobs[0] is None
for entry in output.prompt_logprobs[1:]:
    print([(token.decoded_token, token.rank) for token in entry.values()])
for completion in output.outputs:
    print(completion.index, repr(completion.text), completion.finish_reason, completion.stop_reason)
    total = 0.0
    for token_id, top in zip(completion.token_ids, completion.logprobs, strict=True):
        best = min(top.values(), key=lambda token: token.rank)
        total += top[token_id].logprob
        print(
            f"  {top[token_id].decoded_token!r} p={math.exp(top[token_id].logprob):.3f} best={best.rank}"
        )
    assert math.isclose(total, completion.cumulative_logprob, rel_tol=1e-6)
