"""OpenAI's /v1/responses, by the official client and as Codex CLI uses it."""

from array import array
from typing import Any

import openai
import pytest

from pellucid.inputs.prompts import ChatPrompt
from pellucid.server.protocols.cache_comparison import common_length
from pellucid.server.protocols.openai_responses_api.fields import ConversationFields
from pellucid.server.protocols.openai_responses_api.input import conversation_of
from support.bundled import bundled_engine, bundled_model
from support.codex import APPLY_PATCH, GITHUB
from support.http_server import RunningServer, running_server
from support.offline import offline

QUESTION = "What is 12 + 7?"
GREEDY: dict[str, Any] = {"model": "tested", "max_output_tokens": 12, "temperature": 0}


def expected_of(*messages: dict[str, Any]) -> Any:
    return offline(ChatPrompt(messages), temperature=0, max_tokens=12)


def test_a_response_is_what_the_engine_gives(client: openai.OpenAI) -> None:
    expected = expected_of(
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}
    )
    response = client.responses.create(**GREEDY, input=QUESTION, instructions="Be brief.")
    assert response.output_text == expected.outputs[0].text
    ended = {"stop": "completed", "length": "incomplete"}
    assert response.status == ended[expected.outputs[0].finish_reason]
    assert response.usage is not None
    assert response.usage.input_tokens == len(expected.prompt_token_ids)
    assert response.usage.output_tokens == len(expected.outputs[0].token_ids)
    assert response.usage.input_tokens_details.cache_write_tokens == 0
    assert response.id == f"resp_{response._request_id}"


def test_a_stream_builds_the_same_response(client: openai.OpenAI) -> None:
    whole = client.responses.create(**GREEDY, input=QUESTION)
    with client.responses.stream(**GREEDY, input=QUESTION) as stream:
        events = list(stream)
    final = events[-1].response  # type: ignore[union-attr]
    assert final.output_text == whole.output_text
    assert final.usage.output_tokens == whole.usage.output_tokens  # type: ignore[union-attr]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:-1] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
    ]


def test_an_answer_that_is_cut_off_says_why(client: openai.OpenAI) -> None:
    response = client.responses.create(**{**GREEDY, "max_output_tokens": 1}, input=QUESTION)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


def codex_body(items: list[Any]) -> dict[str, Any]:
    """What Codex CLI sends: tools of mixed types, and no max_output_tokens."""
    return {
        "model": "tested",
        "instructions": "You are a coding agent. " * 40,
        "input": items,
        "tools": [
            {
                "type": "function",
                "name": "shell",
                "strict": False,
                "parameters": {"type": "object"},
            },
            APPLY_PATCH,
            {"type": "web_search"},
            GITHUB,
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "thread-1",
        "client_metadata": {"x-codex-installation-id": "1"},
    }


def user(text: str) -> dict[str, Any]:
    content = [{"type": "input_text", "text": text}]
    return {"type": "message", "role": "user", "content": content}


def test_two_turns_of_codex_the_second_found_in_the_cache(server: RunningServer) -> None:
    items: list[Any] = [
        {
            "type": "message",
            "role": "developer",
            "content": [{"type": "input_text", "text": "Sandbox."}],
        },
        user("List the files."),
    ]
    first = server.post("/v1/responses", {**codex_body(items), "temperature": 0})
    assert first.status == 200
    assert first.headers["x-pellucid-warnings"].count("tools[") == 1
    completed = first.events[-1]
    assert completed["type"] in ("response.completed", "response.incomplete")
    response = completed["response"]
    assert response["id"] and response["usage"]["total_tokens"] > 0
    done = [event["item"] for event in first.events if event["type"] == "response.output_item.done"]
    assert done == response["output"]
    items += [*done, {"type": "additional_tools", "tools": []}, user("And now?")]
    again = server.post("/v1/responses", codex_body(items)).events[-1]["response"]["usage"]
    found = again["input_tokens_details"]["cached_tokens"]
    assert found >= response["usage"]["input_tokens"] // 32 * 32


def test_items_become_messages() -> None:
    items = [
        user("Look."),
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at": "sky"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "blue"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Done."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Blue."}]},
        {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "ok"}]},
        {"type": "web_search_call", "id": "w"},
    ]  # fmt: skip
    warnings: list[str] = []
    read = conversation_of(ConversationFields(input=items), bundled_model().tokenizer, warnings)
    made = read.prompt.messages
    assert [message["role"] for message in made] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
    ]
    assert made[1]["reasoning_content"] == "I look."
    assert made[1]["tool_calls"][0]["function"] == {"name": "look", "arguments": {"at": "sky"}}
    assert (made[3]["content"], made[3]["reasoning_content"]) == ("Blue.", "Done.")
    assert made[3]["tool_calls"][0]["function"]["arguments"] == {"input": "x"}
    assert [line.partition(":")[0] for line in warnings] == ["input[8]"]


def test_tokens_are_counted_as_they_will_be(server: RunningServer) -> None:
    reply = server.post("/v1/responses/input_tokens", {"input": QUESTION}).json
    expected = expected_of({"role": "user", "content": QUESTION})
    assert reply["input_tokens"] == len(expected.prompt_token_ids)


def test_a_prompt_beyond_the_context_has_the_code_that_codex_reads(server: RunningServer) -> None:
    reply = server.post("/v1/responses", {"input": "word " * 3000, "stream": True})
    assert reply.status == 400
    assert reply.json["error"]["code"] == "context_length_exceeded"


def test_why_the_cache_missed_in_openais_form(client: openai.OpenAI) -> None:
    """The vendor estimates; here both prompts are known."""
    long = "You answer questions about numbers. " * 20

    def ask(earlier: str | None, text: str = QUESTION) -> Any:
        options: Any = {"comparison_response_id": earlier} if earlier else openai.omit
        return client.responses.create(
            **GREEDY, input=text, instructions=long, prompt_cache_options=options
        )

    first = ask(None)
    assert first.prompt_cache_diagnostics is None
    assert ask(first.id).prompt_cache_diagnostics.type == "cache_hit"
    missed = ask(first.id, "Other words.").prompt_cache_diagnostics
    assert (missed.type, missed.reason) == ("cache_miss", "input_changed")
    assert missed.comparison_reusable_tokens == first.usage.input_tokens
    assert 0 < missed.cache_missed_tokens < 20
    unknown = ask("resp_000000000000000000000000").prompt_cache_diagnostics
    assert unknown.type == "comparison_response_not_found"


@pytest.mark.parametrize(
    ("path", "body", "asked", "told"),
    [
        (
            "/v1/responses",
            {"input": "Be brief. " * 30, "max_output_tokens": 1},
            lambda earlier: {"prompt_cache_options": {"comparison_response_id": earlier}},
            ("prompt_cache_diagnostics", {"type": "unavailable"}),
        ),
        (
            "/v1/messages",
            {"messages": [{"role": "user", "content": "Be brief. " * 30}], "max_tokens": 1},
            lambda earlier: {"diagnostics": {"previous_message_id": earlier}},
            ("diagnostics", {"cache_miss_reason": {"type": "unavailable"}}),
        ),
    ],
)
def test_an_earlier_prompt_whose_blocks_are_gone(
    path: str, body: dict[str, Any], asked: Any, told: tuple[str, Any]
) -> None:
    with running_server(bundled_engine(num_kv_blocks=16, max_model_len=512)) as server:
        first = server.post(path, body).json["id"]
        server.post("/v1/completions", {"prompt": [*range(10, 500)], "max_tokens": 1})
        again = server.post(path, body | asked(first)).json
    assert told in again.items()


def test_where_prompts_part() -> None:
    for first, second, expected in (
        ([], [], 0),
        ([1], [1], 1),
        ([1, 2, 3], [1, 2], 2),
        ([1, 2, 3, 4, 5], [1, 2, 9, 4, 5], 2),
        ([9, 2], [1, 2], 0),
        (list(range(1000)), [*range(777), 0, *range(778, 1000)], 777),
    ):
        assert common_length(array("I", first), array("I", second)) == expected
