"""The bodies of calls to /v1/messages and /v1/messages/count_tokens, and how each of their fields is treated."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from pellucid.inputs.sampling_params import SamplingParams
from pellucid.server.fields import FieldTable, Treatment, honoured, not_served, without_effect
from pellucid.server.protocols.answer_rules import (
    AnswerRule,
    ToolChoice,
    anthropic_tool_choice,
    openai_format_rule,
)
from pellucid.server.protocols.ask import AskBody
from pellucid.server.protocols.reasoning import effort_budget, given_budget, switch_budget
from pellucid.server.protocols.sampling import with_given
from pellucid.text.tokenizer import Tokenizer


class Diagnostics(msgspec.Struct):
    previous_message_id: str | None = None


class OutputConfig(msgspec.Struct):
    format: dict[str, Any] | None = None
    effort: str | None = None


class Thinking(msgspec.Struct):
    type: Literal["adaptive", "disabled", "enabled"] = "enabled"
    budget_tokens: int | None = None


class ConversationFields(AskBody, kw_only=True):
    messages: list[Any]
    model: str | None = None
    system: str | list[Any] | None = None
    tools: list[Any] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None

    @property
    def effort(self) -> str | None:
        return None if self.output_config is None else self.output_config.effort

    @property
    def wants_thinking(self) -> bool | None:
        return None if self.thinking is None else self.thinking.type != "disabled"


class MessagesBody(ConversationFields, kw_only=True):
    max_tokens: int
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    diagnostics: Diagnostics | None = None

    @property
    def limit_field(self) -> str:
        return "max_tokens"

    def format_rule(self) -> AnswerRule | None:
        given = None if self.output_config is None else self.output_config.format
        return openai_format_rule(given, "output_config.format")

    def choice(self) -> ToolChoice:
        return anthropic_tool_choice(self.tool_choice)

    def sampling_params(self, defaults: SamplingParams) -> SamplingParams:
        given = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "stop_sequences": self.stop_sequences,
            "max_tokens": self.max_tokens,
        }
        return with_given(defaults, given, {"stop_sequences": "stop"})

    def budgets(self, tokenizer: Tokenizer, warnings: list[str]) -> Sequence[int | None]:
        given = None
        if self.thinking is not None and self.wants_thinking:
            tokens = {"thinking.budget_tokens": self.thinking.budget_tokens}
            given = given_budget(tokens, tokenizer, warnings)
        if given is None:
            given = effort_budget(self.effort, tokenizer)
        return given, switch_budget(self.wants_thinking, tokenizer)


THINKING_FIELDS = FieldTable(
    "`thinking` of messages",
    Thinking,
    (
        *honoured(
            type="adaptive, disabled or enabled: enable_thinking of templates that read it; for other models"
            " that reason, disabled is a budget of 0",
            budget_tokens="maximum tokens of thinking; then the end of thinking is forced",
        ),
        *without_effect(display="thinking is given as the model wrote it"),
    ),
    Treatment.WITHOUT_EFFECT,
)
OUTPUT_CONFIG_FIELDS = FieldTable(
    "`output_config` of messages",
    OutputConfig,
    honoured(
        format="json_schema, which is enforced; with tools, the answer either consists of calls or has the format",
        effort="as reasoning_effort of /v1/chat/completions",
    ),
    Treatment.WITHOUT_EFFECT,
)
DIAGNOSTICS_FIELDS = FieldTable(
    "`diagnostics` of messages",
    Diagnostics,
    honoured(
        previous_message_id="an earlier message: why the prompt was not found in the cache, exactly"
    ),
    Treatment.WITHOUT_EFFECT,
)
CONVERSATION_OBJECTS: dict[str, FieldTable[Any]] = {
    "thinking": THINKING_FIELDS,
    "output_config": OUTPUT_CONFIG_FIELDS,
}
CONVERSATION_FIELDS = (
    *honoured(
        messages="roles user, assistant and system; text, tool_use, tool_result and thinking blocks; the text of"
        " documents; a placeholder stands for other blocks, with a warning; a final message of the assistant is"
        " continued",
        model="the served model's name or one of its aliases",
        system="text or text blocks; Claude Code's changing billing line is left out, and logged",
        tools="functions, which the chat template shows to the model; the vendor's own tools are"
        " left out with a warning",
        tool_choice="auto, none, any, or a tool: the answer is valid calls and nothing else; refused if no"
        " grammar of the model's calls is known",
        thinking="see below",
        output_config="see below",
    ),
    *without_effect(
        cache_control="equal prompts are found by their tokens",
        context_management="nothing is left out of a conversation",
    ),
    *not_served(
        container="there are no containers",
        mcp_servers="the server calls no other servers; give their functions as tools",
    ),
)
MESSAGES_FIELDS = FieldTable(
    "POST /v1/messages",
    MessagesBody,
    (
        *honoured(
            max_tokens="the answer ends when the context is full",
            stop_sequences="strings that end the answer",
            stream="server-sent events",
            temperature="0 is greedy; left out, the model's own default",
            top_p="see docs/sampling.md",
            top_k="see docs/sampling.md",
            diagnostics="see below",
        ),
        *CONVERSATION_FIELDS,
        *without_effect(
            metadata="nothing is stored",
            service_tier="there is one",
            inference_geo="it runs here",
            speed="there is one speed",
        ),
    ),
    Treatment.WITHOUT_EFFECT,
    {**CONVERSATION_OBJECTS, "diagnostics": DIAGNOSTICS_FIELDS},
    {"max_tokens": 32, "messages": [{"role": "user", "content": "What is 12 + 7?"}]},
)
COUNT_FIELDS = FieldTable(
    "POST /v1/messages/count_tokens",
    ConversationFields,
    (*CONVERSATION_FIELDS, *without_effect(speed="there is one speed")),
    Treatment.WITHOUT_EFFECT,
    CONVERSATION_OBJECTS,
    {"messages": [{"role": "user", "content": "What is 12 + 7?"}]},
)
