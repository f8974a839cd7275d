"""The body of a call to /v1/chat/completions, and how each of its fields is treated."""

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from typing import Any, Literal

from pellucid.inputs.parameter_checks import shown
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.server.errors import refused
from pellucid.server.fields import FieldTable, honoured, not_served, without_effect
from pellucid.server.protocols.answer_rules import ToolChoice, openai_tool_choice
from pellucid.server.protocols.openai_shared.fields import (
    SAMPLING_FIELDS,
    STREAM_OPTION_FIELDS,
    SamplingFields,
)
from pellucid.server.protocols.reasoning import effort_budget, switch_budget
from pellucid.text.tokenizer import Tokenizer

SWITCH = "enable_thinking"  # the variable by which most templates switch reasoning


class PlaceOfReasoning(Enum):
    """Where a reply has the model's reasoning."""

    APART = "apart"
    CONTENT = "content"
    NOWHERE = "nowhere"


# By the words of llama.cpp (auto, deepseek, none) and of others
PLACES_OF_REASONING = {
    "auto": PlaceOfReasoning.APART,
    "deepseek": PlaceOfReasoning.APART,
    "parsed": PlaceOfReasoning.APART,
    "none": PlaceOfReasoning.CONTENT,
    "raw": PlaceOfReasoning.CONTENT,
    "hidden": PlaceOfReasoning.NOWHERE,
}


class ChatBody(SamplingFields, kw_only=True):
    messages: list[Any]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    modalities: list[Literal["text"]] | None = None
    enable_thinking: bool | None = None
    include_reasoning: bool | None = None
    separate_reasoning: bool | None = None
    reasoning_format: str | None = None

    @property
    def is_plain(self) -> bool:
        return self.skip_special_tokens is False  # who asks for them gets the text unparsed

    @property
    def keeps_reasoning(self) -> bool:
        return self.place_of_reasoning is PlaceOfReasoning.CONTENT

    def choice(self) -> ToolChoice:
        return openai_tool_choice(self.tool_choice, self.parallel_tool_calls)

    def sampling_params(self, defaults: SamplingParams) -> SamplingParams:
        if self.top_logprobs and not self.logprobs:
            raise refused(f"top_logprobs={self.top_logprobs}: needs logprobs=true", "top_logprobs")
        return self.params(
            defaults,
            **self.limit,
            **({"n_probs" if self.n_probs else "top_logprobs": self.num_top_logprobs}),
            prompt_logprobs=self.prompt_logprobs,
        )

    def budgets(self, tokenizer: Tokenizer, warnings: list[str]) -> Sequence[int | None]:
        (budget,) = super().budgets(tokenizer, warnings)
        if budget is None:
            budget = effort_budget(self.reasoning_effort, tokenizer)
        return budget, switch_budget(self.wants_thinking, tokenizer)

    @property
    def num_top_logprobs(self) -> int | None:
        """How many likeliest tokens stand beside each token; None: the client wants no log-probabilities."""
        if self.n_probs:
            return self.n_probs
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def wants_thinking(self) -> bool | None:
        """None: the client leaves it to the model.

        Raises:
            ApiError: it says both.
        """
        wanted = (self.chat_template_kwargs or {}).get(SWITCH)
        if self.enable_thinking is None or wanted is None:
            wanted = self.enable_thinking if wanted is None else wanted
        elif wanted != self.enable_thinking:
            raise refused(f"{SWITCH}: differs from that of chat_template_kwargs; give one", SWITCH)
        if wanted not in (None, False, True):
            raise refused(
                f"chat_template_kwargs.{SWITCH}={shown(wanted)}: must be true or false", SWITCH
            )
        return wanted

    @property
    def place_of_reasoning(self) -> PlaceOfReasoning:
        """Where the client wants reasoning.

        Raises:
            ApiError: it says so in a word that has no meaning here.
        """
        named = PLACES_OF_REASONING.get(self.reasoning_format or "auto")
        if named is None:
            raise refused(
                f"reasoning_format={shown(self.reasoning_format)}: must be one of"
                f" {', '.join(PLACES_OF_REASONING)}",
                "reasoning_format",
            )
        if self.include_reasoning is False:
            return PlaceOfReasoning.NOWHERE
        return PlaceOfReasoning.CONTENT if self.separate_reasoning is False else named


CHAT_FIELDS = FieldTable(
    "POST /v1/chat/completions",
    ChatBody,
    (
        *honoured(
            messages="roles system, developer, user, assistant, tool; text or parts; tool calls; the text of files; a"
            " placeholder stands for images and other parts, with a warning; keys that client libraries add have no"
            " effect",
            max_tokens="left out, all of the remaining context; the answer ends when the context is full",
            max_completion_tokens="the same by its newer name",
            logprobs="log-probabilities of the answer's tokens",
            top_logprobs="0..20 likeliest tokens at each position",
            tools="functions that the model may call; refused if the model's template does not take them",
            tool_choice="auto, none, required, or a function: the answer is valid calls and nothing else;"
            " refused if no grammar of the model's calls is known",
            parallel_tool_calls="false: at most one call, if calls are enforced by tool_choice or by"
            " strict in a tool",
            reasoning_effort="for templates that read it; for other models that reason, none, minimal and low are"
            " budgets of 0, 512 and 2048 tokens, and other efforts set no limit",
            chat_template_kwargs="variables for the template, such as enable_thinking; one that the template lacks has"
            " no effect, with a warning",
            enable_thinking="the same as in chat_template_kwargs; for other models that reason, false is a budget of 0",
            include_reasoning="false: the reply leaves reasoning out; the model reasons all the same",
            separate_reasoning="false: reasoning stays in the content, with the texts around it",
            reasoning_format="auto, deepseek or parsed: reasoning stands apart; none or raw: it stays in the content;"
            " hidden: the reply leaves it out",
            add_generation_prompt="end the prompt with the text that opens the answer",
            continue_final_message="the answer continues the final message",
            modalities="text",
        ),
        *SAMPLING_FIELDS,
        *without_effect(
            prompt_cache_options="equal prompts are found by their tokens; there are no breakpoints",
            prediction="speculation finds repeated text by itself",
            stream_reasoning="reasoning streams as it is generated",
            verbosity="say it in a message",
        ),
        *not_served(
            audio="only text is served",
            best_of="a parameter of /v1/completions",
            chat_template="a template is a program; start the server with a model that has it",
            documents="send them in a message",
            function_call="use tool_choice",
            functions="use tools",
            moderation="the server runs no moderation",
            web_search_options="the server fetches nothing",
        ),
    ),
    objects={"stream_options": STREAM_OPTION_FIELDS},
    example={"messages": [{"role": "user", "content": "What is 12 + 7?"}], "max_tokens": 32},
)
INPUT_TOKENS_FIELDS = replace(CHAT_FIELDS, title="POST /v1/chat/completions/input_tokens")
