"""The fields that completions and chat completions share, and how each of them is treated."""

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from pellucid.inputs.sampling_params import SamplingParams
from pellucid.server.call_warnings import Warnings
from pellucid.server.errors import refused
from pellucid.server.fields import FieldTable, honoured, neutral_at, not_served, without_effect
from pellucid.server.protocols import answer_rules
from pellucid.server.protocols.ask import AskBody
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


class SamplingFields(AskBody, kw_only=True):
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
    max_tokens: int | None = None
    n_predict: int | None = None
    repeat_penalty: float | None = None
    n_probs: int | None = None
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None
    cache_prompt: bool | None = None
    timings_per_token: bool | None = None
    return_tokens_as_token_ids: bool | None = None

    def check(self, warnings: Warnings) -> None:
        for name in ("stream_options", "return_progress"):
            if getattr(self, name) and not self.stream:
                raise refused(f"{name}: needs stream=true", name)

    @property
    def has_equal_frames(self) -> bool:
        """Whether the frames of a text differ in parts of the text alone, if they have no log-probabilities."""
        options = self.stream_options
        has_usage = options is not None and bool(options.continuous_usage_stats)
        return not (has_usage or self.return_token_ids or self.timings_per_token)

    @property
    def salt(self) -> str | None:
        """See `GenerationRequest.cache_salt`. One that nobody else has keeps a prompt out of what is shared."""
        return secrets.token_hex() if self.cache_prompt is False else self.cache_salt

    def format_rule(self) -> answer_rules.AnswerRule | None:
        """What the client wants each text to be.

        Raises:
            ApiError: it says so in a wrong form, or twice.
        """
        return answer_rules.one_rule(
            answer_rules.openai_format_rule(self.response_format, "response_format"),
            answer_rules.structured_outputs_rule(self.structured_outputs),
            answer_rules.grammar_rule(self.grammar, "grammar"),
            answer_rules.schema_rule(self.json_schema, "json_schema"),
        )

    def budgets(self, tokenizer: Tokenizer, warnings: list[str]) -> Sequence[int | None]:
        names = ("thinking_token_budget", "thinking_budget_tokens", "thinking_budget")
        given = {name: getattr(self, name) for name in names}
        return (given_budget(given, tokenizer, warnings),)

    def params(self, defaults: SamplingParams, **others: Any) -> SamplingParams:
        """The parameters of the fields that both routes have.

        Args:
            defaults: the model's.
            others: fields that each route reads in a way of its own.

        Raises:
            ApiError, ValueError: names the field, its value and what is allowed.
        """
        given = {name: getattr(self, name) for name in _PARAMETERS} | others
        for name in LIMITS:
            if given.get(name) == -1:  # llama.cpp's word for no limit but the context
                given[name], defaults = None, replace(defaults, max_tokens=None)
        given |= self.aliased("repetition_penalty", "repeat_penalty")
        if given["seed"] == -1:  # llama.cpp's word for a drawn seed
            given["seed"] = None
        return with_given(defaults, given, _PARAMETER_NAMES)

    @property
    def limit_field(self) -> str | None:
        return next(iter(self.limit), None)

    @property
    def limit(self) -> dict[str, int]:
        """The largest number of output tokens, by the name that the client used; or nothing.

        Raises:
            ApiError: it gave different ones.
        """
        return self.aliased(*(name for name in LIMITS if name in self.__struct_fields__))

    def aliased(self, *names: str) -> dict[str, Any]:
        """The value of a parameter that goes by several names, by the name that the client used; or nothing.

        Raises:
            ApiError: two of them differ.
        """
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        if len(set(given.values())) > 1:
            raise refused(f"{' and '.join(given)}: differ; give one of them", next(iter(given)))
        return dict(list(given.items())[:1])


LIMITS = ("max_completion_tokens", "max_tokens", "n_predict")
_PARAMETERS = (
    "timeout",
    *(
        name
        for name in SamplingFields.__struct_fields__
        if name in SamplingParams.__dataclass_fields__
        and name not in ("max_tokens", "structured_outputs", "thinking_token_budget")
    ),
)
_PARAMETER_NAMES = {
    "timeout": "max_time",
    "max_completion_tokens": "max_tokens",
    "n_predict": "max_tokens",
    "n_probs": "logprobs",
    "repeat_penalty": "repetition_penalty",
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
        structured_outputs="one of json, regex, choice, grammar (Lark's syntax, as llguidance reads it, or"
        " GBNF), json_object",
        thinking_token_budget="maximum tokens of reasoning; then the end of reasoning is forced; -1 is no limit",
        thinking_budget_tokens="the same by llama.cpp's name",
        thinking_budget="the same by Qwen's name",
        n_predict="max_tokens by llama.cpp's name; -1: all of the remaining context",
        repeat_penalty="repetition_penalty by llama.cpp's name",
        n_probs="log-probabilities of the answer's tokens, with as many likeliest ones, by llama.cpp's name",
        grammar="llama.cpp's GBNF, which is enforced; or Lark's syntax",
        json_schema="a schema by llama.cpp's name; enforced, as response_format",
        cache_prompt="false: the prompt is neither found in the cache nor found again",
        timings_per_token="timings in every frame of a stream",
        return_tokens_as_token_ids="tokens in log-probabilities are called token_id:N",
    ),
    *without_effect(
        user="used by OpenAI's abuse detection only",
        metadata="nothing is stored",
        store="nothing is stored",
        safety_identifier="used by OpenAI's abuse detection only",
        service_tier="there is only one; see priority",
        prompt_cache_key="equal prompts are found by their tokens; see cache_salt",
        prompt_cache_retention="blocks stay until memory is needed",
        dry_allowed_length="a part of dry_multiplier",
        dry_base="a part of dry_multiplier",
        dry_penalty_last_n="a part of dry_multiplier",
        dry_sequence_breakers="a part of dry_multiplier",
        dynatemp_exponent="a part of dynatemp_range",
        id_slot="requests have no slots: any free block serves any request",
        keep_alive="the model stays loaded",
        mirostat_eta="a part of mirostat",
        mirostat_tau="a part of mirostat",
        num_ctx="the context is set when the server starts, with --max-model-len; nothing is cut",
        provider="there is one",
        repeat_last_n="penalties look at prompt and answer as a whole",
        request_id="the server chooses the ids: x-request-id, and id in the reply",
        spaces_between_special_tokens="the text of tokens is joined as it is",
        xtc_threshold="a part of xtc_probability",
    ),
    *neutral_at(
        0,
        dry_multiplier="use repetition_penalty, frequency_penalty or presence_penalty",
        dynatemp_range="use temperature",
        mirostat="use temperature, top_p, min_p or typical_p",
        top_a="use min_p",
        xtc_probability="use temperature, top_p, min_p or typical_p",
    ),
    *neutral_at(-1, 0, top_n_sigma="use min_p"),
    *neutral_at(1, tfs_z="use typical_p"),
    *not_served(
        use_beam_search="use LLM.beam_search in Python",
        length_penalty="a parameter of beam search; use LLM.beam_search in Python",
        logits_processors="code in a request is never run; use logit_bias, allowed_token_ids or bad_words",
        truncate_prompt_tokens="nothing is truncated; shorten the prompt yourself",
        guided_json="use response_format or structured_outputs.json",
        guided_regex="use structured_outputs.regex",
        guided_choice="use structured_outputs.choice",
        guided_grammar="use structured_outputs.grammar",
    ),
)
