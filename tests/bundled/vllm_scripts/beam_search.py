"""vLLM's offline example of beam search, with the import changed."""

from vllm import LLM, BeamSearchParams

llm = LLM(model="MODEL", max_model_len=1024, quantization=None, kv_cache_dtype="auto")
params = BeamSearchParams(beam_width=5, max_tokens=12, ignore_eos=False, length_penalty=1.0)
outputs = llm.beam_search([{"prompt": "The capital of Peru is"}, {"prompt": "Once"}], params)
for output in outputs:
    for sequence in output.sequences:
        print(f"{sequence.cum_logprob:.4f} {sequence.text!r} {len(sequence.tokens)}")
