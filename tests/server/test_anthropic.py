"""Anthropic's protocol, by its official client and as Claude Code sends it."""

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from pellucid.inputs.prompts import ChatPrompt
from support.http_server import RunningServer
from support.offline import offline

QUESTION: list[Any] = [{"role": "user", "content": "What is 12 + 7?"}]
LIMITED: dict[str, Any] = {"model": "alias-haiku", "max_tokens": 12}
GREEDY = {**LIMITED, "extra_body": {"temperature": 0}}  # the client has no name for it any more


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=server.url, api_key="none", max_retries=0, timeout=60
    ) as made:
        yield made


def expected_of(messages: list[Any], **fields: Any) -> Any:
    prompt = ChatPrompt(messages, **fields)
    return offline(prompt, temperature=0, max_tokens=12)


def test_a_message_is_what_the_engine_gives(client: anthropic.Anthropic) -> None:
    expected = expected_of([{"role": "system", "content": "Be brief."}, *QUESTION])
    message = client.messages.create(**GREEDY, messages=QUESTION, system="Be brief.")
    (block,) = message.content
    assert block.type == "text" and block.text == expected.outputs[0].text
    assert (
        message.stop_reason
        == {"stop": "end_turn", "length": "max_tokens"}[expected.outputs[0].finish_reason]
    )
    usage = message.usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == len(
        expected.prompt_token_ids
    )
    assert usage.output_tokens == len(expected.outputs[0].token_ids)
    assert message.model == "alias-haiku" and message.id.startswith("msg_")
    assert message._request_id == message.id.removeprefix("msg_")


def test_a_stream_builds_the_same_message(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(**GREEDY, messages=QUESTION)
    with client.messages.stream(**GREEDY, messages=QUESTION) as stream:
        text = "".join(stream.text_stream)
        message = stream.get_final_message()
    assert text == whole.content[0].text  # type: ignore[union-attr]
    assert message.content[0].text == text  # type: ignore[union-attr]
    assert message.stop_reason == whole.stop_reason
    assert message.usage.output_tokens == whole.usage.output_tokens


def test_tokens_are_counted_as_they_will_be(client: anthropic.Anthropic) -> None:
    counted = client.messages.count_tokens(
        model="alias-haiku", messages=QUESTION, system="Be brief."
    )
    expected = expected_of([{"role": "system", "content": "Be brief."}, *QUESTION])
    assert counted.input_tokens == len(expected.prompt_token_ids)


def test_an_unfinished_answer_is_continued(client: anthropic.Anthropic) -> None:
    messages = [*QUESTION, {"role": "assistant", "content": "12 + 7 ="}]
    expected = expected_of(messages, continue_final_message=True).outputs[0].text
    message = client.messages.create(**GREEDY, messages=messages)
    assert "".join(block.text for block in message.content) == expected  # type: ignore[union-attr]


def test_blocks_become_messages(server: RunningServer) -> None:
    """A turn of Claude Code: thinking, a call, its result, and a system message that stays there."""
    messages = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "Look."}, {"type": "text", "text": "Now."}],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I look.", "signature": "s"},
                {"type": "text", "text": "Looking."},
                {"type": "tool_use", "id": "call_1", "name": "look", "input": {"at": "sky"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "call_1",
                    "content": [{"type": "text", "text": "blue"}],
                },
                {"type": "text", "text": "And?", "cache_control": {"type": "ephemeral"}},
            ],
        },
        {"role": "system", "content": "100 tokens left"},
    ]
    from pellucid.server.protocols.anthropic_api.fields import ConversationFields
    from pellucid.server.protocols.anthropic_api.input import conversation_of
    from support.bundled import bundled_model

    warnings: list[str] = []
    block = {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}
    fields = ConversationFields(messages=messages, system=[block])
    made = conversation_of(fields, bundled_model().tokenizer, warnings).messages
    assert [message["role"] for message in made] == [
        "system",
        "user",
        "assistant",
        "tool",
        "user",
        "system",
    ]
    assert made[1]["content"] == "Look.\nNow."
    assert made[2]["reasoning_content"] == "I look."
    assert made[2]["tool_calls"][0]["function"] == {"name": "look", "arguments": {"at": "sky"}}
    assert (made[3]["tool_call_id"], made[3]["content"]) == ("call_1", "blue")
    assert warnings == [
        "system: cache_control has no effect",
        "messages: cache_control has no effect",
    ]
    assert server.post("/v1/messages", {**LIMITED, "messages": messages}).status == 200


def test_models_by_anthropics_client(client: anthropic.Anthropic) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.type, model.display_name) == ("tested", "model", "tested")
    found = client.models.retrieve("alias-haiku")
    assert (found.id, found.lifecycle, found.max_input_tokens) == ("alias-haiku", "active", 2047)
    longest = "alias-".ljust(256, "x")
    assert client.models.retrieve(longest).id == longest
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve(longest + "x")
