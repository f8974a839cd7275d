"""The response format of a model: its own response template or its family's, and how its tool calls are
written."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pellucid.inputs.conversation import Tool
from pellucid.inputs.structured_outputs import StructuredOutputsParams
from pellucid.text.responses.call_grammar import (
    ArgumentSyntax,
    CallGrammar,
    CallSyntax,
    call_grammar,
)
from pellucid.text.responses.family_records import find_family_record
from pellucid.text.responses.parser import ResponseParser
from pellucid.text.responses.reasoning_marks import ReasoningMarks
from pellucid.text.responses.template import ResponseTemplate


@dataclass(frozen=True)
class ResponseFormat:
    """How the text of a model's answers is divided into reasoning, content and tool calls.

    Attributes:
        name: "checkpoint", a family's name, or "text".
        template: None: all of it is content.
        call: None: unknown, so that calls can be read and not be enforced.
        reasoning_opens: texts that begin reasoning, where the template has a pattern for them.
        special_tokens: the ids of the tokenizer's special tokens, by their texts.
    """

    name: str
    template: ResponseTemplate | None
    call: CallSyntax | None
    special_tokens: Mapping[str, int]
    reasoning_opens: tuple[str, ...] = ()

    @property
    def skip_special_tokens(self) -> bool:
        """What `SamplingParams.skip_special_tokens` must be: False if special tokens are delimiters."""
        return self.template is None or not any(
            self.template.mentions(token) for token in self.special_tokens
        )

    def without_reasoning(self) -> "ResponseFormat":
        """The same format, in which reasoning is content, with the texts around it."""
        if self.template is None:
            return self
        fields = tuple(each for each in self.template.fields if each.kind != "reasoning")
        return replace(self, template=replace(self.template, fields=fields))

    @property
    def knows_reasoning(self) -> bool:
        """Whether the texts around reasoning are known."""
        return self.reasoning_marks("") is not None

    def parser(self, prompt: str = "", tools: Sequence[Tool] | None = None) -> ResponseParser:
        """Reads one answer.

        Args:
            prompt: the end of the prompt as text, special tokens included, from the last message on at least.
        """
        dropped = () if self.skip_special_tokens else tuple(self.special_tokens)
        return ResponseParser(self.template, prompt, tools, dropped)

    def reasoning_marks(self, prompt: str) -> ReasoningMarks | None:
        """The texts around reasoning in an answer, for code without a parser.

        Returns:
            None if the model's answers have no reasoning, or if patterns alone find it.
        """
        fields = () if self.template is None else self.template.fields
        for each in fields:
            if each.kind == "reasoning" and each.open is not None and each.close is not None:
                opens, closes = each.open.literals or self.reasoning_opens, each.close.literals
                if opens and closes:
                    return ReasoningMarks(opens, closes, self.parser(prompt).is_reasoning)
        return None

    def call_rule(
        self,
        tools: Sequence[Tool],
        *,
        must_call: bool,
        several: bool,
        or_json: Mapping[str, Any] | None = None,
    ) -> StructuredOutputsParams | None:
        """A rule under which every tool call of an answer is valid, for `SamplingParams.structured_outputs`.

        Args:
            tools: those that may be called, at least one.
            must_call: the answer is calls and nothing else; otherwise any text, in which a call is valid from
                its trigger on.
            several: whether an answer may have more than one call.
            or_json: with `must_call`, the answer may instead be JSON by this schema.

        Returns:
            None if that cannot be enforced for this model.
        """
        calls = self.call_grammars(tools)
        if calls is None:
            return None
        grammar = call_grammar(
            calls, self.special_tokens, must_call=must_call, several=several, or_json=or_json
        )
        return None if grammar is None else StructuredOutputsParams(grammar=grammar)

    def call_grammars(self, tools: Sequence[Tool]) -> list[CallGrammar] | None:
        """What a valid call of each tool looks like; None if it is not known how the model writes calls."""
        call = self.call
        if call is None:
            return None
        return [
            CallGrammar(
                call.trigger,
                call.begin.replace("{name}", tool["function"]["name"]),
                call.end,
                call.argument,
                name=tool["function"]["name"],
                parameters=tool["function"].get("parameters") or {"type": "object"},
            )
            for tool in tools
        ]


def find_response_format(
    chat_template: str | None,
    tokens: Collection[str] = (),
    special_tokens: Mapping[str, int] | None = None,
    own_template: Any = None,
) -> ResponseFormat:
    """The format of a model's answers.

    Args:
        tokens: the texts of its added tokens.
        special_tokens: those of them that are special, with their ids.
        own_template: `response_template` of its tokenizer_config.json, if there is one.

    Raises:
        ValueError: the checkpoint's own template has an error.
    """
    special_tokens = special_tokens or {}
    if own_template is not None:
        template = ResponseTemplate.compile(own_template)
        return ResponseFormat("checkpoint", template, _derived_call(template), special_tokens)
    family = find_family_record(chat_template or "", tokens)
    if family is not None:
        return ResponseFormat(
            family.name,
            ResponseTemplate.compile(family.values["response_template"], family.name),
            _recorded_call(family.values.get("call")),
            special_tokens,
            tuple(family.values.get("reasoning_opens", ())),
        )
    return ResponseFormat("text", None, None, special_tokens)


def _recorded_call(call: Mapping[str, Any] | None) -> CallSyntax | None:
    if call is None:
        return None
    argument = call.get("argument")
    return CallSyntax(
        call["trigger"],
        call["begin"],
        call["end"],
        None if argument is None else ArgumentSyntax(argument["begin"], argument["end"]),
    )


def _derived_call(template: ResponseTemplate) -> CallSyntax | None:
    """Of a checkpoint's own template: known where a literal opens one call in JSON."""
    for call_field in template.fields:
        if call_field.kind != "tool_calls" or call_field.call is None or call_field.call.each:
            continue
        opening = call_field.open.literals if call_field.open is not None else None
        closing = call_field.close.literals if call_field.close is not None else ("",)
        is_plain = call_field.form == "json" and not call_field.form_args
        name, arguments = call_field.call.name, call_field.call.arguments
        if is_plain and opening and closing and len(name) == len(arguments) == 2:
            begin = f'{opening[0]}{{"{name[1]}": "{{name}}", "{arguments[1]}": '
            return CallSyntax(opening[0], begin, f"}}{closing[0]}")
    return None
