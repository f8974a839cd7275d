"""Parts of messages as text: the model reads the text of documents, and a placeholder for what is no text."""

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from pellucid.inputs.parameter_checks import shown
from pellucid.server.errors import refused

_TEXT_KEYS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "reasoning_text": "text",
    "summary_text": "text",
    "refusal": "refusal",
}
_NOUNS = {
    "audio": "audio",
    "image": "image",
    "image_url": "image",
    "input_audio": "audio",
    "input_image": "image",
    "input_video": "video",
    "video_url": "video",
}
_TEXT_MEDIA = frozenset(
    f"application/{name}"
    for name in ("json", "javascript", "sql", "toml", "x-sh", "x-yaml", "xml", "yaml")
)


def part_text(part: object, name: str, warnings: list[str]) -> str:
    """The text of a part of a message, in any protocol's form.

    Args:
        part: text, a document, or something that is no text, such as an image.
        name: of the field, for errors and warnings.
        warnings: gets a line for each kind of part that a placeholder stands for.

    Raises:
        ApiError: it has no type, or its text is none.
    """
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping) or not isinstance(kind, str):
        raise refused(
            f"{name}.type={shown(kind)}: must be the type of a part, such as 'text'", name
        )
    if kind in _TEXT_KEYS:
        return _text(part.get(_TEXT_KEYS[kind]), f"{name}.{_TEXT_KEYS[kind]}")
    if kind == "document":
        return _document(part, name, warnings)
    if kind in ("file", "input_file"):
        return _file(part, name, warnings)
    if kind == "search_result":
        texts = [part.get("title"), part.get("source"), _texts(part.get("content"), name, warnings)]
        return "\n".join(text for text in texts if isinstance(text, str) and text)
    if kind == "tool_reference":
        return f"[tool: {_text(part.get('tool_name'), f'{name}.tool_name')}]"
    return placeholder(_NOUNS.get(kind, kind[:64]), warnings)


def placeholder(noun: str, warnings: list[str], title: object = None) -> str:
    """The text that stands for something that is no text.

    Args:
        noun: what it is.
        warnings: gets a line about it, once for each noun.
        title: its name, if it has one.
    """
    warning = f"messages: the model reads text alone: [{noun} omitted] stands for each {noun}"
    if warning not in warnings:
        warnings.append(warning)
    return f"[{noun} omitted: {title}]" if isinstance(title, str) and title else f"[{noun} omitted]"


def _document(part: Mapping[str, Any], name: str, warnings: list[str]) -> str:
    """Anthropic's document."""
    source = part.get("source")
    kind = source.get("type") if isinstance(source, Mapping) else None
    if not isinstance(source, Mapping) or not isinstance(kind, str):
        raise refused(f"{name}.source.type={shown(kind)}: must be the type of a source", name)
    text: str | None = None
    if kind == "text":
        text = _text(source.get("data"), f"{name}.source.data")
    elif kind == "content":
        text = _texts(source.get("content"), f"{name}.source", warnings)
    elif kind == "base64":
        text = _decoded(source.get("data"), source.get("media_type"), f"{name}.source.data")
    written = _with_title(text, part.get("title"), warnings)
    context = part.get("context")
    return f"{context}\n{written}" if isinstance(context, str) and context else written


def _file(part: Mapping[str, Any], name: str, warnings: list[str]) -> str:
    """OpenAI's file: of chat completions, with its fields in an object, and of responses."""
    given = part.get("file", part)
    if not isinstance(given, Mapping):
        raise refused(f"{name}.file={shown(given)}: must be an object", name)
    data, text = given.get("file_data"), None
    if isinstance(data, str) and data.startswith("data:"):
        head, _, encoded = data.removeprefix("data:").partition(",")
        media_type, _, encoding = head.partition(";")
        if encoding.rpartition(";")[2] == "base64":
            text = _decoded(encoded, media_type, f"{name}.file_data")
    return _with_title(text, given.get("filename"), warnings)


def _with_title(text: str | None, title: object, warnings: list[str]) -> str:
    if text is None:
        return placeholder("document", warnings, title)
    return f"[document: {title}]\n{text}" if isinstance(title, str) and title else text


def _decoded(data: object, media_type: object, name: str) -> str | None:
    """The text of a document in base64; None if its media type is not one of text."""
    kind = str(media_type).partition(";")[0].strip().lower()
    if not (kind.startswith("text/") or kind in _TEXT_MEDIA or kind.endswith(("+json", "+xml"))):
        return None
    try:
        return base64.b64decode(_text(data, name), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise refused(f"{name}: must be UTF-8 text in base64: {error}", name) from None


def _texts(content: object, name: str, warnings: list[str]) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise refused(f"{name}.content: must be text or a list of parts", name)
    return "\n".join(part_text(part, f"{name}.content", warnings) for part in content)


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise refused(f"{name}={shown(value)}: must be text", name)
    return value
