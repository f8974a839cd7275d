"""vLLM's offline use of token ids as prompts, with the import changed."""

from vllm import LLM, SamplingParams, TokensPrompt

text_llm = LLM(model="MODEL")
tokenizer = text_llm.get_tokenizer()
ids = [tokenizer.encode(text) for text in ("The capital of Peru is", "Once upon a time")]
params = SamplingParams(temperature=0, max_tokens=5, stop_token_ids=[4000], bad_words=[])
with_text = text_llm.generate([TokensPrompt(prompt_token_ids=each) for each in ids], params)

llm = LLM(model="MODEL", skip_tokenizer_init=True, max_num_batched_tokens=64)
outputs = llm.generate([{"prompt_token_ids": each} for each in ids], params, priority=[1, 0])
print([output.outputs[0].token_ids for output in outputs])
print([tokenizer.decode(output.outputs[0].token_ids) for output in outputs])
assert [output.outputs[0].text for output in outputs] == ["", ""]
assert [o.outputs[0].token_ids for o in outputs] == [o.outputs[0].token_ids for o in with_text]
