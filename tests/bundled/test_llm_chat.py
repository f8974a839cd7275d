"""`LLM.chat` and the arguments of `LLM` on the bundled model."""

from typing import Any

import pytest

from pellucid import LLM, ChatPrompt, SamplingParams
from support.refusals import check_refusals

QUESTION = [{"role": "user", "content": "What is the capital of Peru?"}]
OTHER = [
    {"role": "system", "content": "You answer briefly."},
    {"role": "user", "content": [{"type": "text", "text": "What is a KV cache?"}]},
]
GREEDY = SamplingParams(temperature=0)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(max_num_seqs=8)


def text(llm: LLM, *args: object, **kwargs: object) -> str:
    [output] = llm.chat(*args, **kwargs)
    return output.outputs[0].text


def test_an_answer_ends_by_itself(llm: LLM) -> None:
    [output] = llm.chat(OTHER, GREEDY)
    assert len(output.outputs[0].token_ids) > 16
    assert output.outputs[0].finish_reason == "stop"


def test_one_conversation_or_several(llm: LLM) -> None:
    alone = [text(llm, each, GREEDY) for each in (QUESTION, OTHER)]
    together = llm.chat([QUESTION, OTHER], [GREEDY, SamplingParams(temperature=0, max_tokens=200)])
    assert [output.outputs[0].text for output in together] == alone
    assert "".join(delta.text for delta in llm.stream(ChatPrompt(QUESTION), GREEDY)) == alone[0]


def test_the_final_message_is_continued(llm: LLM) -> None:
    started = [*QUESTION, {"role": "assistant", "content": "The capital of"}]
    assert text(llm, started, GREEDY, continue_final_message=True) == " Peru is Lima."


def test_another_template_and_its_variables(llm: LLM) -> None:
    template = "{{ opening }}{% for message in messages %}{{ message.content }}{% endfor %}"
    own = {"chat_template": template, "chat_template_kwargs": {"opening": "Once upon a "}}
    params = SamplingParams(temperature=0, max_tokens=3)
    told = text(llm, [{"role": "user", "content": "time"}], params, **own)
    tokenizer = llm.get_tokenizer()
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": "time"}], chat_template=template, opening="Once upon a "
    )
    assert rendered == "Once upon a time"
    ids = tokenizer.encode(rendered, add_special_tokens=False)
    assert told == llm.generate([ids], params)[0].outputs[0].text


NOT_ANSWERED: list[tuple[Any, dict[str, Any]]] = [
    ("hello", {}),
    (None, {}),
    ([], {}),
    ([{"role": "user"}], {}),
    ([QUESTION, [{"role": "me", "content": "x"}]], {}),
    (QUESTION, {"tools": [{"type": "function"}]}),
    (QUESTION, {"tools": [{"type": "function", "function": {"name": "add", "parameters": {}}}]}),
    (QUESTION, {"chat_template_kwargs": {"enable_thinking": False}}),
]


def test_what_cannot_be_answered_is_named(llm: LLM) -> None:
    check_refusals("llm_chat", NOT_ANSWERED, lambda case: llm.chat(case[0], **case[1]))
    assert not llm.engine.unfinished_request_ids


def test_a_dtype_is_checked_and_not_converted() -> None:
    with pytest.raises(ValueError, match=r"dtype='float16': the weights of .* are bfloat16, and"):
        LLM(dtype="half")
    LLM(dtype="bfloat16").close()


REFUSED_ARGUMENTS: list[dict[str, Any]] = [
    {"tensor_parallel_size": 0},
    {"tensor_parallel_size": True},
    {"trust_remote_code": True},
    {"quantization": "awq"},
    {"quantization": "int5"},
    {"gpu_memory_utilization": 1.5},
    {"gpu_memory_utilization": 0.5, "memory_utilization": 0.5},
    {"speculative_config": {"method": "eagle"}},
]


def test_arguments_are_refused_with_advice() -> None:
    check_refusals("llm", REFUSED_ARGUMENTS, lambda arguments: LLM(**arguments))
    with pytest.raises(
        ValueError, match=r"LLM\(colour=...\): no such parameter; there are model, "
    ):
        LLM(colour="red")


def test_arguments_of_vllm_that_mean_the_same() -> None:
    with LLM(
        quantization=None,
        kv_cache_dtype="auto",
        max_num_seqs=None,
        block_size=None,
        num_gpu_blocks_override=80,
        gpu_memory_utilization=0.5,
        enforce_eager=True,
        tensor_parallel_size=1,
        speculative_config={"method": "ngram", "num_speculative_tokens": 4},
    ) as llm:
        assert (llm.config.speculation, llm.config.num_draft_tokens) == ("ngram", 4)
        assert (llm.config.num_kv_blocks, llm.config.memory_utilization) == (80, 0.5)
        assert (llm.config.quantization, llm.config.kv_cache_dtype) == ("none", "bf16")
        assert (llm.config.max_num_seqs, llm.config.block_size) == (64, 32)


def test_a_template_takes_the_place_of_the_models_own() -> None:
    template = "{% for message in messages %}{{ message.content }}{% endfor %} is"
    llm = LLM(chat_template=template)
    prompt = llm.get_tokenizer().encode_chat([{"role": "user", "content": "The capital of Peru"}])
    assert llm.get_tokenizer().decode(prompt).endswith("The capital of Peru is")
    assert not llm.get_tokenizer().decode(prompt).startswith("<|")
