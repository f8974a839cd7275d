"""The events of tokens: what was observed of their choice, or their text alone."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import final

from pellucid.execution.logprobs import TokenLogprob
from pellucid.execution.token_observation import TokenObservation
from pellucid.observing.event_bus import EventBus
from pellucid.observing.events import Event, Token, Tokens, TokenSource, TokenText
from pellucid.observing.token_gaps import TokenGaps
from pellucid.scheduling.request import Taken
from pellucid.scheduling.scheduler_output import ScheduledRequest

NUM_KEPT_TEXTS = 4096  # of tokens, those used last


@final
class TokenEvents:
    """Makes the events of the tokens that requests take from steps, one step after the other.

    Args:
        show: the text of a token.
        bus: knows whose tokens subscribers watch.
    """

    def __init__(self, show: Callable[[int], str], bus: EventBus) -> None:
        self._show = lru_cache(NUM_KEPT_TEXTS)(show)
        self._bus = bus
        self._gaps = TokenGaps()

    def of_step(
        self,
        scheduled_requests: Sequence[ScheduledRequest],
        taken: Mapping[str, Taken],
        observed: Mapping[str, Sequence[TokenObservation]],
        now: float,
        before: Tokens | None = None,
    ) -> Iterable[Event]:
        """The events of a step.

        Args:
            taken: by request id, the tokens that it takes.
            observed: of some of these requests, the observation of each token.
            now: when they were sampled, seconds.
            before: the latest tokens, if they are in the log of steps; None: they were told here.
        """
        self._gaps.follow(before)
        told = tuple(taken)
        if self._bus.tokens_of is not None:
            told = tuple(filter(self._bus.watches, told))
        gaps_us = self._gaps.advance(told, now)
        show = self._show
        places = {
            request_id: (scheduled.end - scheduled.num_draft_tokens, scheduled.num_draft_tokens)
            for scheduled in scheduled_requests
            for request_id in scheduled.samplers
        }
        made: list[Event] = []
        for request_id, gap_us in zip(told, gaps_us, strict=True):
            position, num_drafts = places[request_id]
            token_ids, seen = taken[request_id].token_ids, observed.get(request_id)
            for index, token_id in enumerate(token_ids):
                source = token_source(index, len(token_ids), num_drafts)
                gap = 0 if index else gap_us  # all at the same time
                observation = None if seen is None else seen[index]
                made.append(
                    token_chosen(
                        request_id, position + index, token_id, source, gap, observation, show
                    )
                )
        return made

    def forget(self, request_id: str, before: Tokens | None = None) -> Iterable[Event]:
        """A request has ended. Makes no event, and is called behind those of its tokens.

        Args:
            before: as in `of_step`.
        """
        self._gaps.follow(before)
        self._gaps.forget(request_id)
        return ()


def token_source(index: int, num_tokens: int, num_drafts: int) -> TokenSource:
    """Where a token of a step came from. All tokens but the last one were drafts.

    Args:
        index: of the token among the `num_tokens` that the request takes from the step.
        num_drafts: drafts that the step verified.
    """
    if index < num_tokens - 1:
        return "draft"
    return "bonus" if 0 < num_drafts < num_tokens else "target"


def token_chosen(
    request_id: str,
    position: int,
    token_id: int,
    source: TokenSource,
    itl_us: int | None,
    observation: TokenObservation | None,
    show: Callable[[int], str],
) -> Token | TokenText:
    """The event of a token that a request takes from a step.

    Args:
        position: in the request's tokens, the prompt included.
        itl_us: since the token before; None: it is the first that is watched.
        observation: of its choice; None: there was no time for that.
        show: the text of a token.
    """
    if observation is None:
        return TokenText(request_id, position, token_id, show(token_id), source, itl_us)
    chosen = observation.logprobs.chosen

    def candidate(entry: TokenLogprob) -> tuple[int, str, float, float]:
        return entry.token_id, show(entry.token_id), entry.logprob, _final_probability(entry)

    return Token(
        req=request_id,
        pos=position,
        id=token_id,
        text=show(token_id),
        src=source,
        lp=chosen.logprob,
        p_final=_final_probability(chosen),
        rank=chosen.rank,
        ent_bits=observation.entropy_bits,
        cand=tuple(candidate(entry) for entry in observation.logprobs.top),
        rest_frac=observation.rest,
        funnel=tuple((stage.name, stage.num_kept, stage.kept_mass) for stage in observation.funnel),
        itl_us=itl_us,
    )


def _final_probability(entry: TokenLogprob) -> float:
    assert entry.final_logprob is not None
    return math.exp(entry.final_logprob)
