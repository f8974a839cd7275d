"""Two turns of coding agents with tools, in the bodies that Codex CLI and Claude Code send: the second turn is
found in the cache."""

from collections.abc import Iterator
from typing import Any

import pytest

from support.codex import APPLY_PATCH, GITHUB
from support.http_server import RunningServer, running_server
from support.scripted_model import scripted_engine

CALL = '<tool_call>\n{"name": "read_file", "arguments": {"path": "src/main.py"}}\n</tool_call>'
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
INSTRUCTIONS = "You are a careful coding agent: read files before you answer questions. " * 200


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    engine = scripted_engine(CALL, context_length=8192, enable_prefix_caching=True)
    with running_server(engine) as running:
        yield running
        running.wait_until_idle()


def codex_body(items: list[Any]) -> dict[str, Any]:
    """The fields of Codex CLI, with tools of all its types."""
    return {
        "model": "tested",
        "instructions": INSTRUCTIONS,
        "input": items,
        "tools": [
            {"type": "function", "name": "read_file", "strict": False, "parameters": SCHEMA},
            APPLY_PATCH,
            {"type": "web_search", "external_web_access": False},
            GITHUB,
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": None,
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "thread-1",
        "client_metadata": {"x-codex-installation-id": "1"},
    }


def test_codex_reads_a_file_and_goes_on(server: RunningServer) -> None:
    question = {"type": "input_text", "text": "What does the program do?"}
    items: list[Any] = [{"type": "message", "role": "user", "content": [question]}]
    first = server.post("/v1/responses", {**codex_body(items), "temperature": 0})
    done = [event["item"] for event in first.events if event["type"] == "response.output_item.done"]
    (call,) = done
    assert (call["type"], call["name"]) == ("function_call", "read_file")
    completed = first.events[-1]
    assert completed["type"] == "response.completed" and completed["response"]["id"]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "print(1)"}
    again = server.post("/v1/responses", codex_body([*items, *done, output])).events[-1]
    usage = again["response"]["usage"]
    assert usage["input_tokens"] > completed["response"]["usage"]["input_tokens"] > 3000
    found = usage["input_tokens_details"]["cached_tokens"]
    assert found >= 0.99 * usage["input_tokens"]


def claude_code_body(turn: int, messages: list[Any]) -> dict[str, Any]:
    """The fields of Claude Code, with the line of its system prompt that changes with every request."""
    billing = f"x-anthropic-billing-header: cc_version=2.1; cc_entrypoint=cli; cch={turn:05x};"
    cached = {"cache_control": {"type": "ephemeral"}}
    return {
        "model": "alias-sonnet",
        "max_tokens": 200,
        "temperature": 0,
        "stream": True,
        "metadata": {"user_id": "user_1_session_2"},
        "system": [
            {"type": "text", "text": billing},
            {"type": "text", "text": INSTRUCTIONS, **cached},
        ],
        "tools": [
            {"name": "read_file", "description": "Reads a file.", "input_schema": SCHEMA},
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
        ],
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "messages": messages,
    }


def test_claude_code_reads_a_file_and_goes_on(server: RunningServer) -> None:
    question = {"type": "text", "text": "What does the program do?"}
    messages: list[Any] = [{"role": "user", "content": [question]}]
    first = server.post("/v1/messages?beta=true", claude_code_body(1, messages)).events
    (start,) = [event for event in first if event["type"] == "content_block_start"]
    call = start["content_block"]
    assert (call["type"], call["name"]) == ("tool_use", "read_file")
    assert first[-2]["delta"]["stop_reason"] == "tool_use"
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "print(1)"}
    messages += [
        {"role": "assistant", "content": [{**call, "input": {"path": "src/main.py"}}]},
        {"role": "user", "content": [{**result, "cache_control": {"type": "ephemeral"}}]},
        {"role": "system", "content": "Token usage: 3000/8192; 5192 left"},  # stays where it is
    ]
    second = server.post("/v1/messages?beta=true", claude_code_body(2, messages)).events
    usage = second[0]["message"]["usage"]
    num_tokens = usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert num_tokens > 3000
    assert usage["cache_read_input_tokens"] >= num_tokens - 64  # all but the new messages
