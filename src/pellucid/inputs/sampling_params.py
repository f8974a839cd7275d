"""Sampling parameters of a request. Names and defaults are vLLM's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from pellucid.inputs.parameter_checks import (
    TOKEN_ID,
    CheckedFields,
    Interval,
    check_num_token_ids,
    checked_strings,
    checked_token_ids,
    refuse,
    shown,
)
from pellucid.inputs.structured_outputs import StructuredOutputsParams

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on

# Each costs an object per output token for as long as the request lives. 20 is the most that
# OpenAI's API and vLLM's default accept.
MAX_LOGPROBS = 20
MAX_N = 64
# Parameters of vLLM's that have another name here, or none.
_OF_VLLM = {
    "extra_args": "there are none; leave it out",
    "guided_decoding": "set structured_outputs=StructuredOutputsParams(...)",
    "logits_processors": "no code runs between the logits and a token; use logit_bias, allowed_token_ids,"
    " bad_words or structured_outputs",
    "lora_request": "there are no adapters; merge the adapter into the checkpoint first",
    "output_kind": "LLM.generate returns whole outputs, LLM.stream deltas; leave it out",
    "spaces_between_special_tokens": "text is exactly what the tokens say; leave it out",
    "truncate_prompt_tokens": "nothing is truncated; shorten the prompt",
}
DEFAULT_MAX_TOKENS = 16  # vLLM's and OpenAI's, for prompts that are not conversations


@dataclass(frozen=True, kw_only=True)
class SamplingParams(CheckedFields):
    """How the tokens of one request are chosen, and when the request ends.

    Checked when made, and never changed afterwards: sequences become tuples, and None means the default
    in fields that default to (). docs/sampling.md defines each stage.

    Args:
        n: number of completions, each with its own random stream of the seed; 1..64.
        best_of: number of completions to generate; the n with the highest mean log-probability per token
            are returned, best first. n..64, None is n. The mean is that of the model's own
            log-probabilities, before any sampling parameter. Ties go to the earlier stream, and
            failed completions come last.
        temperature: divides the logits; 0 takes the most likely token (greedy).
        top_p: keep the most likely tokens that together reach this probability; (0, 1], 1 is off.
        top_k: keep this many of the most likely tokens; 0 or -1 is off; below 2**31.
        min_p: keep tokens with at least this share of the top token's probability; [0, 1], 0 is off.
        typical_p: keep the tokens of most typical surprise that together reach this probability;
            (0, 1], 1 is off.
        repetition_penalty: weakens tokens of prompt and output if > 1, favours them if < 1; [1e-6, 1e6].
        presence_penalty: subtracted once from the logits of tokens in the output; [-2, 2].
        frequency_penalty: subtracted once per occurrence in the output; [-2, 2].
        logit_bias: added to the logits of these token ids; [-100, 100] each. Kept as pairs.
        allowed_token_ids: nothing else is ever sampled.
        bad_words: strings that never appear, even if the prompt ends with their beginning.
        min_tokens: minimum number of output tokens before EOS or a stop may end the completion.
        seed: the same seed gives the same completions; 0 <= seed < 2**64. None: the engine draws a seed
            and reports it.
        logprobs: report the log-probabilities of each output token and of this many most likely
            tokens; 0..20.
        prompt_logprobs: the same for the prompt's tokens.
        stop: a string that ends the completion, or several.
        include_stop_str_in_output: whether the text keeps the stop string.
        stop_in_reasoning: whether stop strings count in the reasoning of an answer too. False needs a model
            whose form of reasoning is known (`tokenizer.response_format`), and has no effect for others.
        stop_token_ids: tokens that end the completion, besides the model's own.
        max_tokens: limit on output tokens; None leaves the context length as the only limit. "auto" is
            None for conversations, which end by themselves, and 16 for other prompts.
        max_time: limit in seconds from the request's arrival. A prompt of a list that `LLM.generate` is given
            arrives when the engine has a seat for it.
        ignore_eos: continue after the model's own end tokens.
        skip_special_tokens: leave special tokens out of the text.
        thinking_token_budget: most tokens of reasoning, over all regions of it; then the text that ends reasoning is
            forced. It has an effect for models whose form of reasoning is known, as `stop_in_reasoning`.
        structured_outputs: what the text must be: JSON, a choice, a regular expression, a grammar.

    Raises:
        ValueError: names the field, its value and what is allowed.
    """

    n: int = 1
    best_of: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | Sequence[tuple[int, float]] = ()
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] = ()
    min_tokens: int = 0
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    stop: Sequence[str] = ()
    include_stop_str_in_output: bool = False
    stop_in_reasoning: bool = True
    stop_token_ids: Sequence[int] = ()
    max_tokens: int | Literal["auto"] | None = "auto"
    max_time: float | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    thinking_token_budget: int | None = None
    structured_outputs: StructuredOutputsParams | None = None

    def __new__(cls, **given: object) -> "Self":
        """Explains a parameter that only vLLM has, where a dataclass would raise a TypeError."""
        for name in given:
            if name in _OF_VLLM:
                raise ValueError(f"{name}={shown(given[name])}: {_OF_VLLM[name]}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name, interval in _REALS.items():
            self._normalise(name, interval.real(name, getattr(self, name)))
        self._check_integers(_INTEGERS)
        self._check_integers(_OPTIONAL_INTEGERS, optional=True)
        if self.max_tokens is not None and self.max_tokens != "auto":
            self._normalise("max_tokens", _MAX_TOKENS.integer("max_tokens", self.max_tokens))
            if self.min_tokens > self.max_tokens:
                refuse("min_tokens", self.min_tokens, f"at most max_tokens={self.max_tokens}")
        if self.max_time is not None:
            self._normalise("max_time", _MAX_TIME.real("max_time", self.max_time))
        self._check_switches(
            "include_stop_str_in_output", "stop_in_reasoning", "ignore_eos", "skip_special_tokens"
        )
        self._normalise("stop", checked_strings("stop", self.stop))
        self._normalise("bad_words", checked_strings("bad_words", self.bad_words))
        self._normalise("stop_token_ids", checked_token_ids("stop_token_ids", self.stop_token_ids))
        self._normalise("logit_bias", _logit_bias(self.logit_bias))
        if self.allowed_token_ids is not None:
            allowed = checked_token_ids("allowed_token_ids", self.allowed_token_ids)
            self._normalise("allowed_token_ids", allowed)
            if not allowed:
                refuse("allowed_token_ids", allowed, "at least one token id, or None for all")

        if not isinstance(self.structured_outputs, StructuredOutputsParams | None):
            refuse("structured_outputs", self.structured_outputs, "StructuredOutputsParams or None")
        if self.best_of is not None and self.best_of < self.n:
            refuse("best_of", self.best_of, f"at least n={self.n}")

    @property
    def num_results(self) -> int:
        """Number of completions to generate."""
        return self.n if self.best_of is None else self.best_of

    @property
    def ranks(self) -> bool:
        """Whether more completions are generated than returned."""
        return self.num_results > self.n

    @property
    def num_logprobs(self) -> int | None:
        """Number of most likely tokens to report with each output token; None: no log-probabilities."""
        return 0 if self.logprobs is None and self.ranks else self.logprobs

    def with_max_tokens(self, *, is_chat: bool) -> "SamplingParams":
        """These parameters with a number or None where `max_tokens` is "auto".

        Args:
            is_chat: whether the prompt is a conversation.
        """
        if self.max_tokens != "auto":
            return self
        limit = None if is_chat else max(DEFAULT_MAX_TOKENS, self.min_tokens)
        return replace(self, max_tokens=limit)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Checks every token id against the model's vocabulary.

        Raises:
            ValueError: a token id is not below `vocab_size`.
        """
        token_ids_by_name: dict[str, Sequence[int]] = {
            "logit_bias": tuple(dict(self.logit_bias)),
            "allowed_token_ids": self.allowed_token_ids or (),
            "stop_token_ids": self.stop_token_ids,
        }
        for name, token_ids in token_ids_by_name.items():
            for token_id in token_ids:
                if token_id >= vocab_size:
                    raise ValueError(
                        f"{name}: token id {token_id} is out of range:"
                        f" allowed are 0..{vocab_size - 1}"
                    )


_REALS = {
    "temperature": Interval(0),
    "top_p": Interval(0, 1, above_low=True),
    "min_p": Interval(0, 1),
    "typical_p": Interval(0, 1, above_low=True),
    "repetition_penalty": Interval(1e-6, 1e6),  # beyond, products with logits may leave float32
    "presence_penalty": Interval(-2, 2),
    "frequency_penalty": Interval(-2, 2),
}
# The numbers that change which token is chosen.
STAGE_NUMBERS = tuple(dict.fromkeys(("temperature", "top_k", *_REALS)))
_INTEGERS = {
    "n": Interval(1, MAX_N),
    "top_k": Interval(-1, 2**31 - 1),
    "min_tokens": Interval(0),
}
_OPTIONAL_INTEGERS = {
    "best_of": Interval(1, MAX_N),
    "seed": Interval(0, 2**64 - 1),
    "logprobs": Interval(0, MAX_LOGPROBS),
    "prompt_logprobs": Interval(0, MAX_LOGPROBS),
    "thinking_token_budget": Interval(0),
}
_MAX_TOKENS = Interval(1)
_MAX_TIME = Interval(0, above_low=True)
_BIAS = Interval(-100, 100)


def _logit_bias(
    value: Mapping[int, float] | Sequence[tuple[int, float]] | None,
) -> tuple[tuple[int, float], ...]:
    """Pairs in order of token id: hashable, and copied and written out like any other field."""
    try:
        bias = dict(value or ())
    except (TypeError, ValueError):
        refuse("logit_bias", value, "a mapping of token ids to numbers")
    check_num_token_ids("logit_bias", len(bias))
    return tuple(
        sorted(
            (
                TOKEN_ID.integer("logit_bias", token_id),
                _BIAS.real(f"logit_bias[{token_id}]", added),
            )
            for token_id, added in bias.items()
        )
    )
