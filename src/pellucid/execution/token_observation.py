"""Why a token was chosen: its rivals, and what each sampling stage left of them.

Computed from the very logits that were sampled from, and only if somebody watches.
"""

import math
from dataclasses import dataclass

import numpy as np

from pellucid.execution.candidates import Candidates, Logits
from pellucid.execution.logprobs import TokenLogprobs, token_logprobs
from pellucid.execution.sampling_order import SamplingRow, sampling_stages

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
    """

    logprobs: TokenLogprobs
    entropy_bits: float
    rest: float
    funnel: tuple[FunnelStage, ...]


def observe_token(logits: Logits, row: SamplingRow, token_id: int) -> TokenObservation:
    """Looks at a choice that `Sampler.sample` has made.

    Args:
        logits: [V] that it was made from.
        row: that it was made for.
        token_id: the choice.
    """
    model = final = Candidates.of(logits)
    funnel = [FunnelStage("logits", len(model), 1.0)]
    for stage in sampling_stages(row):
        before, final = final, stage.apply(final)
        funnel.append(FunnelStage(stage.name, len(final), _kept_mass(before, final)))
    logprobs = token_logprobs(logits, token_id, NUM_CANDIDATES, final, model)
    likeliest = model.indices(entry.token_id for entry in logprobs.top)
    return TokenObservation(
        logprobs,
        entropy_bits=max(0.0, -float(model.probabilities @ model.logprobs) / math.log(2)),
        rest=max(0.0, 1 - float(model.probabilities[likeliest].sum())),
        funnel=tuple(funnel),
    )


def _kept_mass(before: Candidates, after: Candidates) -> float:
    if len(after) == len(before):
        return 1.0
    kept = before.probabilities[np.searchsorted(before.token_ids, after.token_ids)]
    return min(float(kept.sum()), 1.0)  # rounding may lift it above 1
