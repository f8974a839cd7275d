"""Why a token was chosen: the likeliest tokens, and how many tokens each sampling stage kept.

Computed from the same logits as the token, and only if a subscriber watches the request.
"""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np

from pellucid.backends.base import CompiledDecoder, LogitRows, RowQuestion, RowSummary
from pellucid.backends.drawing import sharpness
from pellucid.execution.candidates import Candidates, IntArray, Logits
from pellucid.execution.logprobs import TokenLogprob, TokenLogprobs, token_logprobs
from pellucid.execution.sampling_order import SamplingRow, Stage, sampling_stages
from pellucid.inputs.sampling_params import SamplingParams

NUM_CANDIDATES = 10
SUMMARIZED_STAGES = frozenset({"temperature", "top_k", "top_p", "min_p"})


class FunnelStage(NamedTuple):
    """The tokens that one stage kept.

    Attributes:
        name: "logits" for the model's own distribution, else the stage's parameter.
        num_kept: tokens left.
        kept_mass: probability of these in the distribution that entered the stage; 1 if the stage
            removed nothing.
    """

    name: str
    num_kept: int
    kept_mass: float


class TokenObservation(NamedTuple):
    """Why a token was chosen, for subscribers.

    Attributes:
        logprobs: of the token, and of the model's likeliest ones, in both distributions.
        entropy_bits: of the model's own distribution.
        rest: probability, by the model, of all tokens but the likeliest ones.
        funnel: each active stage, in order.
        seconds: time of the observation.
    """

    logprobs: TokenLogprobs
    entropy_bits: float
    rest: float
    funnel: tuple[FunnelStage, ...]
    seconds: float = 0.0


def observe_token(
    logits: Logits, passed: Sequence[tuple[str, Candidates]], token_id: int
) -> TokenObservation:
    """Observes a choice from the sampler's own stages.

    Args:
        logits: [V] that it was made from.
        passed: "logits" and the model's own distribution, then each active stage and what it left.
        token_id: the choice.
    """
    model, final = passed[0][1], passed[-1][1]
    logprobs = token_logprobs(logits, token_id, NUM_CANDIDATES, final, model)
    likeliest = np.array([entry.token_id for entry in logprobs.top])
    funnel = [FunnelStage(passed[0][0], len(model), 1.0)]
    for (_, before), (name, after) in pairwise(passed):
        funnel.append(FunnelStage(name, len(after), _kept_mass(before, after.token_ids)))
    return TokenObservation(
        logprobs,
        entropy_bits=model.entropy / math.log(2),
        rest=max(0.0, 1 - model.mass(likeliest)),
        funnel=tuple(funnel),
    )


def question_about(
    params: SamplingParams, stages: Iterable[Stage], token_id: int, vocab_size: int
) -> RowQuestion | None:
    """What `observe_drawn` has to know about the row of a token that a backend has drawn.

    Args:
        params: of the request.
        stages: that are active.
        token_id: the token.

    Returns:
        None where only `observe_token` knows: stages that are no truncation by likelihood.
    """
    if not SUMMARIZED_STAGES.issuperset(stage.name for stage in stages):
        return None
    is_greedy = params.temperature == 0
    factor = sharpness(1.0 if is_greedy else params.temperature)
    top_k = 1 if is_greedy else params.top_k  # which no truncation after it changes
    num_likeliest = min(NUM_CANDIDATES, vocab_size)
    return RowQuestion(token_id, num_likeliest, factor, top_k, params.top_p, params.min_p)


def observe_drawn(
    summary: RowSummary, params: SamplingParams, stages: Iterable[Stage], token_id: int
) -> TokenObservation:
    """As `observe_token`, from the backend's answer to `question_about`, whose arguments are the same.

    Log-probabilities, entropy and masses agree with the definition to six digits: weights are float32.
    """
    is_greedy = params.temperature == 0
    left = summary.everything
    funnel = [FunnelStage("logits", left.num, 1.0)]
    for name in (stage.name for stage in stages):
        before = left
        if is_greedy:
            left = summary.after_top_k
        elif name != "temperature":
            left = getattr(summary, f"after_{name}")
        mass = 1.0 if left.num == before.num else min(1.0, left.weight / before.weight)
        funnel.append(FunnelStage(name, left.num, mass))

    log_total, log_left = math.log(summary.total), math.log(left.weight)

    def logprob(token: int, logit: float, is_kept: bool, rank: int) -> TokenLogprob:
        difference = logit - summary.peak
        final = difference / (params.temperature or 1.0) - log_left if is_kept else -math.inf
        return TokenLogprob(token, difference - log_total, final, rank)

    top = tuple(logprob(*likely, rank) for rank, likely in enumerate(summary.likeliest, start=1))
    return TokenObservation(
        TokenLogprobs(logprob(token_id, summary.logit, summary.is_kept, summary.rank), top),
        entropy_bits=max(0.0, log_total - summary.weighted / summary.total) / math.log(2),
        rest=max(0.0, 1 - sum(math.exp(entry.logprob) for entry in top)),
        funnel=tuple(funnel),
    )


class DrawnToken(NamedTuple):
    """A token that a backend has drawn.

    Attributes:
        key: the request's id, and the row of the step's logits.
        row: what the token was drawn by.
    """

    key: tuple[str, int]
    row: SamplingRow
    token_id: int


Observations: TypeAlias = Mapping[tuple[str, int], TokenObservation]


def observe_drawn_tokens(
    decoder: CompiledDecoder, rows: LogitRows, drawn: Sequence[DrawnToken], started: float
) -> Observations:
    """Observes tokens by the decoder's summaries of their rows, by their keys. Those are missing that `observe_token`
    alone knows: stages that are no truncation by likelihood, logits that are not finite.

    Args:
        rows: of the step's logits.
        started: by `time.perf_counter`, when choosing them began.
    """
    asked: list[tuple[DrawnToken, list[Stage]]] = []
    questions = []
    for each in drawn:
        with suppress(Exception):  # the sampler, which looks at what is missing, has the error
            stages = list(sampling_stages(each.row))
            question = question_about(each.row.params, stages, each.token_id, decoder.vocab_size)
            if question is not None:
                asked.append((each, stages))
                questions.append((each.key[1], question))
    summaries = decoder.summarize_rows(rows, questions)
    observations: dict[tuple[str, int], TokenObservation] = {}
    for (each, stages), summary in zip(asked, summaries, strict=True):
        if summary is not None:
            with suppress(Exception):
                own = observe_drawn(summary, each.row.params, stages, each.token_id)
                observations[each.key] = own
    share = (time.perf_counter() - started) / max(1, len(observations))
    return {key: own._replace(seconds=share) for key, own in observations.items()}


def _kept_mass(before: Candidates, kept: IntArray) -> float:
    """1 if nothing was removed; rounding may not lift it above 1."""
    return 1.0 if len(kept) == len(before) else min(before.mass(kept), 1.0)
