"""Namespaces, custom tools, summaries and references in /v1/responses, as Codex CLI and the AI SDK use them."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from pellucid.server.protocols.openai_responses_api.fields import ConversationFields
from pellucid.server.protocols.openai_responses_api.input import conversation_of
from pellucid.server.protocols.openai_responses_api.kept_items import KeptItems
from pellucid.text.grammars import GrammarCompiler
from pellucid.text.responses.format import find_response_format
from support.bundled import bundled_model
from support.codex import APPLY_PATCH, GITHUB, PATCH
from support.http_server import RunningServer, running_server
from support.scripted_model import scripted_engine

TOOLS: list[Any] = [APPLY_PATCH, GITHUB]
SCRIPT = (
    "<think>I search.</think>"
    '<tool_call>\n{"name": "mcp__github__search_issues", "arguments": {"query": "bug"}}\n</tool_call>'
    f'<tool_call>\n{{"name": "apply_patch", "arguments": {{"input": {json.dumps(PATCH)}}}}}\n</tool_call>'
)
BODY: dict[str, Any] = {"input": "Mend it.", "tools": TOOLS, "temperature": 0}
QUESTION = {"role": "user", "content": "Mend it."}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server(scripted_engine(SCRIPT)) as running:
        yield running
        running.wait_until_idle()


def results_of(reply: list[Any]) -> list[dict[str, str]]:
    """Of the calls in a reply."""
    return [
        {"type": f"{item['type']}_output", "call_id": item["call_id"], "output": "ok"}
        for item in reply
        if "call_id" in item
    ]


def test_calls_of_namespaces_and_custom_tools_come_back_as_they_went(server: RunningServer) -> None:
    reply = server.post("/v1/responses", BODY).json["output"]
    again = [QUESTION, *reply, *results_of(reply)]
    warnings: list[str] = []
    fields = ConversationFields(input=again, tools=TOOLS)
    read = conversation_of(fields, server.engine.tokenizer, warnings)
    calls = [call["function"] for call in read.prompt.messages[1]["tool_calls"]]
    assert calls == [
        {"name": "mcp__github__search_issues", "arguments": {"query": "bug"}},
        {"name": "apply_patch", "arguments": {"input": PATCH}},
    ]
    assert warnings == []
    assert server.post("/v1/responses", {**BODY, "input": again}).status == 200


@pytest.mark.parametrize("family", ["hermes", "qwen3_coder"])
def test_the_grammar_of_a_custom_tool_is_kept(family: str) -> None:
    pytest.importorskip("llguidance")
    tokenizer = bundled_model().tokenizer
    read = conversation_of(
        ConversationFields(input="x", tools=[APPLY_PATCH]), scripted_engine("x").tokenizer, []
    )
    tools = read.prompt.tools
    assert tools is not None and tools[0]["function"]["strict"] is True
    sources = {"hermes": "<tool_call>", "qwen3_coder": "<tool_call><function=<parameter="}
    answers = find_response_format(sources[family])
    rule = answers.call_rule(tools, must_call=False, several=True)
    assert rule is not None
    matcher = GrammarCompiler(tokenizer, (1,)).compile(rule)
    for text, is_taken in ((PATCH, True), (PATCH.replace("***", "---"), False)):
        call = (
            '<tool_call>\n{"name": "apply_patch", "arguments": {"input": '
            + json.dumps(text)
            + "}}\n</tool_call>"
        )
        if family == "qwen3_coder":
            parameter = f"<parameter=input>\n{text}\n</parameter>\n"
            call = f"<tool_call>\n<function=apply_patch>\n{parameter}</function>\n</tool_call>"
        try:
            matcher.mask(tokenizer.encode(call, add_special_tokens=False))
            found = True
        except ValueError:
            found = False
        assert found == is_taken


def test_a_grammar_of_a_tool_has_a_limit(server: RunningServer) -> None:
    form = {"type": "grammar", "syntax": "regex", "definition": "a" * 200_001}
    tool = {"type": "custom", "name": "a", "format": form}
    reply = server.post("/v1/responses", {"input": "x", "tools": [tool]})
    assert "has 200001 characters; at most 200000" in reply.json["error"]["message"]


def test_references_to_items_of_recent_responses() -> None:
    with running_server(scripted_engine(SCRIPT)) as server:
        first = server.post("/v1/responses", BODY).json["output"]
        references = [{"type": "item_reference", "id": item["id"]} for item in first]
        counts = [
            server.post(
                "/v1/responses/input_tokens",
                {"input": [QUESTION, *items, *results_of(first)], "tools": TOOLS},
            )
            for items in (first, references)
        ]
        assert counts[0].json == counts[1].json and counts[0].status == 200
        unkept = server.post("/v1/responses", {**BODY, "store": False}).json["output"][0]
        named = {"type": "item_reference", "id": unkept["id"]}
        reply = server.post("/v1/responses", {"input": [QUESTION, named]})
        assert reply.status == 400 and "send the item itself" in reply.json["error"]["message"]
        server.wait_until_idle()


def test_kept_items_are_bounded_and_of_one_caller() -> None:
    kept = KeptItems(max_bytes=1000)
    for number in range(100):
        kept.keep("one", [{"id": f"msg_{number}", "text": "x" * 80}])
    assert kept.find("one", "msg_99") == {"id": "msg_99", "text": "x" * 80}
    assert kept.find("two", "msg_99") is None
    assert kept.find("one", "msg_0") is None and kept.find("one", None) is None
    assert sum(kept.find("one", f"msg_{number}") is not None for number in range(100)) == 9
    for number in range(100):
        kept.keep("two", [{"id": f"msg_{number}", "text": "of another caller"}])
    assert sum(kept.find("one", f"msg_{number}") is not None for number in range(100)) == 9
    kept.keep("one", [{"id": "msg_99", "text": ""}] * 3)
    assert kept.find("one", "msg_99") == {"id": "msg_99", "text": ""}
