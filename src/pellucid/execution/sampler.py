"""The sampler: chooses a token from one row of logits at a time, without state."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pellucid.backends.base import LogitRows
from pellucid.execution.candidates import Candidates, Logits, check_finite
from pellucid.execution.logprobs import TokenLogprob, TokenLogprobs, token_logprobs
from pellucid.execution.randomness import exponential_noise
from pellucid.execution.sampling_order import SamplingRow, Stage, sampling_stages
from pellucid.execution.selection import largest
from pellucid.execution.token_observation import (
    TokenObservation,
    observe_token,
)
from pellucid.scheduling.scheduler_output import BeamCandidate


@dataclass(frozen=True)
class SampledToken:
    """A choice and, if `SamplingParams.logprobs` asks, its log-probabilities.

    Attributes:
        chosen: of `token_id`; None if not asked for.
        top: the most likely tokens of the model's own distribution, in order.
    """

    token_id: int
    chosen: TokenLogprob | None = None
    top: tuple[TokenLogprob, ...] = ()


class NoTokenLeftError(ValueError):
    """Parameters that together forbid every token."""


class Sampler:
    """Turns a row of logits [V] into a token. Errors concern this row's request alone."""

    def sample(self, logits: Logits, row: SamplingRow, drawn: int | None = None) -> SampledToken:
        """Chooses the token at `row.position`.

        Args:
            logits: [V], float32 or float64.
            row: what the request asks for and its tokens so far.
            drawn: the token, if it has been drawn from these logits: log-probabilities may be missing.

        Raises:
            NonFiniteLogitsError: a logit is NaN or +inf, or all are -inf.
            NoTokenLeftError: the parameters forbid every token.
            ValueError: a penalty is too extreme for these logits.
        """
        if row.params.num_logprobs is None:
            if drawn is None and _takes_argmax(row):
                drawn = int(logits.argmax())
            if drawn is not None:
                check_finite(logits[drawn])  # the largest is a NaN, if there is one
                return SampledToken(drawn)

        return _choose(logits, row, self.distribution(logits, row), drawn)

    def observe(
        self,
        logits: Logits,
        row: SamplingRow,
        drawn: int | None = None,
    ) -> tuple[SampledToken, TokenObservation]:
        """As `sample`, and observes the choice. Arguments and errors are the same."""
        started = time.perf_counter()
        passed = [("logits", Candidates.of(logits))]
        for stage in sampling_stages(row):
            passed.append((stage.name, _apply(stage, passed[-1][1], row)))
        sampled = _choose(logits, row, passed[-1][1], drawn)
        observation = observe_token(logits, passed, sampled.token_id)
        return sampled, observation._replace(seconds=time.perf_counter() - started)

    def distribution(self, logits: Logits, row: SamplingRow) -> Candidates:
        """The distribution that `sample` draws from. Arguments and errors are the same."""
        candidates = Candidates.of(logits)
        for stage in sampling_stages(row):
            candidates = _apply(stage, candidates, row)
        return candidates

    def beam_candidates(
        self, logits: Logits, row: SamplingRow, count: int
    ) -> tuple[BeamCandidate, ...]:
        """The `count` best continuations for beam search, best first; among equals the lower token id first.

        The masks and penalties of `row` act on the model's log-probabilities, which are not
        normalised again: transformers' order. Arguments and errors are otherwise those of `sample`.
        """
        model = Candidates.of(logits)
        logprobs = model.logprobs
        processed = Candidates(model.token_ids, logprobs)
        for stage in sampling_stages(row):
            processed = _apply(stage, processed, row)
        top = processed.keep(largest(processed.logits, min(count, len(processed))))
        order = np.argsort(-top.logits, kind="stable")
        token_ids = top.token_ids[order].tolist()
        own = logprobs[np.searchsorted(model.token_ids, token_ids)].tolist()
        best = zip(token_ids, own, top.logits[order].tolist(), strict=True)
        return tuple(BeamCandidate(*candidate) for candidate in best)

    def prompt_logprobs(
        self, logits: LogitRows, next_token_ids: Sequence[int], num_top: int
    ) -> list[TokenLogprobs]:
        """Log-probabilities of tokens that were given, in the model's own distribution.

        Args:
            logits: [R, V].
            next_token_ids: [R] the token that follows each row.
            num_top: how many of the most likely tokens to give with each.

        Raises:
            NonFiniteLogitsError: a logit is NaN or +inf, or all of a row are -inf.
        """
        return [
            token_logprobs(logits[row], token_id, num_top)
            for row, token_id in enumerate(next_token_ids)
        ]


def _takes_argmax(row: SamplingRow) -> bool:
    """Greedy, and nothing comes before the temperature."""
    return row.params.temperature == 0 and next(sampling_stages(row)).name == "temperature"


def _choose(logits: Logits, row: SamplingRow, final: Candidates, drawn: int | None) -> SampledToken:
    token_id = _draw(final, row) if drawn is None else drawn
    if row.params.num_logprobs is None:
        return SampledToken(token_id)
    logprobs = token_logprobs(logits, token_id, row.params.num_logprobs, final)
    return SampledToken(token_id, logprobs.chosen, logprobs.top)


def _apply(stage: Stage, candidates: Candidates, row: SamplingRow) -> Candidates:
    left = stage.apply(candidates)
    if len(left):
        return left
    names = [active.name for active in sampling_stages(row)]
    together = ", ".join(names[: names.index(stage.name) + 1])
    raise NoTokenLeftError(f"{together}: these leave no token to sample")


def _draw(candidates: Candidates, row: SamplingRow) -> int:
    """The first to arrive of an exponential race: token i arrives at noise_i / weight_i.

    The winner is i with the probability of i, and is the arg max of log-probability plus Gumbel noise,
    which is -log of the exponential one (Gumbel 1954). Of equals the lower token id comes first.
    """
    if len(candidates) == 1:
        return int(candidates.token_ids[0])
    noise = exponential_noise(row.seed, row.stream, row.position, candidates.token_ids)
    with np.errstate(divide="ignore"):  # a weight of 0 never arrives
        arrivals = noise / candidates.odds.weights
    return int(candidates.token_ids[arrivals.argmin()])
