"""Forms of messages: chat templates of well-known families get conversations in the forms that they take."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pellucid.inputs.prompts import ChatPrompt
from pellucid.text.tokenizer import Tokenizer
from support.chat_templates import FAMILIES
from support.golden_files import compare
from support.tokenizer_kinds import KINDS

SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CALL = {
    "id": "abc123def",
    "type": "function",
    "function": {"name": "add", "arguments": '{"a": 1, "b": "é"}'},
}
TURNS: list[dict[str, Any]] = [
    {"role": "user", "content": "What is 1 + 2?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "abc123def", "content": "3"},
]


@cache
def tokenizer(family: str) -> Tokenizer:
    backend = KINDS["sentencepiece_bpe"]()
    return Tokenizer(backend, backend.get_vocab_size(), SPECIAL_TOKENS, FAMILIES[family], family)


def text(family: str, messages: list[dict[str, Any]], **options: Any) -> str:
    return tokenizer(family).apply_chat_template(messages, **options)


def test_tools_reach_the_template() -> None:
    for family in ("qwen", "mistral"):
        assert str(TOOL).replace("'", '"') in text(family, TURNS[:1], tools=[TOOL])


def test_a_template_for_tools() -> None:
    backend = KINDS["unigram"]()
    with_tools = "with {{ tools | length }} tools"
    both = Tokenizer(backend, 1000, {}, "plain", "m", tool_chat_template=with_tools)
    assert both.apply_chat_template(TURNS[:1]) == "plain"
    assert both.apply_chat_template(TURNS[:1], tools=[TOOL]) == "with 1 tools"


def test_tools_that_a_template_would_ignore_are_refused() -> None:
    backend = KINDS["unigram"]()
    plain = Tokenizer(backend, 1000, {}, "plain", "m")
    with pytest.raises(ValueError, match="tools: this model's chat template does not take tools"):
        plain.encode_chat(TURNS[:1], tools=[TOOL])


PARTS = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]


def test_the_format_of_answers(tmp_path: Path) -> None:
    assert tokenizer("qwen").response_format.name == "hermes"
    assert tokenizer("parts only").response_format.name == "text"
    KINDS["sentencepiece_bpe"]().save(str(tmp_path / "tokenizer.json"))
    own = {"start_anchor": "A:", "fields": {"content": {"close": "</s>"}}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"response_template": own}))
    loaded = Tokenizer.load(tmp_path, 1000).response_format
    assert loaded.name == "checkpoint"
    assert not loaded.skip_special_tokens


def said(role: str, content: Any = None, *calls: dict[str, Any], **others: Any) -> dict[str, Any]:
    message = {"role": role, "content": content, **others}
    return {**message, "tool_calls": list(calls)} if calls else message


def called(call_id: str, arguments: object = None) -> dict[str, Any]:
    function = {"name": f"function_{call_id}", "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


ALTERNATE = said("user", "Q1"), said("assistant", "A1"), said("user", "Q2")
TWO_CALLS = [
    said("user", "Q1"),
    said("assistant", "T", called("one"), called("two"), reasoning="R"),
    said("tool", "result of two", tool_call_id="two"),
    said("tool", "result of one", tool_call_id="one"),
]


CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "system messages at the beginning": [
        *(said("system", "S"), said("developer", "D"), said("system", "T"), ALTERNATE[0])
    ],
    "three developers' messages at the beginning": [
        *(said("developer", PARTS), said("developer", "D"), said("developer", "E"), ALTERNATE[0])
    ],
    "a system message alone": [said("system", "S")],
    "a system message behind a question": [*ALTERNATE, said("system", "S")],
    "a developer's message behind an answer": [
        *ALTERNATE[:2],
        said("developer", [{"type": "text", "text": "S"}]),
        ALTERNATE[2],
    ],
    "a system message behind a result": [*TURNS, said("system", "S")],
    "two questions": [*ALTERNATE, said("user", "Q3")],
    "a question in parts behind another one": [*ALTERNATE, said("user", PARTS)],
    "a question behind a result": [*TURNS, said("user", "Q2")],
    "two answers, with reasoning and a call": [
        *ALTERNATE[:2],
        said("assistant", "A2", called("x", {"a": 1}), reasoning="R2"),
        said("tool", "result", tool_call_id="x"),
        ALTERNATE[2],
    ],
    "reasoning twice": [
        ALTERNATE[0],
        said("assistant", "A1", reasoning="R1"),
        said("assistant", None, called("x"), reasoning="R2"),
        said("tool", "result"),
    ],
    "an answer at the beginning": [said("system", "S"), said("assistant", "A"), ALTERNATE[0]],
    "two calls, their results in another order": TWO_CALLS,
    "three calls, one result": [
        ALTERNATE[0],
        said("assistant", None, *map(called, "abc")),
        said("tool", "result of a", tool_call_id="a"),
        said("tool", "result", tool_call_id="d"),
    ],
    "a long id": [
        TURNS[0],
        said("assistant", None, called("toolu_01A09q90qw90lq917835")),
        said("tool", "result", tool_call_id="toolu_01A09q90qw90lq917835"),
    ],
    "calls and results without ids": [
        TURNS[0],
        said("assistant", "T", {**called("a"), "id": None}, {**called("b"), "id": None}),
        *(said("tool", "result of a"), said("tool", "result of b")),
    ],
    "arguments that were cut off": [TURNS[0], said("assistant", None, called("a", '{"x": "src'))],
    "arguments that are a list": [TURNS[0], said("assistant", None, called("a", "[1]"))],
    "arguments in an object": [TURNS[0], said("assistant", None, called("a", {"x": [1]}))],
    "an answer of nothing": [TURNS[0], said("assistant"), ALTERNATE[2]],
    "a call, its result, and an answer": [*TURNS, said("assistant", "Three.", reasoning="R")],
}


def test_answers_that_become_one_keep_their_reasoning() -> None:
    template = (
        "{% for m in messages %}{% if not loop.first and loop.previtem.role == m.role %}"
        "{{ raise_exception('twice') }}{% endif %}{{ m.role }}: ({{ m.reasoning_content }}) {{ m.content }};"
        "{% endfor %}"
    )
    model = Tokenizer(KINDS["sentencepiece_bpe"](), 1000, {}, template)
    messages = [
        ALTERNATE[0],
        said("assistant", "A1", reasoning="R1"),
        said("assistant", "A2", reasoning="R2"),
    ]
    written = model.apply_chat_template(messages, add_generation_prompt=False)
    assert written == "user: () Q1;assistant: (R1\n\nR2) A1\n\nA2;"


@pytest.mark.parametrize("family", FAMILIES)
def test_conversations_as_a_template_writes_them(family: str) -> None:
    """Nothing is lost, and everything is where and how the template takes it."""
    lines = []
    for name, messages in CONVERSATIONS.items():
        try:
            written = text(family, messages)
        except ValueError as error:
            written = f"refused: {error}"
        lines += [f"# {name}", *re.sub(r"\d\d \w{3} 20\d\d", "TODAY", written).split("\n")]
    compare(Path(__file__).parent / "conversations" / f"{family}.txt", lines)


def test_template_variables() -> None:
    assert text("qwen", TURNS[:1], enable_thinking=False).endswith("<think>\n\n</think>\n\n")
    assert "Today: 1 Jan" in text("llama", TURNS[:1], date_string="1 Jan")
    assert "Reasoning: high" in text("harmony", TURNS[:1], reasoning_effort="high")
    assert tokenizer("qwen").chat_template_mentions("enable_thinking")
    assert not tokenizer("gemma").chat_template_mentions("enable_thinking")
    with pytest.raises(ValueError, match="chat template has no variable 'enable_thinking'"):
        text("gemma", TURNS[:1], enable_thinking=False)


def test_a_template_of_the_request() -> None:
    prompt = ChatPrompt(TURNS[:1], chat_template="{{ messages[0].content }}</s>")
    plain = Tokenizer(KINDS["sentencepiece_bpe"](), 1000, SPECIAL_TOKENS)
    ids = plain.encode_conversation(prompt)
    assert plain.decode(ids, skip_special_tokens=False) == "What is 1 + 2?</s>"
    with pytest.raises(ValueError, match="chat template of the model has a syntax error"):
        plain.encode_conversation(ChatPrompt(TURNS[:1], chat_template="{% if %}"))
    with pytest.raises(ValueError, match="has no chat template, which chat needs"):
        plain.encode_conversation(ChatPrompt(TURNS[:1]))


def test_the_end_of_a_turn_is_that_of_the_requests_template() -> None:
    backend = KINDS["sentencepiece_bpe"]()
    backend.add_special_tokens(["<|a|>", "<|b|>"])
    source = "{% for m in messages %}{{ m.content }}<|a|>{% endfor %}"
    model = Tokenizer(backend, 1000, SPECIAL_TOKENS, source)
    own = ChatPrompt(TURNS[:1], chat_template=source.replace("<|a|>", "<|b|>"))
    eos, a, b = (backend.token_to_id(token) for token in ("</s>", "<|a|>", "<|b|>"))
    assert model.end_of_turn_token_ids() == (eos, a)
    assert model.end_of_turn_token_ids(own) == (eos, b)


@pytest.mark.parametrize(
    "content", ["The answer", "The answer  ", [{"type": "text", "text": "The answer"}]]
)
@pytest.mark.parametrize("family", ["qwen", "llama", "gemma", "harmony", "parts only"])
def test_a_final_message_is_continued(family: str, content: Any) -> None:
    messages = [TURNS[0], {"role": "assistant", "content": content}]
    written = text(family, messages, continue_final_message=True)
    closed = text(family, messages, add_generation_prompt=False)
    assert closed.startswith(written)
    assert written.rstrip().endswith("The answer")
    if family in ("llama", "gemma"):  # which trim
        assert written.endswith("The answer")


def test_a_final_message_that_the_template_drops_cannot_be_continued() -> None:
    messages = [{"role": "user", "content": "Hi"}]
    prompt = ChatPrompt(messages, chat_template="Hi", continue_final_message=True)
    with pytest.raises(ValueError, match="does not write the final message's content"):
        tokenizer("qwen").render_chat(prompt)


def test_a_continued_message_may_hold_control_tokens() -> None:
    backend = KINDS["byte_level_bpe"]()
    model = Tokenizer(backend, 1000, {"eos_token": "<|end|>"}, FAMILIES["qwen"])
    messages = [TURNS[0], {"role": "assistant", "content": "a<|end|>b"}]
    ids = model.encode_chat(messages, continue_final_message=True)
    assert backend.token_to_id("<|end|>") not in ids
    assert model.decode(ids).endswith("<|im_start|>assistant\na<|end|>b")


def test_the_callers_parts_are_not_changed() -> None:
    prompt = ChatPrompt([{"role": "user", "content": list(PARTS)}], continue_final_message=True)
    for family in ("gemma", "qwen", "parts only"):
        tokenizer(family).render_chat(prompt)
    assert prompt.messages[0]["content"] == PARTS
