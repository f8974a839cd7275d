"""The bodies of calls to /v1/responses, and how each of their fields is treated."""

from collections.abc import Sequence
from typing import Any

import msgspec

from pellucid.inputs.parameter_checks import shown
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.server.call_warnings import Warnings
from pellucid.server.errors import refused
from pellucid.server.fields import FieldTable, Treatment, honoured, not_served, without_effect
from pellucid.server.protocols.answer_rules import (
    AnswerRule,
    ToolChoice,
    openai_format_rule,
    openai_tool_choice,
)
from pellucid.server.protocols.ask import AskBody
from pellucid.server.protocols.openai_responses_api.tools import flat_name
from pellucid.server.protocols.reasoning import effort_budget
from pellucid.server.protocols.sampling import with_given
from pellucid.text.tokenizer import Tokenizer


class PromptCacheOptions(msgspec.Struct):
    comparison_response_id: str | None = None


class ReasoningOptions(msgspec.Struct):
    effort: str | None = None
    summary: str | None = None


class TextOptions(msgspec.Struct):
    format: dict[str, Any] | None = None


class ConversationFields(AskBody, kw_only=True):
    input: str | list[Any]
    model: str | None = None
    instructions: str | None = None
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    reasoning: ReasoningOptions | None = None
    text: TextOptions | None = None
    parallel_tool_calls: bool | None = None

    @property
    def effort(self) -> str | None:
        return None if self.reasoning is None else self.reasoning.effort

    @property
    def wants_summary(self) -> bool:
        """Whether the reply has reasoning as a summary, the only form that many clients read."""
        return self.reasoning is not None and self.reasoning.summary not in (None, "none")

    @property
    def text_format(self) -> dict[str, Any] | None:
        return None if self.text is None else self.text.format


class ResponsesBody(ConversationFields, kw_only=True):
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stream: bool | None = None
    metadata: dict[str, str] | None = None
    prompt_cache_key: str | None = None
    truncation: str | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    include: list[str] | None = None
    store: bool | None = None
    top_logprobs: int | None = None

    @property
    def limit_field(self) -> str | None:
        return None if self.max_output_tokens is None else "max_output_tokens"

    def format_rule(self) -> AnswerRule | None:
        return openai_format_rule(self.text_format, "text.format")

    def choice(self) -> ToolChoice:
        choice = self.tool_choice
        if isinstance(choice, dict) and choice.get("type") in ("custom", "function"):
            # By the name that the model uses, whatever its type
            name = flat_name(choice.get("name"), choice.get("namespace"))
            choice = {"type": "function", "name": name}
        return openai_tool_choice(choice, self.parallel_tool_calls)

    def sampling_params(self, defaults: SamplingParams) -> SamplingParams:
        return with_given(
            defaults,
            {
                "temperature": self.temperature,
                "top_p": self.top_p,
                "max_output_tokens": self.max_output_tokens,
                "top_logprobs": (self.top_logprobs or 0) if self.wants_logprobs else None,
            },
            {"max_output_tokens": "max_tokens", "top_logprobs": "logprobs"},
        )

    def budgets(self, tokenizer: Tokenizer, warnings: list[str]) -> Sequence[int | None]:
        return (effort_budget(self.effort, tokenizer),)

    @property
    def wants_encrypted(self) -> bool:
        return ENCRYPTED in (self.include or ())

    @property
    def wants_logprobs(self) -> bool:
        return LOGPROBS in (self.include or ())

    def check(self, warnings: Warnings) -> None:
        if self.truncation not in (None, "disabled"):
            raise refused(
                f"truncation={shown(self.truncation)}: must be 'disabled': nothing is cut",
                "truncation",
            )
        self._check_repeated()
        for included in self.include or ():
            if included not in (LOGPROBS, ENCRYPTED):
                warnings.append(f"include: {included[:64]!r} has no effect")
        if self.top_logprobs and not self.wants_logprobs:
            warnings.append(f"top_logprobs: has no effect: include has no {LOGPROBS!r}")

    def _check_repeated(self) -> None:
        metadata = self.metadata or {}
        if len(metadata) > MAX_METADATA:
            raise refused(
                f"metadata: has {len(metadata)} keys; at most {MAX_METADATA} are allowed",
                "metadata",
            )
        for key, value in metadata.items():
            if len(key) > MAX_METADATA_KEY or len(value) > MAX_METADATA_VALUE:
                raise refused(
                    f"metadata: keys have at most {MAX_METADATA_KEY} characters and values"
                    f" {MAX_METADATA_VALUE}; {key[:MAX_METADATA_KEY]!r} has more",
                    "metadata",
                )
        repeated = (self.tools, self.tool_choice, self.text_format, self.prompt_cache_key)
        if (size := len(msgspec.json.encode(repeated))) > MAX_REPEATED:
            raise refused(
                f"tools: the reply repeats tools, tool_choice, text.format and prompt_cache_key, which have"
                f" {size} bytes in JSON; at most {MAX_REPEATED} are allowed",
                "tools",
            )


MAX_METADATA, MAX_METADATA_KEY, MAX_METADATA_VALUE = 16, 64, 512  # OpenAI's
MAX_REPEATED = 1 << 20  # bytes
ENCRYPTED = "reasoning.encrypted_content"
LOGPROBS = "message.output_text.logprobs"  # what `include` calls them
PROMPT_CACHE_FIELDS = FieldTable(
    "`prompt_cache_options` of responses",
    PromptCacheOptions,
    (
        *honoured(
            comparison_response_id="an earlier response: why the prompt was not found in the cache, exactly"
        ),
        *without_effect(
            mode="every full block of a prompt is found again; there are no breakpoints",
            ttl="blocks stay until memory is needed",
        ),
        *not_served(prewarm="send the request with max_output_tokens=1"),
    ),
    Treatment.WITHOUT_EFFECT,
)
REASONING_FIELDS = FieldTable(
    "`reasoning` of responses",
    ReasoningOptions,
    (
        *honoured(
            effort="as reasoning_effort of chat completions",
            summary="the reply has the reasoning itself, in the place and the events of a summary",
        ),
        *without_effect(
            context="the template decides which earlier reasoning the model sees",
            generate_summary="the reply has the reasoning itself",
            mode="there is one",
        ),
    ),
    Treatment.WITHOUT_EFFECT,
)
TEXT_FIELDS = FieldTable(
    "`text` of responses",
    TextOptions,
    (
        *honoured(
            format="text, json_object, or json_schema, which is enforced, strict or not; with tools, the"
            " answer either consists of calls or has the format"
        ),
        *without_effect(verbosity="say it in a message"),
    ),
    Treatment.WITHOUT_EFFECT,
)
CONVERSATION_OBJECTS: dict[str, FieldTable[Any]] = {
    "reasoning": REASONING_FIELDS,
    "text": TEXT_FIELDS,
}
CONVERSATION_FIELDS = (
    *honoured(
        input="text, or items: messages, calls and their outputs, reasoning, references to recent items; the text of"
        " files; a placeholder stands for images and other parts, with a warning",
        model="the served model's name or one of its aliases",
        instructions="a system message before the input",
        tools="functions, which the chat template shows to the model, also within namespaces; custom tools as functions"
        " of one text, whose grammar is enforced if it is not recursive; tools of other types are left out with a"
        " warning",
        tool_choice="auto, none, required, or a function: the answer is valid calls and nothing else;"
        " refused if no grammar of the model's calls is known",
        reasoning="see below",
        text="see below",
        parallel_tool_calls="false: at most one call, if calls are enforced by tool_choice or by strict"
        " in a tool",
    ),
    *not_served(
        conversation="the server stores none: send the items",
        previous_response_id="the server stores none: send the items",
        prompt="the server stores none: send the items",
    ),
)
RESPONSES_FIELDS = FieldTable(
    "POST /v1/responses",
    ResponsesBody,
    (
        *honoured(
            max_output_tokens="left out, all of the remaining context",
            temperature="0 is greedy; left out, the model's own default",
            top_p="see docs/sampling.md",
            stream="server-sent events",
            metadata="repeated in the reply; at most 16 texts of 512 characters",
            prompt_cache_key="repeated in the reply; equal prompts are found by their tokens",
            truncation="disabled",
            store="false: the items of the reply are not kept for item_reference; other state is never kept",
            prompt_cache_options="see below",
            include=f"{LOGPROBS}: log-probabilities of the text's tokens; {ENCRYPTED}: a placeholder, as the reasoning"
            " itself is in the reply, which always has everything else",
            top_logprobs="0..20 likeliest tokens at each position; with the log-probabilities alone",
        ),
        *CONVERSATION_FIELDS,
        *without_effect(
            access_programs="used by OpenAI alone",
            client_metadata="nothing is stored",
            context_management="nothing is left out of a conversation",
            image="the model writes text alone",
            max_tool_calls="the server calls no tools",
            prompt_cache_retention="blocks stay until memory is needed",
            safety_identifier="used by OpenAI's abuse detection only",
            service_tier="there is one",
            stream_options="frames have no padding",
            user="used by OpenAI's abuse detection only",
        ),
        *not_served(
            background="leave it out, and read the stream",
            background_options="leave it out, and read the stream",
            moderation="the server runs no moderation",
        ),
    ),
    Treatment.WITHOUT_EFFECT,
    {**CONVERSATION_OBJECTS, "prompt_cache_options": PROMPT_CACHE_FIELDS},
    {"input": "What is 12 + 7?", "max_output_tokens": 32},
)
INPUT_TOKENS_FIELDS = FieldTable(
    "POST /v1/responses/input_tokens",
    ConversationFields,
    (
        *CONVERSATION_FIELDS,
        *without_effect(
            personality="say it in the instructions",
            truncation="nothing is cut",
        ),
    ),
    Treatment.WITHOUT_EFFECT,
    CONVERSATION_OBJECTS,
    {"input": "What is 12 + 7?"},
)
