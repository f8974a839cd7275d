"""vLLM's offline example of chat, with the import changed."""

from vllm import LLM


def print_outputs(outputs):
    for output in outputs:
        generated_text = output.outputs[0].text
        print(f"Generated text: {generated_text!r}")


def main():
    llm = LLM(
        model="MODEL",
        tensor_parallel_size=1,
        enforce_eager=True,
        gpu_memory_utilization=0.5,
        seed=1,
    )
    sampling_params = llm.get_default_sampling_params()
    conversation = [
        {"role": "system", "content": "You are a helpful assistant"},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hello! How can I assist you today?"},
        {"role": "user", "content": "What is a KV cache?"},
    ]
    print_outputs(llm.chat(conversation, sampling_params, use_tqdm=False))

    conversations = [conversation for _ in range(10)]
    outputs = llm.chat(conversations, sampling_params, use_tqdm=True)
    print_outputs(outputs)
    assert len(outputs) == 10

    parts = [{"role": "user", "content": [{"type": "text", "text": "What is 12 + 7?"}]}]
    chat_template = llm.get_tokenizer().apply_chat_template(
        parts, tokenize=False, add_generation_prompt=True
    )
    print_outputs(llm.generate(chat_template, sampling_params, use_tqdm=False))
    own = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
    print_outputs(llm.chat(conversation, chat_template=own, use_tqdm=False))


if __name__ == "__main__":
    main()
