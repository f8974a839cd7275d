"""Parsed answers, compared live with transformers' parser of response templates."""

import json

import pytest

from pellucid.text.responses.deltas import merged
from pellucid.text.responses.parser import ResponseParser
from support.answers import ANSWERS, TOOLS, message_of
from unit.test_responses import TEMPLATES

parsing = pytest.importorskip("transformers.utils.chat_parsing")

# Where we read more than transformers does: it refuses text that is no call, keeps the last of several
# regions of content, and ends a region only at what closes it.
MORE = (
    "no call",
    '{"a": 1',
    "null}",
    "age",
    "CALL_ID",
    "<|return|>x",
    "<parameter=b>\n1",
    ", days: 2}",
)


@pytest.mark.parametrize(("family", "prompt", "answer", "message"), ANSWERS)
def test_answers(family, prompt, answer, message):
    template = TEMPLATES[family]
    if template is None or any(text in answer for text in MORE):
        pytest.skip("transformers reads less")
    theirs = parsing.parse_response(answer, template.source, prefix=prompt, tools=TOOLS)
    parser = ResponseParser(template, prompt, TOOLS)
    ours = message_of(merged(parser.push(answer) + parser.flush()))
    calls = [
        (call["function"]["name"], call["function"]["arguments"])
        for call in theirs.get("tool_calls", [])
    ]
    assert json.dumps(ours.calls) == json.dumps(calls)
    assert ours.reasoning == theirs.get("reasoning_content", "")
    begun = prompt.rpartition("assistant\n")[2] if "answer is" in prompt else ""
    if family != "harmony" or "content" in theirs:
        assert (begun + ours.content).strip() == (theirs.get("content") or "")
