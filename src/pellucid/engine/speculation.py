"""Speculation: asks for drafts before each step, and measures how many of them were right."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from pellucid.config import MAX_DRAFT_TOKENS, EngineConfig
from pellucid.event_bus import EventBus
from pellucid.events import DraftRound, Level, Speculating
from pellucid.execution.proposers.prompt_lookup import PromptLookup
from pellucid.execution.proposers.proposer import Proposer
from pellucid.scheduling.draft_policy import DraftOutcome, DraftPolicy
from pellucid.scheduling.request import Request
from pellucid.scheduling.scheduler_output import ScheduledRequest

_log = logging.getLogger(__name__)


@dataclass
class SpeculationStatistics:
    """What drafts have brought.

    Attributes:
        num_rounds: times that a request had drafts in a step.
        num_drafts: tokens that were guessed and scheduled.
        num_right: of these, tokens that became output.
        right_by_position: of these, first drafts, second ones and so on.
        seconds: of all steps of decodes, drafting included.
        won_seconds: that these steps would have taken more without drafts, by measured times.
        reason: why the next step has drafts, or none.
    """

    num_rounds: int = 0
    num_drafts: int = 0
    num_right: int = 0
    right_by_position: list[int] = field(default_factory=list)
    seconds: float = 0.0
    won_seconds: float = 0.0
    reason: str = ""

    @property
    def acceptance(self) -> float:
        """Share of the drafts that became output; 0 without any."""
        return self.num_right / self.num_drafts if self.num_drafts else 0.0

    @property
    def tokens_per_round(self) -> float:
        """Output tokens of a request in a step with drafts: at least 1."""
        return 1 + self.num_right / self.num_rounds if self.num_rounds else 1.0

    @property
    def speedup(self) -> float:
        """Against the same steps without drafts, by measured times; 1 is neither faster nor slower."""
        return 1 + self.won_seconds / self.seconds if self.seconds else 1.0


class Speculation:
    """Has the proposer make drafts, limits them by the policy, and counts how many were right.

    Args:
        proposer: guesses tokens.
        policy: decides how many.
        vocab_size: drafts hold token ids below it.
        clock: seconds, monotonic.
        bus: where events go.
    """

    def __init__(
        self,
        proposer: Proposer,
        policy: DraftPolicy,
        vocab_size: int,
        clock: Callable[[], float],
        bus: EventBus,
    ) -> None:
        self.statistics = SpeculationStatistics()
        self._proposer = proposer
        self._policy = policy
        self._vocab_size = vocab_size
        self._clock = clock
        self._bus = bus
        self._drafting_seconds = 0.0  # before the step under way

    def propose(self, running: Sequence[Request]) -> Mapping[str, Sequence[int]]:
        """Drafts for the next step, by request id. If the proposer fails, there are none.

        Args:
            running: all requests that run.
        """
        self._drafting_seconds = 0.0
        requests = [request for request in running if request.may_have_drafts]
        if not requests:
            return {}
        max_drafts = self._policy.max_drafts([request.request_id for request in requests])
        self._tell_reason()
        if not max_drafts:
            return {}
        started = self._clock()
        drafts: dict[str, list[int]] = {}
        try:
            wanted = [request for request in requests if request.request_id in max_drafts]
            for request_id, token_ids in self._proposer.propose(wanted, max_drafts).items():
                known = takewhile(range(self._vocab_size).__contains__, token_ids)
                drafts[request_id] = list(known)[: max_drafts.get(request_id, 0)]
        except Exception:
            _log.exception("no drafts in this step: the proposer failed")
            drafts = {}
        self._drafting_seconds = self._clock() - started
        return drafts

    def observe(
        self,
        scheduled_requests: Sequence[ScheduledRequest],
        token_ids: Mapping[str, Sequence[int]],
        seconds: float,
    ) -> None:
        """A step is over.

        Args:
            scheduled_requests: of the step, whose drafts are still theirs.
            token_ids: by request id, the tokens that were sampled.
            seconds: that the step took.
        """
        if not scheduled_requests:
            return
        rounds = [each for each in scheduled_requests if each.num_draft_tokens]
        outcomes = [self._outcome(each, token_ids) for each in rounds]
        if not all(each.request.is_decoding for each in scheduled_requests):
            return  # how long it took says nothing of drafts
        num_rows = sum(each.num_scheduled_tokens for each in scheduled_requests)
        won = self._policy.record(
            outcomes, len(scheduled_requests), num_rows, seconds, self._drafting_seconds
        )
        self.statistics.seconds += seconds + self._drafting_seconds
        self.statistics.won_seconds += won

    def _outcome(
        self, scheduled: ScheduledRequest, token_ids: Mapping[str, Sequence[int]]
    ) -> DraftOutcome:
        request_id, num_drafts = scheduled.request.request_id, scheduled.num_draft_tokens
        drafts = scheduled.request.draft_token_ids
        sampled = token_ids.get(request_id, ())
        num_right = sum(
            1
            for _ in takewhile(lambda pair: pair[0] == pair[1], zip(drafts, sampled, strict=False))
        )
        statistics = self.statistics
        statistics.num_rounds += 1
        statistics.num_drafts += num_drafts
        statistics.num_right += num_right
        by_position = statistics.right_by_position
        by_position += [0] * (num_right - len(by_position))
        for position in range(num_right):
            by_position[position] += 1
        if self._bus.wants(Level.STEP):
            chosen = sampled[num_right] if num_right < min(num_drafts, len(sampled)) else None
            self._bus.emit(DraftRound(request_id, tuple(drafts), num_right, chosen))
        return DraftOutcome(request_id, min(num_right + 1, num_drafts), num_right)

    def _tell_reason(self) -> None:
        if self._policy.reason.partition(":")[0] != self.statistics.reason.partition(":")[0]:
            if self._bus.active:
                self._bus.emit(Speculating(self._policy.reason))
        self.statistics.reason = self._policy.reason


def make_speculation(
    config: EngineConfig,
    vocab_size: int,
    clock: Callable[[], float],
    bus: EventBus,
    proposer: Proposer | None = None,
    draft_model: Proposer | None = None,
) -> Speculation | None:
    """The speculation that `config` asks for; None if it is off.

    Args:
        proposer: makes the drafts, in place of the proposer that `config` names.
        draft_model: makes the drafts, in place of prompt lookup.
    """
    if proposer is not None:
        policy = DraftPolicy(MAX_DRAFT_TOKENS, decides=False)
    elif config.speculation == "off":
        return None
    elif config.speculation == "draft" and draft_model is None:
        raise ValueError("speculation='draft': needs a draft model; LLMEngine.from_config loads it")
    else:
        proposer = PromptLookup() if draft_model is None else draft_model
        policy = DraftPolicy(config.num_draft_tokens, decides=config.speculation == "auto")
    return Speculation(proposer, policy, vocab_size, clock, bus)
