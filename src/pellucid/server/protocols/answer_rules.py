"""Turns required formats and tool choices of all protocols into rules for the engine."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pellucid.inputs.conversation import Tool
from pellucid.inputs.parameter_checks import shown
from pellucid.inputs.structured_outputs import StructuredOutputsParams
from pellucid.server.errors import refused, rule_refused
from pellucid.text.responses.format import ResponseFormat

_STRUCTURED_OUTPUTS = ("json", "regex", "choice", "grammar", "json_object")


@dataclass(frozen=True)
class AnswerRule:
    """The required form of each answer's text.

    Attributes:
        field: the field that requires it, for errors.
        params: the rule.
        has_calls: the text may be calls of tools; otherwise all of it is content.
        begins_anew: the text does not continue a part that the prompt has begun, such as reasoning.
    """

    field: str
    params: StructuredOutputsParams
    has_calls: bool = False
    begins_anew: bool = True


@dataclass(frozen=True)
class ToolChoice:
    """Which tools an answer may or must call.

    Attributes:
        may_call: the model may call the tools that it is shown.
        must_call: the answer is calls and nothing else.
        name: the only tool that the answer calls; None: any.
        several: more than one call is allowed.
        several_field: the field that says so.
    """

    may_call: bool = True
    must_call: bool = False
    name: str | None = None
    several: bool = True
    several_field: str = "parallel_tool_calls"


def openai_tool_choice(choice: object, parallel_tool_calls: bool | None) -> ToolChoice:
    """`tool_choice` of chat completions, which has the name in `function`, and of responses.

    Raises:
        ApiError: it has another form.
    """
    several = parallel_tool_calls is not False
    if choice in (None, "auto"):
        return ToolChoice(several=several)
    if choice == "none":
        return ToolChoice(may_call=False)
    if choice == "required":
        return ToolChoice(must_call=True, several=several)
    if isinstance(choice, dict) and choice.get("type") == "function":
        function = choice.get("function", choice)
        name = function.get("name") if isinstance(function, dict) else None
        if isinstance(name, str):
            return ToolChoice(must_call=True, name=name, several=False)
    raise refused(
        f"tool_choice={shown(choice)}: must be 'auto', 'none', 'required' or a function with its name",
        "tool_choice",
    )


def anthropic_tool_choice(choice: Mapping[str, Any] | None) -> ToolChoice:
    """`tool_choice` of messages.

    Raises:
        ApiError: it has another form.
    """
    choice = choice or {"type": "auto"}
    kind, name = choice.get("type"), choice.get("name")
    several = choice.get("disable_parallel_tool_use") is not True
    if kind == "auto":
        return ToolChoice(several=several, several_field="tool_choice.disable_parallel_tool_use")
    if kind == "none":
        return ToolChoice(may_call=False)
    if kind == "any":
        return ToolChoice(must_call=True, several=several)
    if kind == "tool" and isinstance(name, str):
        return ToolChoice(must_call=True, name=name, several=several)
    raise refused(
        f"tool_choice.type={shown(kind)}: must be 'auto', 'any', 'none', or 'tool' with a name",
        "tool_choice",
    )


def openai_format_rule(given: object, field: str) -> AnswerRule | None:
    """`response_format` of chat completions, `text.format` of responses, `output_config.format` of messages.

    Args:
        given: the client's; the schema stands in `json_schema`, as llama.cpp's clients write it beside
            "json_object", or by itself.
        field: its name.

    Returns:
        None for text.

    Raises:
        ApiError: it has another form.
    """
    if given is None:
        return None
    kind = given.get("type") if isinstance(given, dict) else None
    if not isinstance(given, dict) or kind not in ("text", "json_object", "json_schema"):
        raise refused(
            f"{field}.type={shown(kind)}: must be 'text', 'json_object' or 'json_schema';"
            " structured_outputs of chat completions has choices, regular expressions and grammars",
            field,
        )
    if kind == "text":
        return None
    if kind == "json_object" and given.get("schema") is None:
        return _rule(field, json_object=True)
    holder = given.get("json_schema", given)
    schema = holder.get("schema") if isinstance(holder, dict) else None
    if not isinstance(schema, dict):
        raise refused(f"{field}: needs a JSON schema, as an object in `schema`", field)
    return _rule(field, json=schema)


def ollama_format_rule(given: object) -> AnswerRule | None:
    """`format` of Ollama's requests.

    Raises:
        ApiError: it has another form.
    """
    if given is None or given == "":
        return None
    if given == "json":
        return _rule("format", json_object=True)
    if not isinstance(given, dict):
        raise refused(f"format={shown(given)}: must be 'json' or a JSON schema", "format")
    return _rule("format", json=given)


def structured_outputs_rule(given: Mapping[str, Any] | None) -> AnswerRule | None:
    """vLLM's `structured_outputs`. Its client sends every key; None and False are the same as leaving one out.

    Raises:
        ApiError: a key is not known, or has a wrong value.
    """
    if given is None:
        return None
    wanted = {key: value for key, value in given.items() if value not in (None, False)}
    for key in wanted:
        if key not in _STRUCTURED_OUTPUTS:
            raise refused(
                f"structured_outputs.{key[:64]}: is not served; one of"
                f" {', '.join(_STRUCTURED_OUTPUTS)} is",
                "structured_outputs",
            )
    return _rule("structured_outputs", **wanted)


def grammar_rule(grammar: str | None, field: str) -> AnswerRule | None:
    """A grammar, GBNF or Lark; clients send "" for none."""
    return _rule(field, grammar=grammar) if grammar else None


def schema_rule(schema: Mapping[str, Any] | None, field: str) -> AnswerRule | None:
    """A JSON schema by itself; clients send {} for none."""
    return _rule(field, json=schema) if schema else None


def one_rule(*rules: AnswerRule | None) -> AnswerRule | None:
    """The one that a call gives.

    Raises:
        ApiError: there are more.
    """
    given = [rule for rule in rules if rule is not None]
    if len(given) > 1:
        fields = " and ".join(rule.field for rule in given)
        raise refused(f"{fields}: exclude each other", given[0].field)
    return given[0] if given else None


def answer_rule(
    format_rule: AnswerRule | None,
    choice: ToolChoice,
    tools: Sequence[Tool] | None,
    response_format: ResponseFormat,
    warnings: list[str],
) -> AnswerRule | None:
    """The rule of a conversation's answers.

    Args:
        format_rule: of the text.
        choice: which tools may or must be called.
        tools: those that the model is shown.
        response_format: how the model writes calls.
        warnings: gets a line for what has no effect.

    Raises:
        ApiError: the choice cannot be enforced, or excludes the format.
    """
    if choice.must_call:
        if format_rule is not None:
            warnings.append(f"{format_rule.field}: has no effect: the answer is calls of tools")
        return _forced_calls(choice, tools or (), response_format)
    if format_rule is not None:
        if not tools or not choice.may_call:
            return format_rule
        return _calls_or(format_rule, choice, tools, response_format)
    is_strict = any(map(_is_strict, tools or ()))
    if not tools or not choice.may_call or (choice.several and not is_strict):
        return None
    with _refusing("tools"):
        rule = response_format.call_rule(_loosened(tools), must_call=False, several=choice.several)
    if rule is None:
        unknown = "has no effect: a grammar of this model's calls beside text is not known"
        warnings += [f"tools: strict {unknown}"] if is_strict else []
        warnings += [] if choice.several else [f"{choice.several_field}: {unknown}"]
        return None
    return AnswerRule("tools", rule, has_calls=True, begins_anew=False)


def _calls_or(
    format_rule: AnswerRule,
    choice: ToolChoice,
    tools: Sequence[Tool],
    response_format: ResponseFormat,
) -> AnswerRule:
    """The answer is calls, or JSON: an agent with a format for its final answer."""
    field, params = format_rule.field, format_rule.params
    rule = None
    if params.json is not None or params.json_object:
        schema = {"type": "object"} if params.json is None else json.loads(str(params.json))
        with _refusing(field):
            rule = response_format.call_rule(
                _loosened(tools), must_call=True, several=choice.several, or_json=schema
            )
    if rule is None:
        raise refused(
            f"{field}: beside tools only JSON formats are served, and only if a grammar of the model's"
            " calls is known; leave the tools out",
            field,
        )
    return AnswerRule(field, rule, has_calls=True)


def _forced_calls(
    choice: ToolChoice, tools: Sequence[Tool], response_format: ResponseFormat
) -> AnswerRule:
    names = [tool["function"]["name"] for tool in tools]
    if not names:
        raise refused(
            "tool_choice: needs tools, and a model whose template shows them", "tool_choice"
        )
    if choice.name is not None and choice.name not in names:
        raise refused(f"tool_choice: {choice.name[:64]!r} is none of the tools", "tool_choice")
    callable_tools = [tool for tool in tools if choice.name in (None, tool["function"]["name"])]
    with _refusing("tools"):
        rule = response_format.call_rule(callable_tools, must_call=True, several=choice.several)
    if rule is None:
        raise refused(
            f"tool_choice: no grammar is known of calls in the format {response_format.name!r} of this"
            " model's answers; 'auto' and 'none' are served",
            "tool_choice",
        )
    return AnswerRule("tools", rule, has_calls=True)


def _is_strict(tool: Tool) -> bool:
    return tool["function"].get("strict") is True


def _loosened(tools: Sequence[Tool]) -> list[Tool]:
    """The tools; the arguments of those that are not strict may be any JSON object."""
    any_object = {"parameters": {"type": "object"}}
    return [
        tool if _is_strict(tool) else {**tool, "function": {**tool["function"], **any_object}}
        for tool in tools
    ]


def _rule(field: str, **wanted: Any) -> AnswerRule:
    with _refusing(field):
        return AnswerRule(field, StructuredOutputsParams(**wanted))


@contextmanager
def _refusing(field: str) -> Iterator[None]:
    """Turns the error of a rule that cannot be compiled into an ApiError about the field that gave it."""
    try:
        yield
    except ValueError as error:
        raise rule_refused(error, field) from None
