"""Beam search over whole vocabularies in dense arrays, as transformers' `_beam_search` does it.

Written from its definition and independently of `pellucid.scheduling.beam_search`, in float64.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from pellucid.inputs.beam_search_params import BeamSearchParams

NOWHERE = -1e9  # the score of what does not exist: unused beams, unfinished sequences
Logprobs = npt.NDArray[np.float64]


def reference_beam_search(
    logprobs: Callable[[tuple[int, ...]], Logprobs],
    params: BeamSearchParams,
    max_tokens: int,
    stop_token_ids: frozenset[int],
) -> list[tuple[tuple[int, ...], float]]:
    """The n best (token ids, score), best first.

    Args:
        logprobs: of every token [V] after an output, finite.
    """
    width = params.beam_width
    num_kept = max(2, 1 + len(stop_token_ids)) * width
    running: list[tuple[int, ...]] = [()] * width
    running_scores = np.array([0.0] + [NOWHERE] * (width - 1))
    finished: list[tuple[int, ...]] = [()] * width
    finished_scores = np.full(width, NOWHERE)
    is_finished = np.zeros(width, dtype=bool)
    length = 0
    while True:
        scores = np.array([logprobs(own) for own in running]) + running_scores[:, None]
        top = np.argsort(-scores.ravel(), kind="stable")[:num_kept]
        vocab_size = scores.shape[1]
        kept = [(*running[i // vocab_size], int(i % vocab_size)) for i in top]
        kept_scores = scores.ravel()[top]
        length += 1
        ends = np.array([own[-1] in stop_token_ids or length >= max_tokens for own in kept])

        goes_on = np.argsort(-(kept_scores + ends * NOWHERE), kind="stable")[:width]
        running = [kept[i] for i in goes_on]
        running_scores = (kept_scores + ends * NOWHERE)[goes_on]

        ends_here = ends & (np.arange(num_kept) < width)
        kept_scores = kept_scores / length**params.length_penalty + ~ends_here * NOWHERE
        merged_scores = np.concatenate([finished_scores, kept_scores])
        best = np.argsort(-merged_scores, kind="stable")[:width]
        finished = [[*finished, *kept][i] for i in best]
        finished_scores = merged_scores[best]
        is_finished = np.concatenate([is_finished, ends_here])[best]

        to_the_end = params.early_stopping == "never" and params.length_penalty > 0
        at_best = (
            running_scores[0] / (max_tokens if to_the_end else length) ** params.length_penalty
        )
        may_improve = (at_best > np.where(is_finished, finished_scores.min(), NOWHERE)).any()
        full = is_finished.all() and params.early_stopping is True
        if not may_improve or full or ends.all():
            return list(zip(finished, finished_scores.tolist(), strict=True))[: params.num_results]
