"""Pictures and documents in every protocol: text is used, and a placeholder stands for the rest."""

import base64
from typing import Any

import pytest

from pellucid.server.errors import ApiError
from pellucid.server.protocols.anthropic_api.fields import ConversationFields
from pellucid.server.protocols.anthropic_api.input import conversation_of
from pellucid.server.protocols.messages import readable_messages
from pellucid.server.protocols.ollama_api.input import shared_message
from pellucid.server.protocols.openai_responses_api import fields as responses
from pellucid.server.protocols.openai_responses_api import input as input_items
from pellucid.server.protocols.parts import part_text
from support.bundled import bundled_model

PIXEL = "iVBORw0KGgo="
NOTES = base64.b64encode("é notes".encode()).decode()
PDF = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}
PNG = {"type": "base64", "media_type": "image/png", "data": PIXEL}
TEXT = {"type": "text", "text": "Look."}


def input_file(name: str, media_type: str, data: str) -> dict[str, str]:
    content = f"data:{media_type};base64,{data}"
    return {"type": "input_file", "filename": name, "file_data": content}


@pytest.mark.parametrize(
    ("part", "text", "omitted"),
    [
        (TEXT, "Look.", None),
        ({"type": "refusal", "refusal": "No."}, "No.", None),
        ({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}, None, "image"),
        ({"type": "input_image", "image_url": "https://a/b.png", "detail": "auto"}, None, "image"),
        ({"type": "image", "source": PNG}, None, "image"),
        ({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}, None, "audio"),
        ({"type": "video_url", "video_url": {"url": "x"}}, None, "video"),
        ({"type": "server_tool_use", "id": "a", "name": "web_search"}, None, "server_tool_use"),
        ({"type": "document", "source": PDF}, None, "document"),
        ({"type": "document", "source": {"type": "url", "url": "https://a/b"}}, None, "document"),
        ({"type": "document", "source": {"type": "text", "data": "A note."}}, "A note.", None),
        (
            {
                "type": "document",
                "source": {"type": "content", "content": [TEXT, {"type": "image", "source": PNG}]},
                "title": "T",
                "context": "C",
            },
            "C\n[document: T]\nLook.\n[image omitted]",
            "image",
        ),
        ({"type": "document", "source": {**PDF, "media_type": "text/plain", "data": NOTES}}, "é notes", None),
        (
            {
                "type": "file",
                "file": {"filename": "a.md", "file_data": f"data:text/markdown;base64,{NOTES}"},
            },
            "[document: a.md]\né notes",
            None,
        ),
        (input_file("a.json", "application/json", NOTES), "[document: a.json]\né notes", None),
        (input_file("a.pdf", "application/pdf", "JVBERi0="), "[document omitted: a.pdf]", "document"),
        ({"type": "input_file", "file_id": "file_1"}, None, "document"),
        (input_file("", "application/pdf", "JVBERi0="), None, "document"),
        ({"type": "search_result", "title": "T", "source": "S", "content": [TEXT]}, "T\nS\nLook.", None),
        ({"type": "tool_reference", "tool_name": "read"}, "[tool: read]", None),
    ],
)  # fmt: skip
def test_a_part_as_text(part: dict[str, Any], text: str | None, omitted: str | None) -> None:
    warnings: list[str] = []
    for _ in range(2):
        assert part_text(part, "messages", warnings) == (text or f"[{omitted} omitted]")
    assert len(warnings) == (omitted is not None)
    assert all(f"[{omitted} omitted]" in warning for warning in warnings)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("x", "a.type=None: must be the type of a part"),
        ({"type": ["text"]}, "must be the type of a part"),
        ({"type": "text", "text": None}, "a.text=None: must be text"),
        ({"type": "document", "source": "x"}, "a.source.type=None"),
        ({"type": "file", "file": "x"}, "a.file='x': must be an object"),
        ({"type": "file", "file": {"file_data": "data:text/plain;base64,!"}}, "must be UTF-8 text in base64"),
        ({"type": "file", "file": {"file_data": "data:text/plain;base64,/w=="}}, "must be UTF-8 text in base64"),
    ],
)  # fmt: skip
def test_a_part_without_its_text_is_refused(part: Any, message: str) -> None:
    with pytest.raises(ApiError) as refused:
        part_text(part, "a", [])
    assert message in refused.value.message


def test_pictures_in_questions_and_in_results_of_tools() -> None:
    """In the forms of all protocols."""
    warnings: list[str] = []
    tokenizer = bundled_model().tokenizer
    url = f"data:image/png;base64,{PIXEL}"
    image: dict[str, Any] = {"type": "image_url", "image_url": {"url": url}}
    omitted = {"type": "text", "text": "[image omitted]"}
    for role in ("user", "tool"):
        (message,) = readable_messages([{"role": role, "content": [TEXT, image]}], warnings)
        assert message["content"] == [TEXT, omitted]
    result = {
        "type": "tool_result",
        "tool_use_id": "a",
        "content": [TEXT, {"type": "image", "source": PNG}],
    }
    blocks: list[Any] = [result, {"type": "image", "source": PNG}, TEXT]
    body = ConversationFields(messages=[{"role": "user", "content": blocks}])
    given = conversation_of(body, tokenizer, warnings).messages
    assert [message["content"] for message in given] == [
        "Look.\n[image omitted]",
        "[image omitted]\nLook.",
    ]
    picture = {"type": "input_image", "image_url": url}
    items: list[Any] = [
        {"role": "user", "content": [{"type": "input_text", "text": "Look."}, picture]},
        {"type": "function_call", "call_id": "a", "name": "see", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": [picture]},
    ]
    given = input_items.conversation_of(
        responses.ConversationFields(input=items), tokenizer, warnings
    ).prompt.messages
    assert [given[0]["content"], given[2]["content"]] == [
        "Look.\n[image omitted]",
        "[image omitted]",
    ]
    for content, text in (("Look.", "Look.\n[image omitted]"), ("", "[image omitted]")):
        message = {"role": "user", "content": content, "images": [PIXEL]}
        assert shared_message(message, 0, warnings) == {"role": "user", "content": text}
    assert warnings == [
        "messages: the model reads text alone: [image omitted] stands for each image"
    ]
