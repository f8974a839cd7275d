"""Why a token was chosen: the likeliest tokens, and how many tokens each sampling stage kept.

Computed from the same logits as the token, and only if a subscriber watches the request.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from pellucid.execution.candidates import Candidates, IntArray, Logits
from pellucid.execution.logprobs import TokenLogprobs, token_logprobs

NUM_CANDIDATES = 10


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


def _kept_mass(before: Candidates, kept: IntArray) -> float:
    """1 if nothing was removed; rounding may not lift it above 1."""
    return 1.0 if len(kept) == len(before) else min(before.mass(kept), 1.0)
