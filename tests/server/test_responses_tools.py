"""Namespaces, custom tools, summaries and references in /v1/responses, as Codex CLI and the AI SDK use them."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from pellucid.server.protocols.openai_responses_api.fields import ConversationFields
from pellucid.server.protocols.openai_responses_api.input import conversation_of
from pellucid.server.protocols.openai_responses_api.kept_items import KeptItems
from pellucid.text.grammars import GrammarCompiler
from pellucid.text.responses.format import find_response_format
from support.bundled import bundled_model
from support.codex import APPLY_PATCH, GITHUB, PATCH
from support.http_server import RunningServer, running_server
from support.refusals import check_refusals
from support.scripted_model import scripted_engine

TOOLS: list[Any] = [APPLY_PATCH, GITHUB]
SCRIPT = (
    "<think>I search.</think>"
    '<tool_call>\n{"name": "mcp__github__search_issues", "arguments": {"query": "bug"}}\n</tool_call>'
    f'<tool_call>\n{{"name": "apply_patch", "arguments": {{"input": {json.dumps(PATCH)}}}}}\n</tool_call>'
)
BODY: dict[str, Any] = {"input": "Mend it.", "tools": TOOLS, "temperature": 0}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server(scripted_engine(SCRIPT)) as running:
        yield running
        running.wait_until_idle()


def test_tools_of_namespaces_and_custom_tools_are_called_by_their_own_names(
    server: RunningServer,
) -> None:
    reply = server.post("/v1/responses", BODY)
    _, found, patch = reply.json["output"]
    assert (found["type"], found["namespace"], found["name"]) == (
        "function_call",
        "mcp__github",
        "search_issues",
    )
    assert json.loads(found["arguments"]) == {"query": "bug"}
    assert (patch["type"], patch["name"], patch["input"]) == (
        "custom_tool_call",
        "apply_patch",
        PATCH,
    )
    assert reply.json["warnings"] == []
    tokenizer = server.engine.tokenizer
    outputs = [
        {"type": "function_call_output", "call_id": found["call_id"], "output": "none"},
        {"type": "custom_tool_call_output", "call_id": patch["call_id"], "output": "ok"},
    ]
    again = [{"role": "user", "content": "Mend it."}, *reply.json["output"], *outputs]
    warnings: list[str] = []
    read = conversation_of(ConversationFields(input=again, tools=TOOLS), tokenizer, warnings)
    calls = [call["function"] for call in read.prompt.messages[1]["tool_calls"]]
    assert calls == [
        {"name": "mcp__github__search_issues", "arguments": {"query": "bug"}},
        {"name": "apply_patch", "arguments": {"input": PATCH}},
    ]
    assert warnings == []
    assert server.post("/v1/responses", {**BODY, "input": again}).status == 200


def test_the_stream_brings_the_same_items(server: RunningServer) -> None:
    whole = server.post("/v1/responses", BODY).json["output"]
    events = server.post("/v1/responses", {**BODY, "stream": True}).events
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]

    def without_ids(items: list[Any]) -> list[Any]:
        return [
            {key: value for key, value in item.items() if key not in ("id", "call_id")}
            for item in items
        ]

    assert without_ids(done) == without_ids(whole)
    inputs = [event for event in events if "custom_tool_call_input" in event["type"]]
    assert [event["type"].rpartition(".")[2] for event in inputs] == ["delta", "done"]
    assert inputs[0]["delta"] == inputs[1]["input"] == PATCH
    assert inputs[0]["item_id"] == done[2]["id"] and done[2]["id"].startswith("ctc_")


@pytest.mark.parametrize(
    ("choice", "called"),
    [
        ({"type": "custom", "name": "apply_patch"}, "apply_patch"),
        (
            {"type": "function", "name": "search_issues", "namespace": "mcp__github"},
            "search_issues",
        ),
    ],
)
def test_a_tool_that_must_be_called(
    server: RunningServer, choice: dict[str, Any], called: str
) -> None:
    pytest.importorskip("llguidance")
    reply = server.post("/v1/responses", {**BODY, "tool_choice": choice, "max_output_tokens": 40})
    assert reply.status == 200, reply.body
    assert reply.json["output"][0]["name"] == called


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


WRONG_TOOLS: list[dict[str, Any]] = [
    {"type": "custom", "name": "a", "format": {"type": "xml"}},
    {"type": "custom", "name": "a", "format": {"type": "grammar", "syntax": "lark"}},
    {"type": "custom", "name": "a", "format": {"type": "grammar", "syntax": "bnf", "definition": 'start: "b"'}},
    {"type": "custom", "name": "a", "format": {"type": "grammar", "syntax": "lark", "definition": "start: b"}},
    {"type": "custom", "name": "a", "format": {"type": "grammar", "syntax": "regex", "definition": "a" * 200_001}},
    {"type": "namespace", "name": "a", "tools": "x"},
    {"type": "custom"},
]  # fmt: skip


def test_tools_in_a_wrong_form(server: RunningServer) -> None:
    def post(tool: dict[str, Any]) -> None:
        reply = server.post("/v1/responses", {"input": "x", "tools": [tool]})
        assert reply.status == 400
        raise ValueError(reply.json["error"]["message"])

    check_refusals("responses_tool", WRONG_TOOLS, post)


def test_a_recursive_grammar_is_said_not_to_be_enforced(server: RunningServer) -> None:
    form = {"type": "grammar", "syntax": "lark", "definition": 'start: "(" start ")" | "x"'}
    tool = {"type": "custom", "name": "nest", "format": form}
    reply = server.post("/v1/responses", {"input": "x", "tools": [tool], "max_output_tokens": 1})
    assert reply.json["warnings"] == [
        "tools: the grammar of 'nest' is not enforced: it is recursive"
    ]


def test_reasoning_as_a_summary(server: RunningServer) -> None:
    body = {**BODY, "reasoning": {"summary": "auto"}, "include": ["reasoning.encrypted_content"]}
    item = server.post("/v1/responses", body).json["output"][0]
    summary = [{"type": "summary_text", "text": "I search."}]
    assert (item["summary"], item["content"]) == (summary, [])
    assert item["encrypted_content"]
    events = server.post("/v1/responses", {**body, "stream": True}).events
    kinds = [event["type"] for event in events if "reasoning" in event["type"]]
    prefix = "response.reasoning_summary"
    assert kinds[0] == f"{prefix}_part.added"
    assert set(kinds[1:-2]) == {f"{prefix}_text.delta"}
    assert kinds[-2:] == [f"{prefix}_text.done", f"{prefix}_part.done"]
    again = [{"role": "user", "content": "Mend it."}, item]
    read = conversation_of(ConversationFields(input=again), bundled_model().tokenizer, [])
    assert read.prompt.messages[1]["reasoning_content"] == "I search."
    with (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
        client.responses.stream(
            model="tested", input="x", reasoning={"summary": "auto"}, temperature=0
        ) as stream,
    ):
        first: Any = stream.get_final_response().output[0]
    assert first.summary[0].text == "I search."


def test_references_to_items_of_recent_responses() -> None:
    with running_server(scripted_engine(SCRIPT)) as server:
        first = server.post("/v1/responses", BODY).json["output"]
        outputs = [
            {"type": "function_call_output", "call_id": first[1]["call_id"], "output": "none"},
            {"type": "custom_tool_call_output", "call_id": first[2]["call_id"], "output": "ok"},
        ]
        question = {"role": "user", "content": "Mend it."}
        references = [{"type": "item_reference", "id": item["id"]} for item in first]
        counts = [
            server.post(
                "/v1/responses/input_tokens",
                {"input": [question, *items, *outputs], "tools": TOOLS},
            )
            for items in (first, references)
        ]
        assert counts[0].json == counts[1].json and counts[0].status == 200
        unkept = server.post("/v1/responses", {**BODY, "store": False}).json["output"][0]
        named = {"type": "item_reference", "id": unkept["id"]}
        reply = server.post("/v1/responses", {"input": [question, named]})
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
