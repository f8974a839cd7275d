"""Grammars of tool calls: the form in which a family writes calls, and rules with which every call is valid.

Grammars are in Lark's syntax as llguidance reads it.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pellucid.text.lark_patterns import literal_pattern


@dataclass(frozen=True)
class ArgumentSyntax:
    """How a model writes one argument that is not in JSON: text around its value; {key} is the argument's name."""

    begin: str
    end: str


@dataclass(frozen=True)
class CallSyntax:
    """How a model writes a tool call. A grammar of valid calls is made of it.

    Attributes:
        trigger: the text with which a call begins, and nothing else.
        begin: what comes before the arguments, the trigger included; {name} is the function's name.
        end: the text after the arguments.
        argument: for models that write each argument by itself; None for a JSON object.
    """

    trigger: str
    begin: str
    end: str
    argument: ArgumentSyntax | None = None


@dataclass(frozen=True, kw_only=True)
class CallGrammar(CallSyntax):
    """The form of a valid call of one tool, whose name stands in `begin`.

    Attributes:
        parameters: the JSON schema of the arguments.
    """

    name: str
    parameters: Mapping[str, Any]


def call_grammar(
    calls: Sequence[CallGrammar],
    special_token_ids: Mapping[str, int],
    *,
    must_call: bool,
    several: bool,
    or_json: Mapping[str, Any] | None,
) -> str | None:
    """The grammar for `StructuredOutputsParams(grammar=...)`.

    Args:
        calls: what a valid call of each tool looks like, at least one.
        special_token_ids: of the tokenizer's special tokens, by their text.
        must_call, several, or_json: as in `ResponseFormat.call_rule`.

    Returns:
        None if only `must_call` can be enforced: the trigger is text after a special token that other text may follow
        too (harmony's channels).
    """
    specials = _Specials(special_token_ids)
    rules: list[str] = []
    other_ids = set(special_token_ids.values())
    for number, call in enumerate(calls):
        body = f"{_arguments(call, number, specials, rules)} {specials.terms(call.end)}"
        if must_call:
            rules.append(f"call_{number}: {specials.terms(call.begin)} {body}")
            continue
        rest = f"{specials.terms(call.begin[len(call.trigger) :])} {body}"
        if call.trigger in special_token_ids:  # no text contains it
            other_ids.discard(special_token_ids[call.trigger])
            rules.append(f"call_{number}: TEXT {specials.terms(call.trigger)} {rest}")
        elif specials.are_in(call.trigger):
            return None
        else:
            rules.append(f"trigger_{number}[lazy]: TEXT {_quoted(call.trigger)}")
            rules.append(f"call_{number}: trigger_{number} {rest}")
    any_call = " | ".join(f"call_{number}" for number in range(len(calls)))
    if must_call:
        start = f"start: ({any_call}){'+' if several else ''}"
        if or_json is not None:
            start += f" | answer\nanswer: %json {json.dumps(_compact(or_json))}"
    else:
        # Text that may stand behind a call: none that begins a second one, if there must be none
        after = "TEXT" if several else "TEXT_AFTER"
        if not several:
            rules.append(f"TEXT_AFTER: {_without(call.trigger for call in calls)}")
        others, others_after = "", ""
        if other_ids:  # of reasoning, say: text does not contain them
            special = f"<[{','.join(map(str, sorted(other_ids)))}]>"
            others, others_after = "other*", "other_after*"
            rules += [f"other: TEXT {special}", f"other_after: {after} {special}"]
        calls_and_others = f"(({any_call}) {others_after}){'*' if several else '?'}"
        start = f"start: {others} {calls_and_others} last\nlast: {after}\nTEXT: /(.|\\n)*/"
    return "\n".join(["%llguidance {}", start, *rules, ""])


class _Specials:
    """Writes text in which special tokens stand for themselves."""

    def __init__(self, token_ids: Mapping[str, int]) -> None:
        self._token_ids = token_ids
        longest_first = sorted(token_ids, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def are_in(self, text: str) -> bool:
        return self._pattern.search(text) is not None

    def terms(self, text: str) -> str:
        terms, position = [], 0
        for match in self._pattern.finditer(text):
            terms += [_quoted(text[position : match.start()]), f"<[{self._token_ids[match[0]]}]>"]
            position = match.end()
        return " ".join(term for term in [*terms, _quoted(text[position:])] if term)


def _arguments(call: CallGrammar, number: int, specials: _Specials, rules: list[str]) -> str:
    """What stands for a call's arguments; adds rules of its own."""
    if call.argument is None:
        return _json_rule(call.parameters, rules)
    if "properties" not in call.parameters:
        rules.append(_any_argument(number, call.argument, specials))
        return f"argument_{number}*"
    required = call.parameters.get("required") or ()
    terms = []
    for index, (key, schema) in enumerate((call.parameters.get("properties") or {}).items()):
        name = f"argument_{number}_{index}"
        rules.append(_argument(name, key, schema, call.argument, specials))
        terms.append(name if key in required else f"{name}?")
    return " ".join(terms)


def _argument(
    name: str, key: str, schema: object, syntax: ArgumentSyntax, specials: _Specials
) -> str:
    begin = specials.terms(syntax.begin.replace("{key}", key))
    if isinstance(schema, Mapping) and schema.get("type") not in (None, "string"):
        return f"{name}: {begin} %json {json.dumps(_compact(schema))} {specials.terms(syntax.end)}"
    pattern = schema.get("pattern") if isinstance(schema, Mapping) else None
    if isinstance(pattern, str):
        return f"{name}: {begin} {_pattern(pattern)} {specials.terms(syntax.end)}"
    value = f"value_{name}[lazy]: /(.|\\n)*/ {_quoted(syntax.end)}"
    return f"{value}\n{name}: {begin} value_{name}"


def _pattern(pattern: str) -> str:
    """A JSON schema's pattern as a terminal: it matches anywhere, unless it has anchors."""
    begin = "" if pattern.startswith("^") else "(.|\\n)*"
    end = "" if pattern.endswith("$") else "(.|\\n)*"
    body = re.sub(r"(?<!\\)/", r"\/", pattern.removeprefix("^").removesuffix("$"))
    return f"/{begin}(?:{body}){end}/"


def _any_argument(number: int, syntax: ArgumentSyntax, specials: _Specials) -> str:
    """An argument of any name and value."""
    before, _, after = syntax.begin.partition("{key}")
    key = "/[A-Za-z0-9_.-]+/"
    value = f"value_{number}[lazy]: /(.|\\n)*/ {_quoted(syntax.end)}"
    begin = f"{specials.terms(before)} {key} {specials.terms(after)}"
    return f"{value}\nargument_{number}: {begin} value_{number}"


def _json_rule(schema: Mapping[str, Any], rules: list[str]) -> str:
    """The name of the rule for a schema. Equal ones share it: a hundred tools would be too large a grammar."""
    written = f": %json {json.dumps(_compact(schema))}"
    for rule in rules:
        if rule.startswith("json_") and rule.endswith(written):
            return rule.removesuffix(written)
    name = f"json_{len(rules)}"
    rules.append(name + written)
    return name


def _compact(schema: Mapping[str, object]) -> dict[str, object]:
    """With white space as `json.dumps` writes it."""
    options = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    return {**schema, "x-guidance": options}


def _without(texts: Iterable[str]) -> str:
    """The terminal of any text that contains none of the given ones."""
    found = "|".join(literal_pattern(text) for text in dict.fromkeys(texts))
    return f"/(.|\\n)*/ & ~/(.|\\n)*({found})(.|\\n)*/"


def _quoted(text: str) -> str:
    return json.dumps(text) if text else ""
