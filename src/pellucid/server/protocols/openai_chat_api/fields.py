"""The body of a call to /v1/chat/completions, and how each of its fields is treated."""

from typing import Any, Literal

from pellucid.server.fields import FieldTable, honoured, not_served, without_effect
from pellucid.server.protocols.openai_shared.fields import (
    SAMPLING_FIELDS,
    STREAM_OPTION_FIELDS,
    SamplingFields,
)


class ChatBody(SamplingFields, kw_only=True):
    messages: list[Any]
    max_tokens: int | None = None
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
            chat_template_kwargs="variables for the template, such as enable_thinking",
            add_generation_prompt="end the prompt with the text that opens the answer",
            continue_final_message="the answer continues the final message",
            modalities="text",
        ),
        *SAMPLING_FIELDS,
        *without_effect(
            prompt_cache_options="equal prompts are found by their tokens; there are no breakpoints",
            prediction="speculation finds repeated text by itself",
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
