"""Response templates: the marks of reasoning, content and tool calls in a model's answers, as data.

The language is that of transformers (>= 5.13), where it stands in tokenizer_config.json as
`response_template`: fields of a message, each with what opens it, what closes it, and the form of what
stands between. docs/answers.md describes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import regex

from pellucid.inputs.parameter_checks import MAX_SHOWN, shown

FORMS = ("text", "int", "float", "bool", "json", "xml-inline", "kv-lines")
MAX_PATTERN_CHARS = 4096
MAX_TEMPLATE_CHARS = 20_000  # as JSON; those of known models have less than a tenth of it

Kind = Literal["content", "reasoning", "tool_calls"]
_KINDS: dict[str, Kind] = {
    "content": "content",
    "reasoning": "reasoning",
    "reasoning_content": "reasoning",
    "thinking": "reasoning",
    "tool_calls": "tool_calls",
}
_TEMPLATE_KEYS = {"version", "defaults", "fields", "start_anchor", "start_anchor_pattern"}
_FIELD_KEYS = {
    "open",
    "open_pattern",
    "close",
    "close_pattern",
    "content",
    "content_args",
    "repeats",
    "join",
    "optional",
    "transform",
    "transform_each",
}


@dataclass(frozen=True)
class Delimiter:
    """What opens or closes a field.

    Attributes:
        pattern: finds it.
        literals: the texts that it may be; None for a pattern.
        can_grow: a match at the end of the text so far may become a longer one.
    """

    pattern: regex.Pattern[str]
    literals: tuple[str, ...] | None
    can_grow: bool


@dataclass(frozen=True)
class CallPaths:
    """Where in the parsed content of a field the parts of a tool call stand.

    A path is a list of keys. It begins with "content" for the field's content (each of its elements, if `each`);
    otherwise it is the name of a group that the opening pattern captured, or with `each` a key of the element.
    """

    name: tuple[str, ...]
    arguments: tuple[str, ...]
    each: bool


@dataclass(frozen=True)
class ResponseField:
    """A field of the message.

    Attributes:
        kind: what it is for a caller. Fields with other names are content.
        open: None for the field that takes what stands outside of all others.
        close: None for a field that ends with the answer.
        form: of its content, one of `FORMS`.
        form_args: what the form asks for.
        strips: white space around the content is no part of it.
        join: text between several matches.
        call: of the kind "tool_calls".
    """

    name: str
    kind: Kind
    open: Delimiter | None
    close: Delimiter | None
    form: str
    form_args: Mapping[str, Any]
    strips: bool
    join: str | None
    call: CallPaths | None


@dataclass(frozen=True)
class ResponseTemplate:
    """A compiled template.

    Attributes:
        fields: in order.
        implicit: of these, the one that nothing opens, for all other text; None: such text is dropped.
        start: where an answer begins within a prompt.
        source: the template as it was given.
    """

    fields: tuple[ResponseField, ...]
    implicit: ResponseField | None
    start: Delimiter
    source: Mapping[str, Any]

    @classmethod
    def compile(cls, source: Any, name: str = "response_template") -> ResponseTemplate:
        """Checks and compiles a template.

        Raises:
            ValueError: names the key, its value and what is allowed.
        """
        source = _object(source, name)
        _check_size(source, name)
        _refuse_others(source, _TEMPLATE_KEYS, name)
        if source.get("version", 1) != 1:
            raise ValueError(f"{name}.version={shown(source['version'])}: must be 1")
        _object(source.get("defaults", {}), f"{name}.defaults")
        given = _object(source.get("fields"), f"{name}.fields")
        fields = [
            _field(key, value, f"{name}.fields.{key[:MAX_SHOWN]}") for key, value in given.items()
        ]
        implicit = [field for field in fields if field.open is None]
        if not fields or len(implicit) > 1:
            raise ValueError(
                f"{name}.fields: must not be empty, and at most one field may lack open"
            )
        start = _delimiter(source, "start_anchor", "start_anchor_pattern", name)
        if start is None:
            raise ValueError(f"{name}: start_anchor or start_anchor_pattern is missing")
        return cls(tuple(fields), implicit[0] if implicit else None, start, source)

    def mentions(self, text: str) -> bool:
        """Whether a delimiter has this text, so that the parser must see it."""
        delimiters = [d for field in self.fields for d in (field.open, field.close)]
        return any(
            text in literal
            for delimiter in delimiters
            if delimiter is not None
            for literal in delimiter.literals or (_unescaped(delimiter.pattern.pattern),)
        )


def _field(name: str, value: Any, where: str) -> ResponseField:
    value = _object(value, where)
    _refuse_others(value, _FIELD_KEYS, where)
    kind = _KINDS.get(name, "content")
    form = value.get("content", "text")
    if form not in FORMS:
        raise ValueError(f"{where}.content={shown(form)}: must be one of {', '.join(FORMS)}")
    form_args = _object(value.get("content_args", {}), f"{where}.content_args")
    _check_form_args(form, form_args, f"{where}.content_args")
    join = value.get("join")
    if join is not None and not isinstance(join, str):
        raise ValueError(f"{where}.join={shown(join)}: must be text")
    return ResponseField(
        name=name,
        kind=kind,
        open=_delimiter(value, "open", "open_pattern", where),
        close=_delimiter(value, "close", "close_pattern", where),
        form=form,
        form_args=form_args,
        strips=bool(form_args.get("strip", True)),
        join=join,
        call=_call_paths(value, where) if kind == "tool_calls" else None,
    )


def _delimiter(
    value: Mapping[str, Any], key: str, pattern_key: str, where: str
) -> Delimiter | None:
    if key in value and pattern_key in value:
        raise ValueError(f"{where}: has {key} and {pattern_key}; one of them is allowed")
    if key in value:
        literals = [value[key]] if isinstance(value[key], str) else value[key]
        if (
            not isinstance(literals, list)
            or not literals
            or not all(isinstance(literal, str) and literal for literal in literals)
        ):
            raise ValueError(f"{where}.{key}={shown(value[key])}: must be text, or a list of texts")
        return literal_delimiter(literals)
    if pattern_key in value:
        return Delimiter(compiled_pattern(value[pattern_key], f"{where}.{pattern_key}"), None, True)
    return None


def literal_delimiter(literals: list[str]) -> Delimiter:
    """Matches the longest of some texts."""
    longest_first = sorted(set(literals), key=lambda literal: (-len(literal), literal))
    # In order of the alphabet, a text that another one begins with stands directly before such a one.
    can_grow = any(longer.startswith(text) for text, longer in pairwise(sorted(longest_first)))
    return Delimiter(
        regex.compile("|".join(map(regex.escape, longest_first)), regex.DOTALL),
        tuple(longest_first),
        can_grow,
    )


def compiled_pattern(pattern: Any, where: str) -> regex.Pattern[str]:
    """A pattern of a template. It is matched with a limit of time, because it may come from anywhere.

    Raises:
        ValueError: names the pattern and what is wrong with it.
    """
    if not isinstance(pattern, str) or not 0 < len(pattern) <= MAX_PATTERN_CHARS:
        raise ValueError(
            f"{where}: must be a regular expression of 1 to {MAX_PATTERN_CHARS} characters"
        )
    try:
        return regex.compile(pattern, regex.DOTALL)
    except (RecursionError, regex.error) as error:
        raise ValueError(
            f"{where}={shown(pattern)}: is not a regular expression: {error}"
        ) from None


def _check_form_args(form: str, args: Mapping[str, Any], where: str) -> None:
    if form == "xml-inline":
        pattern = compiled_pattern(args.get("tag_pattern"), f"{where}.tag_pattern")
        if not {"key", "value"} <= pattern.groupindex.keys():
            raise ValueError(f"{where}.tag_pattern: must have the groups key and value")
    if form in ("xml-inline", "kv-lines") and "value_parser" in args:
        parser = _object(args["value_parser"], f"{where}.value_parser")
        inner = parser.get("name", "text")
        if inner not in FORMS:
            raise ValueError(
                f"{where}.value_parser.name={shown(inner)}: must be one of {', '.join(FORMS)}"
            )
        inner_args = _object(parser.get("args", {}), f"{where}.value_parser.args")
        _check_form_args(inner, inner_args, f"{where}.value_parser.args")
    if form == "json":
        for pair in args.get("string_delims", []):
            if (
                not isinstance(pair, list)
                or len(pair) != 2
                or not all(isinstance(text, str) and text for text in pair)
            ):
                raise ValueError(f"{where}.string_delims: must be a list of pairs of texts")


def _call_paths(value: Mapping[str, Any], where: str) -> CallPaths:
    """Where a transform finds a function's name and arguments; without one the content is the call."""
    each = bool(value.get("transform_each", False))
    if each and "transform" not in value:
        raise ValueError(f"{where}.transform: is missing, and transform_each is set")
    call = value.get("transform", "{content}")
    if isinstance(call, Mapping):
        call = call.get("function", call)
    if isinstance(call, Mapping):
        return CallPaths(_path(call.get("name"), where), _path(call.get("arguments"), where), each)
    path = _path(call, where)
    return CallPaths((*path, "name"), (*path, "arguments"), each)


_PLACEHOLDER = regex.compile(r"\{(\w+(?:\.\w+)*)\}")


def _path(placeholder: Any, where: str) -> tuple[str, ...]:
    match = _PLACEHOLDER.fullmatch(placeholder) if isinstance(placeholder, str) else None
    if match is None:
        raise ValueError(
            f"{where}.transform: name and arguments of a function must be placeholders such as"
            f" {{content.name}}, got {shown(placeholder)}"
        )
    return tuple(match[1].split("."))


def _object(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{name}: must be an object, got {type(value).__name__}")
    return value


def _check_size(source: Mapping[str, Any], name: str) -> None:
    """Raises a ValueError for a template that would take long to compile: it comes from a checkpoint."""
    try:
        num_chars = len(json.dumps(source))
    except RecursionError:
        raise ValueError(f"{name}: nested too deeply") from None
    if num_chars > MAX_TEMPLATE_CHARS:
        raise ValueError(
            f"{name}: has {num_chars} characters as JSON: at most {MAX_TEMPLATE_CHARS} are allowed"
        )


def _refuse_others(value: Mapping[str, Any], allowed: set[str], name: str) -> None:
    for key in value:
        if key not in allowed:
            raise ValueError(
                f"{name}.{key[:MAX_SHOWN]}: there is no such key; allowed are {sorted(allowed)}"
            )


def _unescaped(pattern: str) -> str:
    """About the text that a pattern matches."""
    text: str = regex.sub(r"\\(\W)", r"\1", pattern)
    return text
