"""Beam search parameters of a request. Names and meanings are those of transformers and vLLM."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pellucid.inputs.parameter_checks import CheckedFields, Interval, refuse
from pellucid.inputs.sampling_params import DEFAULT_MAX_TOKENS, MAX_N, SamplingParams


@dataclass(frozen=True, kw_only=True)
class BeamSearchParams(CheckedFields):
    """How wide to search, when to stop, and how to rank finished beams.

    Checked when made, and never changed afterwards. Fields with the names of `SamplingParams` mean the
    same here. docs/beam-search.md defines the search.

    Args:
        beam_width: beams that are kept at each length; 1..64. transformers' `num_beams`.
        n: completions to return, best first; 1..beam_width, None is beam_width. transformers'
            `num_return_sequences`.
        length_penalty: the score of a finished beam of m tokens is the sum of its log-probabilities
            divided by m ** length_penalty. Above 0 favours long beams, below 0 short ones; [-10, 10].
        early_stopping: when to stop once beam_width beams are finished. True: at once. False: when
            the best live beam, scored at its present length, is not better than the worst finished
            beam. "never": when the best live beam could not become better at any length.
        repetition_penalty: multiplies the (negative) log-probabilities of tokens of prompt and
            output; [1e-6, 1e6].
        logit_bias: added to the log-probabilities of these token ids.
        allowed_token_ids: no other token is ever taken.
        bad_words: strings that never appear.
        min_tokens: minimum number of output tokens before an end or stop token may end a beam.
        stop_token_ids: tokens that end a beam, besides the model's own.
        max_tokens: limit on output tokens; None leaves the context length as the only limit.
        ignore_eos: continue after the model's own end tokens.
        skip_special_tokens: leave special tokens out of the text.

    Raises:
        ValueError: names the field, its value and what is allowed.
    """

    beam_width: int
    n: int | None = None
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] | Sequence[tuple[int, float]] = ()
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] = ()
    min_tokens: int = 0
    stop_token_ids: Sequence[int] = ()
    max_tokens: int | None = DEFAULT_MAX_TOKENS
    ignore_eos: bool = False
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        self._normalise("beam_width", _BEAM_WIDTH.integer("beam_width", self.beam_width))
        if self.n is not None:
            self._normalise("n", Interval(1, self.beam_width).integer("n", self.n))
        length_penalty = _LENGTH_PENALTY.real("length_penalty", self.length_penalty)
        self._normalise("length_penalty", length_penalty)
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            refuse("early_stopping", self.early_stopping, 'True, False or "never"')
        shared = self.sampling_params
        if shared.max_tokens == "auto":
            refuse("max_tokens", shared.max_tokens, "a whole number of at least 1, or None")
        for name in _SHARED:
            self._normalise(name, getattr(shared, name))

    @property
    def num_results(self) -> int:
        """Number of completions to return, if that many are found."""
        return self.beam_width if self.n is None else self.n

    @property
    def sampling_params(self) -> SamplingParams:
        """The parameters of each beam's request. Nothing is drawn at random, so the seed does not matter."""
        return SamplingParams(seed=0, **{name: getattr(self, name) for name in _SHARED})

    def num_candidates(self, num_stop_tokens: int) -> int:
        """Number of continuations to consider in each step: so many that beam_width of them go on even if
        the best ones of each beam are all the tokens that end it."""
        return max(2, 1 + num_stop_tokens) * self.beam_width


RequestParams: TypeAlias = SamplingParams | BeamSearchParams

_BEAM_WIDTH = Interval(1, MAX_N)
_LENGTH_PENALTY = Interval(-10, 10)
_SHARED = (
    "repetition_penalty",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "min_tokens",
    "stop_token_ids",
    "max_tokens",
    "ignore_eos",
    "skip_special_tokens",
)
