"""The bodies of Ollama's calls, and how each of their fields is treated."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from pellucid.inputs.sampling_params import SamplingParams
from pellucid.server.call_warnings import Warnings
from pellucid.server.errors import refused
from pellucid.server.fields import (
    FieldTable,
    Treatment,
    honoured,
    neutral_at,
    not_served,
    without_effect,
)
from pellucid.server.protocols.answer_rules import AnswerRule, ollama_format_rule
from pellucid.server.protocols.ask import AskBody
from pellucid.server.protocols.reasoning import effort_budget, switch_budget
from pellucid.server.protocols.sampling import with_given
from pellucid.text.tokenizer import Tokenizer


class Options(msgspec.Struct, kw_only=True):
    num_predict: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None


_PARAMETER_NAMES = {
    "num_predict": "max_tokens",
    "repeat_penalty": "repetition_penalty",
    "top_logprobs": "logprobs",
}


class CommonFields(AskBody, kw_only=True):
    model: str
    stream: bool | None = None
    options: Options | None = None
    format: Any = None
    think: bool | str | None = None
    keep_alive: float | str | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None

    @property
    def limit_field(self) -> str:
        return "options.num_predict"

    @property
    def is_empty(self) -> bool:
        """Whether it asks nothing but whether the model is there."""
        raise NotImplementedError

    def format_rule(self) -> AnswerRule | None:
        return None if self.is_empty else ollama_format_rule(self.format)

    def sampling_params(self, defaults: SamplingParams) -> SamplingParams:
        if self.top_logprobs and not self.logprobs:
            raise refused(f"top_logprobs={self.top_logprobs}: needs logprobs=true", "top_logprobs")
        given = msgspec.structs.asdict(self.options or Options())
        for name in ("seed", "num_predict"):  # below 0: none
            if given[name] is not None and given[name] < 0:
                given[name] = None
        if self.logprobs:
            given["top_logprobs"] = self.top_logprobs or 0
        return with_given(replace(defaults, max_tokens=None), given, _PARAMETER_NAMES)

    def budgets(self, tokenizer: Tokenizer, warnings: list[str]) -> Sequence[int | None]:
        if isinstance(self.think, str):
            return (effort_budget(self.think, tokenizer),)
        return (switch_budget(self.think, tokenizer),)

    @property
    def unloads(self) -> bool:
        """Whether the client no longer needs the model: `keep_alive` is 0, or 0 with a unit."""
        return self.keep_alive is not None and str(self.keep_alive).rstrip("smh") in ("0", "0.0")

    def check(self, warnings: Warnings) -> None:
        if self.keep_alive is not None:
            warnings.append("keep_alive: has no effect: the model stays loaded")


class GenerateBody(CommonFields, kw_only=True):
    prompt: str | None = None
    system: str | None = None
    images: list[Any] | None = None
    raw: bool | None = None

    @property
    def is_empty(self) -> bool:
        return not self.prompt

    def budgets(self, tokenizer: Tokenizer, warnings: list[str]) -> Sequence[int | None]:
        if self.raw or not tokenizer.has_chat_template:
            return ()  # the text itself says whether the model reasons
        return super().budgets(tokenizer, warnings)


class ChatBody(CommonFields, kw_only=True):
    messages: list[Any] | None = None
    tools: list[Any] | None = None

    @property
    def is_empty(self) -> bool:
        return not self.messages


class ShowBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    name: str | None = None


SHOW_FIELDS = FieldTable(
    "POST /api/show",
    ShowBody,
    (
        *honoured(model="as everywhere", name="the same by its older name"),
        *without_effect(verbose="the reply always has all details"),
    ),
    Treatment.WITHOUT_EFFECT,
)
OPTION_FIELDS = FieldTable(
    "`options` of Ollama's requests",
    Options,
    (
        *honoured(
            num_predict="maximum output tokens; below 0, all of the remaining context",
            temperature="left out, the model's own default",
            top_k="0 is off",
            top_p="see docs/sampling.md",
            min_p="see docs/sampling.md",
            typical_p="see docs/sampling.md",
            repeat_penalty="repetition_penalty, over prompt and answer",
            presence_penalty="see docs/sampling.md",
            frequency_penalty="see docs/sampling.md",
            seed="the same seed gives the same answer; below 0, one is drawn",
            stop="strings that end the answer",
        ),
        *without_effect(
            num_ctx="the context is set when the server starts, with --max-model-len; nothing is cut",
            num_keep="nothing is ever dropped from a prompt",
            num_batch="set when the server starts",
            num_gpu="set when the server starts",
            main_gpu="set when the server starts",
            num_thread="set when the server starts, with --num-threads",
            use_mmap="weights are mapped where that helps",
            use_mlock="set it for the process",
            low_vram="memory is planned",
            numa="set it for the process",
            f16_kv="set when the server starts, with --kv-cache-dtype",
            logits_all="ask for logprobs",
            vocab_only="the whole model is loaded",
            embedding_only="the whole model is loaded",
            repeat_last_n="penalties look at prompt and answer as a whole",
            penalize_newline="penalties treat all tokens alike",
            mirostat_eta="a part of mirostat",
            mirostat_tau="a part of mirostat",
        ),
        *neutral_at(0, mirostat="use temperature, top_p, min_p or typical_p"),
        *neutral_at(1, tfs_z="use typical_p"),
    ),
    Treatment.WITHOUT_EFFECT,
)
COMMON_FIELDS = (
    *honoured(
        model="the served model's name or one of its aliases, with or without :latest",
        stream="lines of JSON, unless false",
        options="see below",
        format="json, or a JSON schema; with tools, the answer either consists of calls or has the format",
        think="enable_thinking, or a level as reasoning_effort, of templates that read it; for other models that"
        " reason, false is a budget of 0 tokens and low one of 2048",
        logprobs="log-probabilities of the answer's tokens",
        top_logprobs="0..20 likeliest tokens at each position",
        keep_alive="0 without a prompt is answered with done_reason unload; the model stays loaded, with a warning",
    ),
    *without_effect(
        truncate="nothing is truncated: a prompt that is too long is refused",
        shift="nothing is shifted out of the context: an answer ends when the context is full",
    ),
)
GENERATE_FIELDS = FieldTable(
    "POST /api/generate",
    GenerateBody,
    (
        *honoured(
            prompt="a user's message, or with raw the text itself; empty: the model is loaded",
            system="a system message before it",
            images="the model reads text alone: a placeholder stands for each image, with a warning",
            raw="no chat template",
        ),
        *COMMON_FIELDS,
        *not_served(
            context="send the conversation to /api/chat",
            width="only text is served",
            height="only text is served",
            steps="only text is served",
            suffix="no model with a fill-in-the-middle form is supported",
            template="a template is a program; start the server with a model that has it",
        ),
    ),
    Treatment.WITHOUT_EFFECT,
    {"options": OPTION_FIELDS},
    {"prompt": "Once upon a time", "stream": False, "options": {"num_predict": 32}},
)
CHAT_FIELDS = FieldTable(
    "POST /api/chat",
    ChatBody,
    (
        *honoured(
            messages="roles system, user, assistant, tool; thinking and tool calls; a placeholder stands for each"
            " image, with a warning; empty: the model is loaded",
            tools="functions, which the chat template shows to the model",
        ),
        *COMMON_FIELDS,
    ),
    Treatment.WITHOUT_EFFECT,
    {"options": OPTION_FIELDS},
    {
        "messages": [{"role": "user", "content": "What is 12 + 7?"}],
        "stream": False,
        "options": {"num_predict": 32},
    },
)
