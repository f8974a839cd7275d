"""Replies in a form that each run gives alike: without ids, times, and the places where a text was cut into pieces."""

import json
import re
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

from pellucid.server.served_model import FINGERPRINT
from support.golden_files import shortened
from support.http_server import HttpReply

_NAMES = (
    (re.compile(r"[0-9a-f]{24,}"), "ID"),
    (re.compile(r"\bc[0-9a-f]{8}\b"), "CALL"),
    (re.compile(re.escape(FINGERPRINT)), "FINGERPRINT"),
)
_DURATION = re.compile(r"_ms$|_us$|us_per_tok$|_per_second$|_tok_s$|_duration$|(^|\.)seconds$")
_MOMENT = re.compile(r"(^|\.)(created|created_at|completed_at|modified_at)$")
# What grows from frame to frame of a stream
_GROWING = re.compile(
    r"(^|\.)(arguments|content|delta|partial_json|reasoning|reasoning_content|response|text|thinking)$"
)
_WHOLE = ("tools", "format", "logprobs.content", "logprobs.top_logprobs", "prompt_logprobs")


def frames(reply: HttpReply) -> list[dict[str, Any]]:
    """The values of a reply by their paths; of a stream those of each frame, where neighbours that bring pieces of one
    text are joined."""
    kind = reply.headers["content-type"]
    if kind.startswith("text/event-stream"):
        objects = list(_events(reply.body.decode()))
        numbers = [each.pop("sequence_number") for each in objects if "sequence_number" in each]
        assert numbers == list(range(len(numbers)))
    elif kind.startswith("application/x-ndjson"):
        objects = [json.loads(line) for line in reply.body.splitlines()]
    else:
        objects = [reply.json]
    found: list[dict[str, Any]] = []
    for each in objects:
        frame = {_named(path): _settled(value, path) for path, value in flat(each)}
        if not (found and _grows(found[-1], frame)):
            found.append(frame)
    return found


def without(value: Any, is_left_out: Callable[[str], object]) -> Any:
    """JSON without the values whose names are left out."""
    if isinstance(value, list | tuple):
        return [without(each, is_left_out) for each in value]
    if not isinstance(value, dict):
        return value
    kept = {name: each for name, each in value.items() if not is_left_out(name)}
    return {name: without(each, is_left_out) for name, each in kept.items()}


def short(value: Any) -> str:
    """A value as text of one line."""
    return shortened(_named(json.dumps(value, ensure_ascii=False, default=repr)))


def _named(text: str) -> str:
    for pattern, name in _NAMES:
        text = pattern.sub(name, text)
    return text


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The values within a value by their paths."""
    if isinstance(value, dict) and value and not path.endswith(_WHOLE):
        for key, item in value.items():
            yield from flat(item, f"{path}.{key}" if path else str(key))
    elif (
        isinstance(value, list | tuple)
        and any(isinstance(item, dict | list) for item in value)
        and not path.endswith(_WHOLE)
    ):
        for index, item in enumerate(value):
            yield from flat(item, f"{path}[{index}]")
    else:
        yield path, value


def _events(text: str) -> Iterator[dict[str, Any]]:
    *frames, rest = text.split("\n\n")
    assert rest == ""
    for frame in frames:
        *kind, data = frame.split("\n")
        assert data.startswith("data: ")
        if data == "data: [DONE]":
            yield {"data": "[DONE]"}
            continue
        event = json.loads(data.removeprefix("data: "))
        assert kind == ([f"event: {event['type']}"] if kind else [])
        yield event


def _settled(value: Any, path: str) -> Any:
    if path == "run":
        return "RUN"
    if isinstance(value, list) and _DURATION.search(path):
        return [_settled(each, path) for each in value]
    if isinstance(value, float | int) and _DURATION.search(path):
        assert value >= 0
        return "DURATION"
    if value is not None and _MOMENT.search(path):
        seconds = datetime.fromisoformat(value).timestamp() if isinstance(value, str) else value
        assert abs(seconds - time.time()) < 86_400  # a server may be as old as all its tests
        return "NOW"
    return value


def _grows(last: dict[str, Any], frame: dict[str, Any]) -> bool:
    """Whether a frame only brings more of the last one's text, which then gets it."""
    growing = [
        path for path, value in frame.items() if _GROWING.search(path) and isinstance(value, str)
    ]
    others = frame.keys() - set(growing)
    if (
        not growing
        or last.keys() != frame.keys()
        or any(last[path] != frame[path] for path in others)
    ):
        return False
    for path in growing:
        last[path] += frame[path]
    return True
