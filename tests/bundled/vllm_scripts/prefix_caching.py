"""vLLM's offline example of prefix caching, with the import changed."""

from vllm import LLM, SamplingParams

prefix = (
    "You are an expert school principal, skilled in effectively managing faculty and staff. "
    "Draft questions for a potential first grade head teacher. Consider what your school "
    "community and mission need. Based on these information, fulfill the following paragraph: "
)
prompts = [
    "Hello, my name is",
    "The president of the United States is",
    "The capital of France is",
    "The future of AI is",
]
generating_prompts = [prefix + prompt for prompt in prompts]
sampling_params = SamplingParams(temperature=0.0)


def main():
    regular_llm = LLM(model="MODEL", gpu_memory_utilization=0.4, enable_prefix_caching=False)
    outputs = regular_llm.generate(generating_prompts, sampling_params)
    regular_generated_texts = [output.outputs[0].text for output in outputs]
    del regular_llm

    prefix_cached_llm = LLM(
        model="MODEL", enable_prefix_caching=True, gpu_memory_utilization=0.4, block_size=16
    )
    prefix_cached_llm.generate(generating_prompts[0], sampling_params)  # warms the cache up
    outputs = prefix_cached_llm.generate(generating_prompts, sampling_params)
    cached_generated_texts = [output.outputs[0].text for output in outputs]
    generated_same = all(
        regular == cached
        for regular, cached in zip(regular_generated_texts, cached_generated_texts, strict=True)
    )
    print(f"Generated answers are the same: {generated_same}")
    print(f"Cached tokens: {[output.num_cached_tokens for output in outputs]}")


if __name__ == "__main__":
    main()
