"""OpenAI's /v1/responses, by the official client and as Codex CLI uses it."""

from array import array
from typing import Any

import openai

from pellucid.inputs.prompts import ChatPrompt
from pellucid.server.protocols.cache_comparison import common_length
from pellucid.server.protocols.openai_responses_api.fields import ConversationFields
from pellucid.server.protocols.openai_responses_api.input import conversation_of
from support.bundled import bundled_model
from support.http_server import RunningServer
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


def user(text: str) -> dict[str, Any]:
    content = [{"type": "input_text", "text": text}]
    return {"type": "message", "role": "user", "content": content}


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
