"""Log-probabilities of tokens: in the model's own distribution and in the final one."""

from typing import NamedTuple

import numpy as np

from pellucid.execution.candidates import Candidates, Logits
from pellucid.execution.selection import largest


class TokenLogprob(NamedTuple):
    """One token at one position.

    Attributes:
        logprob: in the model's own distribution, before any parameter; -inf if the model itself
            excludes the token.
        final_logprob: in the distribution that was sampled from; -inf if the token was excluded.
            None where nothing was sampled: in the prompt.
        rank: 1 for the largest logit of the model; of equal ones the lower token id comes first.
    """

    token_id: int
    logprob: float
    final_logprob: float | None
    rank: int


class TokenLogprobs(NamedTuple):
    """One position: its token, and the most likely tokens in order of rank."""

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...]


def token_logprobs(
    logits: Logits,
    token_id: int,
    num_top: int,
    final: Candidates | None = None,
    model: Candidates | None = None,
) -> TokenLogprobs:
    """Log-probabilities of `token_id` and of the `num_top` most likely tokens.

    Args:
        logits: [V] as the model gave them.
        token_id: the token that stands at this position.
        num_top: fewer are given if fewer have a probability.
        final: the distribution that was sampled from.
        model: the model's own distribution, if it is there already.

    Raises:
        NonFiniteLogitsError: a logit is NaN or +inf, or all are -inf.
    """
    own = Candidates.of(logits) if model is None else model

    def of(token_id: int, rank: int) -> TokenLogprob:
        final_logprob = None if final is None else final.logprob(token_id)
        return TokenLogprob(token_id, own.logprob(token_id), final_logprob, rank)

    top_ids = _top_token_ids(own, num_top)
    return TokenLogprobs(
        chosen=of(token_id, token_rank(logits, token_id)),
        top=tuple(of(top_id, rank) for rank, top_id in enumerate(top_ids, start=1)),
    )


def _top_token_ids(model: Candidates, count: int) -> list[int]:
    count = min(count, len(model))
    if not count:
        return []
    top = model.keep(largest(model.logits, count))
    order = np.argsort(-top.logits, kind="stable")
    return top.token_ids[order].tolist()  # type: ignore[no-any-return]


def token_rank(logits: Logits, token_id: int) -> int:
    """1 for the largest logit; of equal ones the lower token id comes first."""
    own = logits[token_id]
    return int(1 + np.count_nonzero(logits > own) + np.count_nonzero(logits[:token_id] == own))
