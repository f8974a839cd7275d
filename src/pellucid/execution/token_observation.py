"""Why a token was chosen: the likeliest tokens, and how many tokens each sampling stage kept.

Computed from the same logits as the token, and only if a subscriber watches the request.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from pellucid.execution.candidates import Candidates, IntArray, Logits
from pellucid.execution.logprobs import TokenLogprob, TokenLogprobs, token_logprobs, token_rank
from pellucid.execution.odds import MASS_UNIT, MIN_EXPONENT, Odds, mass_to_reach, sharpness
from pellucid.execution.sampling_order import Stage
from pellucid.execution.selection import largest, shortest_prefix
from pellucid.sampling_params import SamplingParams

NUM_CANDIDATES = 10
NUM_LIKELIEST = 4096  # among which `observe_drawn` looks for what truncation keeps
# Logits that are worked on at a time: they stay in the second cache, and their memory is used again. Whole rows
# of a large vocabulary are new pages for each operation, which takes longer than the operation.
CHUNK = 1 << 14


@dataclass(frozen=True)
class FunnelStage:
    """What one stage left.

    Attributes:
        name: "logits" for the model's own distribution, else the stage's parameter.
        num_kept: tokens left.
        kept_mass: probability of these in the distribution that entered the stage; 1 if the stage
            removed nothing.
    """

    name: str
    num_kept: int
    kept_mass: float


@dataclass(frozen=True)
class TokenObservation:
    """A choice, seen from all sides.

    Attributes:
        logprobs: of the token, and of the model's likeliest ones, in both distributions.
        entropy_bits: of the model's own distribution.
        rest: probability, by the model, of all tokens but the likeliest ones.
        funnel: each active stage, in order.
        seconds: that the observation took.
    """

    logprobs: TokenLogprobs
    entropy_bits: float
    rest: float
    funnel: tuple[FunnelStage, ...]
    seconds: float = 0.0


def observe_token(
    logits: Logits, passed: Sequence[tuple[str, Candidates]], token_id: int
) -> TokenObservation:
    """Looks at a choice.

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


def observe_drawn(
    logits: Logits, params: SamplingParams, stages: Iterable[Stage], token_id: int
) -> TokenObservation | None:
    """What `observe_token` says of a token that was drawn, in a fraction of the time: the vocabulary is gone
    through in chunks, and truncation is looked for among the likeliest tokens.

    Args:
        logits: [V] that it was drawn from.
        params: of the request.
        stages: that are active.
        token_id: the token.

    Returns:
        None where only `observe_token` knows: stages before the temperature, or a truncation that keeps many.
    """
    temperature = params.temperature
    peak = float(logits.max())
    if not (math.isfinite(peak) and float(logits.min()) > -math.inf):
        return None
    total, weighted, scaled_total = _sums(logits, peak, temperature or 1.0)
    vocab_size = len(logits)
    likeliest = np.flatnonzero(largest(logits, min(NUM_LIKELIEST, vocab_size)))
    funnel = [FunnelStage("logits", vocab_size, 1.0)]
    kept: Candidates | None = None  # None: the whole vocabulary
    for stage in stages:
        mass = 1.0
        if kept is not None:
            before, kept = kept, stage.apply(kept)
            mass = _kept_mass(before, kept.token_ids)
        elif stage.name == "temperature" and temperature == 0:
            kept = Candidates(np.array([logits.argmax()]), np.zeros(1))
            mass = 1 / total
        elif stage.name != "temperature":
            token_ids = _truncated(stage.name, logits, params, peak, likeliest, scaled_total)
            if token_ids is None:
                return None
            if len(token_ids) < vocab_size:
                own = logits[token_ids].astype(np.float64)
                scaled = (own - peak) / temperature
                kept = Candidates(token_ids, scaled, Odds.of(own, temperature))
                mass = min(1.0, float(np.exp(scaled).sum()) / scaled_total)
        funnel.append(FunnelStage(stage.name, vocab_size if kept is None else len(kept), mass))

    def logprob(token: int, rank: int) -> TokenLogprob:
        difference = float(logits[token]) - peak
        alone = difference / (temperature or 1.0) - math.log(scaled_total)
        final = alone if kept is None else kept.logprob(token)
        return TokenLogprob(token, difference - math.log(total), final, rank)

    top = likeliest[largest(logits[likeliest], min(NUM_CANDIDATES, vocab_size))]
    top = top[np.argsort(-logits[top], kind="stable")]
    candidates = tuple(logprob(token, rank) for rank, token in enumerate(top.tolist(), 1))
    return TokenObservation(
        TokenLogprobs(logprob(token_id, token_rank(logits, token_id)), candidates),
        entropy_bits=max(0.0, math.log(total) - weighted / total) / math.log(2),
        rest=max(0.0, 1 - sum(math.exp(entry.logprob) for entry in candidates)),
        funnel=tuple(funnel),
    )


def _sums(logits: Logits, peak: float, temperature: float) -> tuple[float, float, float]:
    """Sums over a row, d being logit - peak: of e^d, of d e^d, and of e^(d / temperature)."""
    total = weighted = scaled = 0.0
    for start in range(0, len(logits), CHUNK):
        differences = logits[start : start + CHUNK].astype(np.float64)
        differences -= peak
        weights = np.exp(differences)
        total += float(weights.sum())
        weights *= differences
        weighted += float(weights.sum())
        if temperature != 1:
            differences /= temperature
            scaled += float(np.exp(differences, out=differences).sum())
    return total, weighted, total if temperature == 1 else scaled


def _truncated(
    stage: str,
    logits: Logits,
    params: SamplingParams,
    peak: float,
    likeliest: IntArray,
    total: float,
) -> IntArray | None:
    """The token ids that the first truncation keeps; None if it may keep others than the likeliest.

    Args:
        likeliest: the `NUM_LIKELIEST` likeliest tokens.
        total: sum of e^((logit - peak) / temperature) over the row.
    """
    vocab_size = len(logits)
    if stage == "top_k":
        if params.top_k >= vocab_size:
            return np.arange(vocab_size)
        return np.flatnonzero(largest(logits, params.top_k))
    if stage not in ("top_p", "min_p") or vocab_size <= NUM_LIKELIEST:
        return None
    odds = Odds.of(logits[likeliest].astype(np.float64), params.temperature)
    if stage == "min_p":
        chosen = odds.weights >= np.float32(params.min_p)
        return None if chosen.all() else likeliest[chosen]
    masses = odds.masses
    held = float(masses.sum())
    # All masses of the row sum to this, but for what each loses or gains by rounding. Where the same tokens
    # reach both bounds, nobody needs the exact sum.
    about, slack = params.top_p * total / MASS_UNIT, vocab_size * MASS_UNIT / 2 + 1e-5
    if held >= about * (1 + slack):
        low, high = (
            shortest_prefix(-odds.logits, masses, about * bound) for bound in (1 - slack, 1 + slack)
        )
        if (low == high).all():
            return likeliest[low]
    target = mass_to_reach(params.top_p, np.array([_total_mass(logits, params.temperature, peak)]))
    if held >= target:
        return likeliest[shortest_prefix(-odds.logits, masses, target)]
    whole = Odds.of(logits.astype(np.float64), params.temperature)
    return np.flatnonzero(shortest_prefix(-whole.logits, whole.masses, target))


def _total_mass(logits: Logits, temperature: float, peak: float) -> float:
    """Of a row; whole numbers, so the order of the sum does not matter."""
    factor, total = np.float32(sharpness(temperature)), 0.0
    for start in range(0, len(logits), CHUNK):
        own = logits[start : start + CHUNK].astype(np.float32)
        with np.errstate(over="ignore"):
            exponents = (own - np.float32(peak)) * factor
        total += float(Odds(own, np.maximum(exponents, np.float32(MIN_EXPONENT))).masses.sum())
    return total


def _kept_mass(before: Candidates, kept: IntArray) -> float:
    """1 if nothing was removed; rounding may not lift it above 1."""
    return 1.0 if len(kept) == len(before) else min(before.mass(kept), 1.0)
