"""How the tokens of a request are drawn, for backends that draw them within their step."""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import cast

import numpy as np

from pellucid.backends.drawing import DrawSettings, DrawTable, TokenIds, TokenMask, sharpness
from pellucid.execution.request_state import RequestState
from pellucid.execution.sampling_order import PARAMETERS, SamplingRow
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.scheduling.scheduler_output import StartedRequest

_BITS = 32
# What the native draw knows (csrc/draw.cpp) of `PARAMETERS`, and what the draws and the stages of others look at.
DRAWN_PARAMETERS = frozenset(
    (
        *(each.name for each in PARAMETERS if each.name in DrawSettings.__annotations__),
        *("structured_outputs", "allowed_token_ids", "bad_words", "logit_bias", "temperature"),
        *("min_tokens", "thinking_token_budget", "seed", "stop_token_ids", "ignore_eos"),
    )
)
# Those that do not decide which token comes next.
OTHER_PARAMETERS = frozenset(
    (
        *("n", "best_of", "logprobs", "prompt_logprobs", "max_tokens", "max_time"),
        *("stop", "include_stop_str_in_output", "stop_in_reasoning", "skip_special_tokens"),
    )
)


def is_drawn_natively(params: SamplingParams) -> bool:
    """Whether the native draw knows all that decides which token comes next. A parameter that nobody has told it of
    is not among that, so the sampler draws."""
    return all(
        field.name in DRAWN_PARAMETERS
        or field.name in OTHER_PARAMETERS
        or getattr(params, field.name) == field.default
        for field in fields(params)
    )


class RequestDraws:
    """The settings of one request's draws, made once, and its text as an array.

    Args:
        state: of the request, which is no beam.
        vocab_size: the model's.

    Attributes:
        are_complete: whether the native draw knows every parameter that the request sets; otherwise the sampler must
            choose its tokens.
        takes_largest: whether the request takes the largest logit as it is, so that nothing is drawn.
    """

    def __init__(self, state: RequestState, vocab_size: int) -> None:
        request, params = state.started, state.started.params
        self._state = state
        self._vocab_size = vocab_size
        self.are_complete = is_drawn_natively(params)
        self._stop_token_ids = _token_ids(id_ for id_ in request.stop_token_ids if id_ < vocab_size)
        self._settings = _settings(request)
        self._allowed: TokenMask | None = None
        if params.allowed_token_ids is not None:
            self._allowed = self._mask(params.allowed_token_ids)
        # Presence and frequency count in the output alone.
        with_prompt = "repetition_penalty" in self._settings
        self._needs_text = with_prompt or bool(
            self._settings.keys() & {"presence_penalty", "frequency_penalty"}
        )
        self._text = _token_ids(request.prompt_token_ids if with_prompt else ())
        self._num_prompt_tokens = self._text_length = len(self._text)
        if with_prompt:
            self._settings["num_prompt_tokens"] = self._num_prompt_tokens
        self._is_ruled = bool(
            request.grammar is not None
            or request.thinking_budget is not None
            or request.bad_words_token_ids
            or params.min_tokens
        )
        self.takes_largest = params.temperature == 0 and not (
            self._is_ruled
            or self._needs_text
            or self._allowed is not None
            or "bias_ids" in self._settings
        )

    def add_to(self, draws: DrawTable, row: int, num_drafts: int) -> None:
        """Adds the draw of the token after prompt, output and the first `num_drafts` drafts.

        Args:
            row: of the step's logits.
        """
        allowed, forbidden = self._allowed, None
        if self._is_ruled:
            place = self._state.row(num_drafts)
            if (forced := _forced_token(place)) is not None:
                draws.add(row, self._settings, place.position, self._mask((forced,)))
                return
            if place.grammar is not None:
                allowed = self._by_grammar(place)
            forbidden = self._forbidden(place)
        position = (
            len(self._state.started.prompt_token_ids) + self._state.num_output_tokens + num_drafts
        )
        text = self._text_before(num_drafts) if self._needs_text else None
        draws.add(row, self._settings, position, allowed, forbidden, text)

    def _by_grammar(self, place: SamplingRow) -> TokenMask:
        """The tokens that the grammar allows too; none if it has an error, which is raised when the token is chosen."""
        try:
            allowed = np.frombuffer(place.mask, "<u4")
        except ValueError:
            allowed = self._mask(())
        return allowed if self._allowed is None else allowed & self._allowed

    def _forbidden(self, place: SamplingRow) -> TokenIds | None:
        too_short = len(place.output_token_ids) < place.params.min_tokens
        if not place.bad_words_token_ids:
            return self._stop_token_ids if too_short else None
        ends = _token_ids(sorted(end for end in place.bad_word_ends if end < self._vocab_size))
        return np.concatenate((ends, self._stop_token_ids)) if too_short else ends

    def _text_before(self, num_drafts: int) -> TokenIds:
        """A view, for this step."""
        state, num_prompt_tokens = self._state, self._num_prompt_tokens
        end = state.num_output_tokens + num_drafts
        self._write(
            self._text_length, state.output_token_ids[self._text_length - num_prompt_tokens : end]
        )
        # What follows will overwrite the others.
        self._text_length = num_prompt_tokens + state.num_settled_tokens
        return self._text[: num_prompt_tokens + end]

    def _write(self, start: int, token_ids: Sequence[int]) -> None:
        end = start + len(token_ids)
        if end > len(self._text):
            grown = np.empty(2 * end, np.int32)
            grown[:start] = self._text[:start]
            self._text = grown
        self._text[start:end] = token_ids

    def _mask(self, token_ids: Sequence[int]) -> TokenMask:
        allowed = np.zeros(-(-self._vocab_size // _BITS) * _BITS, np.bool_)
        allowed[list(token_ids)] = True
        return np.packbits(allowed, bitorder="little").view("<u4")


def _settings(request: StartedRequest) -> DrawSettings:
    params = request.params
    settings = DrawSettings(
        seed=request.seed,
        stream=request.stream,
        sharpness=0.0 if params.temperature == 0 else sharpness(params.temperature),
    )
    texts = request.prompt_token_ids, request.output_token_ids
    place = SamplingRow(params, *texts, request.seed, request.stream)
    numbers = {  # settings that have the names of their parameters
        parameter.name: getattr(params, parameter.name)
        for parameter in PARAMETERS
        if parameter.name in DrawSettings.__annotations__ and parameter.is_set(place)
    }
    settings.update(cast(DrawSettings, numbers))
    if bias := dict(params.logit_bias):
        settings["bias_ids"], settings["biases"] = _token_ids(bias), np.array(list(bias.values()))
    return settings


def _forced_token(place: SamplingRow) -> int | None:
    try:
        return place.forced_token
    except ValueError:
        return None  # the grammar has an error: see `RequestDraws._by_grammar`


def _token_ids(token_ids: Iterable[int]) -> TokenIds:
    return np.array(list(token_ids), np.int32)
