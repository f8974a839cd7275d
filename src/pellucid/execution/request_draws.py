"""The parameters of a request's draws, for backends that draw tokens within their step."""

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace

import numpy as np
import numpy.typing as npt

from pellucid.backends.base import Draw, DrawSettings
from pellucid.execution.odds import sharpness
from pellucid.execution.sampling_order import forced_token
from pellucid.execution.sampling_stages import completions
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.scheduling.request import Request

TokenIds = npt.NDArray[np.int32]

# The parameters that `RequestDraws.draw` passes on.
DRAWN_PARAMETERS = frozenset(
    (
        *("temperature", "top_k", "top_p", "min_p", "typical_p", "seed"),
        *("repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias"),
        *("allowed_token_ids", "bad_words", "min_tokens", "stop_token_ids", "ignore_eos"),
        *("structured_outputs", "thinking_token_budget"),
    )
)
# The parameters that do not decide which token comes next.
OTHER_PARAMETERS = frozenset(
    (
        *("n", "best_of", "logprobs", "prompt_logprobs", "max_tokens", "max_time"),
        *("stop", "include_stop_str_in_output", "stop_in_reasoning", "skip_special_tokens"),
    )
)

_BITS = 32


class RequestDraws:
    """The settings of one request's draws, made once, and its text as an array.

    Args:
        request: not a beam.
        vocab_size: the model's.

    Attributes:
        are_complete: whether `draw` passes on every parameter that the request sets; otherwise the sampler must choose
            its tokens.
        takes_largest: whether the request takes the largest logit as it is, so that nothing is drawn.
    """

    def __init__(self, request: Request, vocab_size: int) -> None:
        params = request.params
        self._request = request
        self.are_complete = all(
            field.name in DRAWN_PARAMETERS
            or field.name in OTHER_PARAMETERS
            or getattr(params, field.name) == field.default
            for field in fields(params)
        )
        self._num_words = -(-vocab_size // _BITS)
        self._bad_words = [word for word in request.bad_words_token_ids if word[-1] < vocab_size]
        self._stop_token_ids = _token_ids(id_ for id_ in request.stop_token_ids if id_ < vocab_size)
        bias = dict(params.logit_bias)
        self._settings = DrawSettings(
            seed=request.seed,
            stream=request.index,
            sharpness=0.0 if params.temperature == 0 else sharpness(params.temperature),
            top_k=max(0, params.top_k),
            top_p=params.top_p,
            min_p=params.min_p,
            typical_p=params.typical_p,
            repetition_penalty=params.repetition_penalty,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            allowed=_mask(params.allowed_token_ids, vocab_size),
            bias_ids=_token_ids(bias) if bias else None,
            biases=np.array(list(bias.values())) if bias else None,
        )
        # Presence and frequency count in the output alone.
        self._with_prompt = params.repetition_penalty != 1
        self._needs_text = (
            self._with_prompt or params.presence_penalty != 0 or params.frequency_penalty != 0
        )
        self._text = _token_ids(request.prompt_token_ids if self._with_prompt else ())
        self._num_prompt_tokens = self._text_length = len(self._text)
        self.takes_largest = (
            params.temperature == 0
            and request.grammar is None
            and request.thinking_budget is None
            and not (bias or self._bad_words or self._needs_text or params.min_tokens)
            and params.allowed_token_ids is None
        )

    def draw(self, row: int, num_drafts: int) -> Draw:
        """The draw of the token after prompt, output and the first `num_drafts` drafts.

        Args:
            row: of the step's logits.
        """
        request = self._request
        position = request.num_known_tokens + num_drafts
        if (forced := self._forced_token(num_drafts)) is not None:
            return Draw(row, self._only(forced), position)
        return Draw(
            row,
            self._settings if request.grammar is None else self._by_grammar(num_drafts),
            position,
            self._forbidden(num_drafts),
            self._text_before(num_drafts) if self._needs_text else None,
            self._num_prompt_tokens,
        )

    def _forced_token(self, num_drafts: int) -> int | None:
        request = self._request
        if request.thinking_budget is None:
            return None
        try:
            answer = request.answer(num_drafts)
            return forced_token(request.thinking_budget, request.grammar, answer)
        except ValueError:
            return None  # the grammar has an error: see `_by_grammar`

    def _only(self, token_id: int) -> DrawSettings:
        """Settings with which nothing but one token can be drawn."""
        return replace(self._settings, allowed=_mask((token_id,), _BITS * self._num_words))

    def _by_grammar(self, num_drafts: int) -> DrawSettings:
        """The settings with the tokens that the grammar allows. None if it has an error, which is raised when
        the token is chosen."""
        request = self._request
        assert request.grammar is not None
        try:
            allowed = np.frombuffer(request.grammar.mask(request.answer(num_drafts)), "<u4")
        except ValueError:
            allowed = np.zeros(self._num_words, "<u4")
        if self._settings.allowed is not None:
            allowed = allowed & self._settings.allowed
        return replace(self._settings, allowed=allowed)

    def _forbidden(self, num_drafts: int) -> TokenIds | None:
        request = self._request
        params: SamplingParams = request.params
        too_short = request.num_output_tokens + num_drafts < params.min_tokens
        if not self._bad_words:
            return self._stop_token_ids if too_short else None
        end = request.num_known_tokens + num_drafts
        longest = max(map(len, self._bad_words))
        before = request.token_ids(max(0, end - longest + 1), end)
        completed = _token_ids(sorted(completions(self._bad_words, before)))
        return np.concatenate((completed, self._stop_token_ids)) if too_short else completed

    def _text_before(self, num_drafts: int) -> TokenIds:
        """A view, for this step."""
        request = self._request
        start = self._num_prompt_tokens
        output = request.output_token_ids[self._text_length - start :]
        drafts = request.draft_token_ids[:num_drafts]
        self._write(self._text_length, output)
        self._text_length += len(output)
        self._write(self._text_length, drafts)  # what follows will overwrite them
        return self._text[: self._text_length + num_drafts]

    def _write(self, start: int, token_ids: Sequence[int]) -> None:
        end = start + len(token_ids)
        if end > len(self._text):
            grown = np.empty(2 * end, np.int32)
            grown[:start] = self._text[:start]
            self._text = grown
        self._text[start:end] = token_ids


def _token_ids(token_ids: Iterable[int]) -> TokenIds:
    return np.array(list(token_ids), np.int32)


def _mask(token_ids: Sequence[int] | None, vocab_size: int) -> npt.NDArray[np.uint32] | None:
    if token_ids is None:
        return None
    allowed = np.zeros(-(-vocab_size // _BITS) * _BITS, np.bool_)
    allowed[list(token_ids)] = True
    return np.packbits(allowed, bitorder="little").view("<u4")
