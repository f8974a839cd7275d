"""The fields that completions and chat completions share, and how each of them is treated."""

from typing import Any

import msgspec

from pellucid.sampling_params import SamplingParams
from pellucid.server.errors import refused
from pellucid.server.fields import FieldTable, honoured, not_served, without_effect
from pellucid.server.protocols.answer_rules import (
    AnswerRule,
    one_rule,
    openai_format_rule,
    structured_outputs_rule,
)
from pellucid.server.protocols.reasoning import given_budget
from pellucid.server.protocols.sampling import with_given
from pellucid.text.tokenizer import Tokenizer


class StreamOptions(msgspec.Struct, kw_only=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


STREAM_OPTION_FIELDS = FieldTable(
    "`stream_options` of completions and chat completions",
    StreamOptions,
    (
        *honoured(
            include_usage="a last frame with the usage of all answers",
            continuous_usage_stats="the usage so far in every frame",
        ),
        *without_effect(include_obfuscation="frames have no padding"),
    ),
)


class SamplingFields(msgspec.Struct, kw_only=True):
    """Fields that both routes honour. Fields that are left out take the model's own defaults."""

    model: str | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    min_tokens: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    timeout: float | None = None
    priority: int | None = None
    cache_salt: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    return_progress: bool | None = None
    prompt_logprobs: int | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    thinking_token_budget: int | None = None
    thinking_budget_tokens: int | None = None
    thinking_budget: int | None = None

    def check_stream(self) -> None:
        """Raises an ApiError for fields that apply to streams only."""
        for name in ("stream_options", "return_progress"):
            if getattr(self, name) and not self.stream:
                raise refused(f"{name}: needs stream=true", name)

    @property
    def has_equal_frames(self) -> bool:
        """Whether the frames of a text differ in parts of the text alone, if they have no log-probabilities."""
        options = self.stream_options
        has_usage = options is not None and bool(options.continuous_usage_stats)
        return not (has_usage or self.return_token_ids)

    def format_rule(self) -> AnswerRule | None:
        """What the client wants each text to be.

        Raises:
            ApiError: it says so in a wrong form, or twice.
        """
        return one_rule(
            openai_format_rule(self.response_format, "response_format"),
            structured_outputs_rule(self.structured_outputs),
        )

    def thinking_budget_in_tokens(self, tokenizer: Tokenizer, warnings: list[str]) -> int | None:
        """The budget of reasoning; None: no limit.

        Raises:
            ApiError: a budget is below -1, or two differ.
        """
        names = ("thinking_token_budget", "thinking_budget_tokens", "thinking_budget")
        given = {name: getattr(self, name) for name in names}
        return given_budget(given, tokenizer, warnings)

    def sampling_params(self, defaults: SamplingParams, **others: Any) -> SamplingParams:
        """The engine's parameters.

        Args:
            defaults: the model's.
            others: fields that the two routes read in ways of their own.

        Raises:
            ApiError, ValueError: names the field, its value and what is allowed.
        """
        given = {name: getattr(self, name) for name in _PARAMETERS}
        return with_given(defaults, given | others, _PARAMETER_NAMES)


_PARAMETERS = (
    "timeout",
    *(
        name
        for name in SamplingFields.__struct_fields__
        if name in SamplingParams.__dataclass_fields__
        and name not in ("structured_outputs", "thinking_token_budget")
    ),
)
_PARAMETER_NAMES = {
    "timeout": "max_time",
    "max_completion_tokens": "max_tokens",
    "top_logprobs": "logprobs",
}

SAMPLING_FIELDS = (
    *honoured(
        model="the served model's name or one of its aliases; left out, the served model",
        n="completions of each prompt; bounded",
        temperature="0 is greedy; left out, the model's own default",
        top_p="see docs/sampling.md",
        top_k="0 or -1 is off",
        min_p="see docs/sampling.md",
        typical_p="see docs/sampling.md",
        repetition_penalty="see docs/sampling.md",
        presence_penalty="see docs/sampling.md",
        frequency_penalty="see docs/sampling.md",
        logit_bias="token ids to numbers in -100..100",
        allowed_token_ids="no other token is sampled",
        bad_words="strings that are never completed",
        min_tokens="minimum tokens before EOS, a stop token or a stop string may end the answer",
        seed="the same seed gives the same answer, bit for bit",
        stop="a string or a list; matched in text, also across tokens",
        stop_token_ids="tokens that end the answer",
        include_stop_str_in_output="the text keeps the stop string",
        ignore_eos="continue after the model's end tokens",
        skip_special_tokens="leave special tokens out of the text",
        timeout="seconds after which the answer ends, with finish_reason length",
        priority="lower is sooner, among the requests of a key; each level counts as having arrived 10 s earlier",
        cache_salt="only calls with the same salt share cached prompts",
        stream="server-sent events",
        stream_options="see below; with stream alone",
        return_token_ids="prompt_token_ids and token_ids in the reply",
        return_progress="prompt_progress and the position in the queue before the first token; with stream"
        " alone",
        prompt_logprobs="log-probabilities of the prompt's tokens, in vLLM's form",
        response_format="text, json_object, or json_schema, which is enforced, strict or not; with tools,"
        " the answer either consists of calls or has the format",
        structured_outputs="one of json, regex, choice, grammar (Lark's syntax, as llguidance reads it),"
        " json_object",
        thinking_token_budget="maximum tokens of reasoning; then the end of reasoning is forced; -1 is no limit",
        thinking_budget_tokens="the same by llama.cpp's name",
        thinking_budget="the same by Qwen's name",
    ),
    *without_effect(
        user="used by OpenAI's abuse detection only",
        metadata="nothing is stored",
        store="nothing is stored",
        safety_identifier="used by OpenAI's abuse detection only",
        service_tier="there is only one; see priority",
        prompt_cache_key="equal prompts are found by their tokens; see cache_salt",
        prompt_cache_retention="blocks stay until memory is needed",
    ),
    *not_served(
        use_beam_search="use LLM.beam_search in Python",
        length_penalty="a parameter of beam search; use LLM.beam_search in Python",
        logits_processors="code in a request is never run; use logit_bias, allowed_token_ids or bad_words",
        truncate_prompt_tokens="nothing is truncated; shorten the prompt yourself",
        guided_json="use response_format or structured_outputs.json",
        guided_regex="use structured_outputs.regex",
        guided_choice="use structured_outputs.choice",
        guided_grammar="use structured_outputs.grammar",
        grammar="use structured_outputs.grammar, which is in Lark's syntax",
        json_schema="use response_format",
    ),
)
