"""vLLM's offline example of plain completions, with the import changed."""

from vllm import LLM, SamplingParams

prompts = [
    "The capital of Peru is",
    "The capital of Japan is",
    "Once upon a time",
    "Mira found a small",
]
sampling_params = SamplingParams(temperature=0.8, top_p=0.95)


def main():
    llm = LLM(model="MODEL", dtype="auto", trust_remote_code=False, seed=0)
    outputs = llm.generate(prompts, sampling_params)
    print("\nGenerated Outputs:\n" + "-" * 60)
    for output in outputs:
        prompt = output.prompt
        generated_text = output.outputs[0].text
        print(f"Prompt:    {prompt!r}")
        print(f"Output:    {generated_text!r}")
        print("-" * 60)


if __name__ == "__main__":
    main()
