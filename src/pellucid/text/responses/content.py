"""The forms of a field's content: text, numbers, JSON and its dialects, tags, lines."""

import json
from collections.abc import Mapping
from typing import Any, NoReturn

import regex

MATCH_SECONDS = 0.25  # for one search: patterns and texts may come from anywhere

# Characters that no model writes, around the numbers of extracted strings
_OPEN, _CLOSE = "\x01", "\x02"


def parsed_content(text: str, form: str, args: Mapping[str, Any]) -> Any:
    """The value of a field's content.

    Raises:
        ValueError: the text does not have this form.
    """
    if form == "text":
        return text.strip() if args.get("strip", True) else text
    if form == "int":
        return int(text)
    if form == "float":
        return float(text)
    if form == "bool":
        return text.strip().lower() in ("true", "1")
    if form == "json":
        return _json(text, args)
    if form == "xml-inline":
        return _tags(text, args)
    assert form == "kv-lines"
    return _lines(text, args)


def searched(
    pattern: "regex.Pattern[str]", text: str, position: int, partial: bool = False
) -> "regex.Match[str] | None":
    """The first match from a position on; None also if the search takes too long."""
    try:
        return pattern.search(text, position, partial=partial, timeout=MATCH_SECONDS)
    except TimeoutError:
        return None


def parsed_value(text: str, args: Mapping[str, Any]) -> Any:
    """A value within tags or lines, by their `value_parser`."""
    parser = args.get("value_parser")
    if parser is None:
        return text
    return parsed_content(text, parser.get("name", "text"), parser.get("args", {}))


def in_type(value: Any, schema: Any) -> Any:
    """A text as what a JSON schema wants there, if it can be read as that; all else as it is.

    Models that write arguments outside of JSON leave their types open.
    """
    types = _types(schema)
    if isinstance(value, list) and "array" not in types:  # a tag that was given several times
        return [in_type(item, schema) for item in value]
    if not isinstance(value, str):
        return value
    for name in types:
        found, typed = _read_as(value, name)
        if found:
            return typed
    return value  # as the type "string" has it


def _json(text: str, args: Mapping[str, Any]) -> Any:
    try:
        return json.loads(_as_strict_json(text, args))
    except (RecursionError, ValueError) as error:
        if args.get("allow_non_json"):
            return text.strip()
        raise ValueError(f"not JSON: {error}") from None


def _as_strict_json(text: str, args: Mapping[str, Any]) -> str:
    delimiters = args.get("string_delims", [])
    if delimiters and (_OPEN in text or _CLOSE in text):
        raise ValueError("has control characters")
    strings: list[str] = []

    def extract(match: regex.Match[str]) -> str:
        strings.append(match[1])
        return f"{_OPEN}{len(strings) - 1}{_CLOSE}"

    for before, after in delimiters:
        pattern = f"{regex.escape(before)}(.*?){regex.escape(after)}"
        text = regex.sub(pattern, extract, text, flags=regex.DOTALL, timeout=MATCH_SECONDS)
    if args.get("unquoted_keys"):
        text = regex.sub(r"(?<=[{,])(\s*)(\w+):", r'\1"\2":', text, timeout=MATCH_SECONDS)
    restored: str = regex.sub(
        f"{_OPEN}(\\d+){_CLOSE}", lambda match: json.dumps(strings[int(match[1])]), text
    )
    return restored


def _tags(text: str, args: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for match in regex.finditer(
        args["tag_pattern"], text, flags=regex.DOTALL, timeout=MATCH_SECONDS
    ):
        key, value = match["key"], parsed_value(match["value"] or "", args)
        if key in found and args.get("merge_duplicates"):
            earlier = found[key]
            found[key] = [*(earlier if isinstance(earlier, list) else [earlier]), value]
        else:
            found[key] = value
    return found


def _lines(text: str, args: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    strips = args.get("strip", True)
    for line in text.split(args.get("line_sep", "\n")):
        key, separator, value = line.partition(args.get("kv_sep", ":"))
        if separator:
            found[key.strip() if strips else key] = parsed_value(
                value.strip() if strips else value, args
            )
    return found


def _types(schema: Any) -> list[str]:
    if not isinstance(schema, Mapping):
        return []
    declared = schema.get("type")
    types = [declared] if isinstance(declared, str) else []
    if isinstance(declared, list):
        types += [name for name in declared if isinstance(name, str)]
    for key in ("anyOf", "oneOf"):
        for choice in schema.get(key) or ():
            types += _types(choice)
    return types


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _read_as(text: str, name: str) -> tuple[bool, Any]:
    """Whether a text can be read as a type of JSON schema, and the value."""
    stripped = text.strip()
    try:
        if name in ("integer", "number"):
            number = json.loads(stripped, parse_constant=_refuse_constant)
            if isinstance(number, float) and name == "integer":
                return number.is_integer(), int(number)
            return isinstance(number, int | float) and not isinstance(number, bool), number
        if name == "boolean":
            return stripped.lower() in ("true", "false"), stripped.lower() == "true"
        if name == "null":
            return stripped in ("null", "None"), None
        if name in ("object", "array"):
            value = json.loads(stripped)
            return isinstance(value, dict if name == "object" else list), value
    except (OverflowError, RecursionError, ValueError):
        return False, None
    return False, None
