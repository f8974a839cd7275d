"""The tools of a call to /v1/responses as functions that a chat template shows.

They are functions, custom tools, and both within namespaces.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pellucid.inputs.parameter_checks import shown
from pellucid.inputs.structured_outputs import MAX_GRAMMAR_CHARS
from pellucid.server.errors import refused
from pellucid.server.fields import warn_of_unknown_keys
from pellucid.text.lark_patterns import lark_pattern

INPUT = "input"  # the only argument of a custom tool
_KEYS = ("name", "description", "parameters", "strict")
_CUSTOM_KEYS = ("name", "description", "format")
_NAMESPACE_KEYS = ("name", "description", "tools")


@dataclass(frozen=True)
class CalledTool:
    """What a client calls a tool.

    Attributes:
        name: within its namespace.
        namespace: None: none.
        is_custom: its argument is text, which may have a grammar.
    """

    name: str
    namespace: str | None = None
    is_custom: bool = False


@dataclass(frozen=True)
class OfferedTool:
    """A tool that the model is shown as a function.

    Attributes:
        function: as in `ChatPrompt.tools`.
        called: what the client calls it.
    """

    function: dict[str, Any]
    called: CalledTool


def flat_name(name: Any, namespace: Any) -> Any:
    """The name by which the model calls a tool."""
    return f"{namespace}__{name}" if namespace else name


def offered_tools(
    tools: Sequence[Any], warnings: list[str], namespace: str | None = None
) -> Iterator[OfferedTool]:
    """The functions and custom tools of a call, those within namespaces included.

    Args:
        tools: of the call.
        warnings: gets a line for each tool of another type, and each grammar that is not enforced.
        namespace: that has the tools.

    Raises:
        ApiError: a tool has another form.
    """
    for index, tool in enumerate(tools):
        if not isinstance(tool, dict):
            raise refused(f"tools[{index}]: must be an object", "tools")
        kind = tool.get("type")
        name = flat_name(tool.get("name"), namespace)
        if kind == "function":
            warn_of_unknown_keys(tool, {"type", *_KEYS}, "tools", warnings)
            given = {key: tool[key] for key in _KEYS if tool.get(key)} | {"name": name}
            yield OfferedTool(_function(given), CalledTool(str(tool.get("name")), namespace))
        elif kind == "custom":
            warn_of_unknown_keys(tool, {"type", *_CUSTOM_KEYS}, "tools", warnings)
            called = CalledTool(str(tool.get("name")), namespace, is_custom=True)
            yield OfferedTool(_function(_custom(tool, name, warnings)), called)
        elif kind == "namespace" and namespace is None:
            warn_of_unknown_keys(tool, {"type", *_NAMESPACE_KEYS}, "tools", warnings)
            inner = tool.get("tools") or []
            if not isinstance(tool.get("name"), str) or not isinstance(inner, list):
                raise refused(f"tools[{index}]: must have a name and a list of tools", "tools")
            yield from offered_tools(inner, warnings, tool["name"])
        else:
            warnings.append(
                f"tools[{index}]: has no effect: tools of the type {str(kind)[:64]!r} are not served"
            )


def _function(given: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": given}


def _custom(tool: Mapping[str, Any], name: Any, warnings: list[str]) -> dict[str, Any]:
    """A custom tool as a function of one text."""
    form = tool.get("format") or {"type": "text"}
    kind = form.get("type") if isinstance(form, Mapping) else None
    text: dict[str, Any] = {"type": "string"}
    description = str(tool.get("description") or "")
    if kind == "grammar":
        definition, pattern = form.get("definition"), _pattern(form)
        if pattern is None:
            warnings.append(
                f"tools: the grammar of {str(name)[:64]!r} is not enforced: it is recursive"
            )
        else:
            text["pattern"] = f"^{pattern}$"
        text["description"] = f"In the {form.get('syntax')} grammar:\n{definition}"
    elif kind != "text":
        raise refused(f"tools.format.type={shown(kind)}: must be 'text' or 'grammar'", "tools")
    parameters = {
        "type": "object",
        "properties": {INPUT: text},
        "required": [INPUT],
        "additionalProperties": False,
    }
    given = {"name": name, "parameters": parameters, "strict": "pattern" in text}
    return given | ({"description": description} if description else {})


def _pattern(form: Mapping[str, Any]) -> str | None:
    """The regular expression of a grammar; None: it has none.

    Raises:
        ApiError: it is no grammar.
    """
    syntax, definition = form.get("syntax"), form.get("definition")
    if syntax not in ("lark", "regex") or not isinstance(definition, str):
        raise refused(
            "tools.format: must have a syntax, 'lark' or 'regex', and a definition", "tools"
        )
    if len(definition) > MAX_GRAMMAR_CHARS:
        raise refused(
            f"tools.format.definition: has {len(definition)} characters; at most {MAX_GRAMMAR_CHARS} are"
            " allowed",
            "tools",
        )
    try:
        return f"(?:{definition})" if syntax == "regex" else lark_pattern(definition)
    except ValueError as error:
        raise refused(f"tools.format.definition: {error}", "tools") from None
