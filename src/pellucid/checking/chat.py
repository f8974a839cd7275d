"""What a model does with conversations, by the text of its chat template."""

import re
from collections.abc import Collection

from pellucid.checking.report import ChatFacts
from pellucid.text.responses.family_records import FamilyRecord, find_family_record

_SWITCHES = ("enable_thinking", "thinking", "reasoning_effort", "thinking_budget")
_REASONING = re.compile(r"reasoning|think")


def chat_facts(
    template: str | None, tool_template: str | None, tokens: Collection[str], has_own_format: bool
) -> ChatFacts:
    """The facts of a template, which is not rendered here.

    Args:
        template: its source, None if the model has none.
        tool_template: the one for conversations with tools, if it is another one.
        tokens: the texts of added tokens.
        has_own_format: whether the files say how to read answers (`response_template`).
    """
    if template is None:
        return ChatFacts(has_template=False)
    family = find_family_record(template, tokens)
    switches = (name for name in _SWITCHES if _mentions(template, name))
    return ChatFacts(
        has_template=True,
        takes_tools=tool_template is not None or _mentions(template, "tools"),
        answer_family=_answer_family(has_own_format, family),
        reads_tool_calls=has_own_format or (family is not None and family.has_tool_calls),
        reasons=_REASONING.search(template) is not None,
        reasoning_variable=next(switches, None),
    )


def _answer_family(has_own_format: bool, family: FamilyRecord | None) -> str | None:
    if has_own_format:
        return "checkpoint"
    return None if family is None else family.name


def _mentions(template: str, name: str) -> bool:
    return re.search(rf"\b{name}\b", template) is not None
