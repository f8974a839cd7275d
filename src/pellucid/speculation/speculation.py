"""Speculation: asks for drafts before each step, and measures how many of them were right."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from types import MappingProxyType
from typing import NamedTuple

from pellucid.execution.model_runner import StepResult
from pellucid.facts.model_config import ModelConfig
from pellucid.inputs.config import MAX_DRAFT_TOKENS, EngineConfig
from pellucid.observing.event_bus import EventBus
from pellucid.observing.events import DraftRound, DraftStep, Level, Speculating, to_us
from pellucid.outputs import SpeculationStatistics
from pellucid.scheduling.request import Request, Taken
from pellucid.scheduling.scheduler_output import ScheduledRequest
from pellucid.speculation.draft_comparison import compare_drafts
from pellucid.speculation.draft_policy import DecodeStep, DraftOutcome, DraftPolicy, Verdict
from pellucid.speculation.proposers.prompt_lookup import PromptLookup
from pellucid.speculation.proposers.proposer import Proposer

NO_DRAFTS: Mapping[str, Sequence[int]] = MappingProxyType({})

_log = logging.getLogger(__name__)


class Drafting(NamedTuple):
    """What came before a step with or without drafts.

    Attributes:
        seconds: that it took to decide and to make drafts.
        num_skipped: steps since the decision before, for which nothing was decided.
        is_decided: False: this is such a step itself.
    """

    seconds: float = 0.0
    num_skipped: int = 0
    is_decided: bool = True


NO_DRAFTING = Drafting()


@dataclass(eq=False)
class Speculation:
    """Has the proposer make drafts, limits them by the policy, and counts how many were right.

    Args:
        proposer: guesses tokens.
        policy: decides how many.
        vocab_size: drafts hold token ids below it.
        clock: seconds, monotonic.
        bus: where events go.

    Attributes:
        drafting: of the last call of `propose`.
    """

    _proposer: Proposer
    _policy: DraftPolicy
    _vocab_size: int
    _clock: Callable[[], float]
    _bus: EventBus
    _statistics: SpeculationStatistics = field(default_factory=SpeculationStatistics)
    _newest: Request | None = None  # of the running requests at the last decision
    _num_skipped: int = 0  # steps since the last decision
    _skipped_before: int = 0  # steps between the last two decisions
    _verdict: Verdict | None = None  # of the last event `Speculating`
    drafting: Drafting = NO_DRAFTING

    @property
    def statistics(self) -> SpeculationStatistics:
        """The counters so far."""
        self._statistics.reason = self._policy.reason
        return self._statistics

    def propose(self, running: Sequence[Request]) -> Mapping[str, Sequence[int]]:
        """Drafts for the next step, by request id. If the proposer fails, there are none.

        Args:
            running: all requests that run, and that the step may have.
        """
        drafts, seconds = NO_DRAFTS, 0.0
        newest = running[-1] if running else None
        if self._num_skipped < self._policy.backoff and newest is self._newest:
            self._num_skipped += 1
        elif requests := [request for request in running if request.may_have_drafts]:
            started = self._clock()
            self._newest = newest
            self._skipped_before, self._num_skipped = self._num_skipped, 0
            drafts = self._ask(requests)
            seconds = self._clock() - started
        self.drafting = Drafting(seconds, self._skipped_before, not self._num_skipped)
        return drafts

    def _ask(self, requests: Sequence[Request]) -> Mapping[str, Sequence[int]]:
        """Asks the policy how many drafts there may be, and the proposer for as many."""
        max_drafts = self._policy.max_drafts([request.request_id for request in requests])
        self._emit_verdict()
        if not max_drafts:
            return NO_DRAFTS
        wanted = [request for request in requests if request.request_id in max_drafts]
        drafts: dict[str, list[int]] = {}
        try:
            for request_id, token_ids in self._proposer.propose(wanted, max_drafts).items():
                known = takewhile(range(self._vocab_size).__contains__, token_ids)
                drafts[request_id] = list(known)[: max_drafts.get(request_id, 0)]
        except Exception:
            _log.exception("no drafts in this step: the proposer failed")
            return NO_DRAFTS
        return drafts

    def forget(self, requests: Sequence[Request]) -> None:
        """Forgets requests that have ended."""
        try:
            self._proposer.forget(requests)
        except Exception:
            _log.exception("the proposer of drafts could not forget requests")

    def observe(
        self,
        scheduled_requests: Sequence[ScheduledRequest],
        result: StepResult,
        taken: Mapping[str, Taken],
        seconds: float,
        drafting: Drafting,
    ) -> None:
        """Counts the right drafts of a step that was computed, and records the step's time for the policy.

        Args:
            scheduled_requests: the step's; `Scheduler.update` has not removed their drafts yet.
            result: the step's.
            taken: by request id, the tokens that it added.
            seconds: time of forward and sampling.
            drafting: as it was when the step was scheduled.
        """
        if not (drafting.is_decided and scheduled_requests):
            return
        outcomes = [
            self._outcome(each, result, taken)
            for each in scheduled_requests
            if each.num_draft_tokens
        ]
        plain = won = None
        # The time of a step with prompts does not show the cost of drafts.
        if all(each.is_decoding for each in scheduled_requests):
            num_requests = len(scheduled_requests)
            step = DecodeStep(
                num_requests,
                sum(each.num_draft_tokens for each in scheduled_requests),
                sum(each.num_scheduled_tokens for each in scheduled_requests),
                seconds,
                drafting.seconds,
                drafting.num_skipped,
            )
            won = self._policy.record(outcomes, step)
            # The steps since the decision before this one took about as long.
            self._statistics.seconds += (1 + drafting.num_skipped) * seconds + drafting.seconds
            self._statistics.won_seconds += won
            self._skipped_before = 0
            plain = self._policy.step_seconds(num_requests)
        if outcomes and self._bus.wants(Level.STEP):
            self._bus.emit(
                DraftStep(
                    n_req=len(outcomes),
                    n_draft=sum(each.num_draft_tokens for each in scheduled_requests),
                    n_right=sum(outcome.num_right for outcome in outcomes),
                    draft_us=to_us(drafting.seconds),
                    step_us=to_us(seconds),
                    plain_us=None if plain is None else to_us(plain),
                    won_us=None if won is None else to_us(won),
                )
            )

    def _outcome(
        self, scheduled: ScheduledRequest, result: StepResult, taken: Mapping[str, Taken]
    ) -> DraftOutcome:
        """Counts a request's right drafts."""
        drafts = scheduled.draft_token_ids
        sampled = taken.get(scheduled.request_id, Taken(())).token_ids
        num_right = 0
        for draft, token_id in zip(drafts, sampled, strict=False):
            if draft != token_id:
                break
            num_right += 1
        statistics = self._statistics
        statistics.num_rounds += 1
        statistics.num_drafts += len(drafts)
        statistics.num_right += num_right
        by_position = statistics.right_by_position
        by_position += [0] * (num_right - len(by_position))
        for position in range(num_right):
            by_position[position] += 1
        if self._bus.wants(Level.STEP):
            self._emit_round(scheduled, result, sampled, num_right)
        num_verified = min(num_right + 1, len(drafts))
        return DraftOutcome(scheduled.request_id, num_verified, num_right)

    def _emit_round(
        self,
        scheduled: ScheduledRequest,
        result: StepResult,
        sampled: Sequence[int],
        num_right: int,
    ) -> None:
        name, drafts = scheduled.request_id, tuple(scheduled.draft_token_ids)
        comparison = None
        if (targets := result.draft_targets.get(name)) is not None:
            comparison = compare_drafts(drafts, targets, self._proposer.distributions(name))
        is_wrong = num_right < min(len(drafts), len(sampled))
        self._bus.emit(
            DraftRound(
                req=name,
                draft=drafts,
                n_right=num_right,
                chosen=sampled[num_right] if is_wrong else None,
                pos=scheduled.end - len(drafts),
                p_target=comparison.by_target if comparison else None,
                p_draft=comparison.by_proposer if comparison else None,
                overlap=comparison.overlaps if comparison else None,
                leviathan_tok=comparison.num_expected if comparison else None,
            )
        )

    def _emit_verdict(self) -> None:
        if self._policy.verdict is not self._verdict:
            self._verdict = self._policy.verdict
            if self._bus.active:
                self._bus.emit(Speculating(self._policy.reason, self._policy.acceptance))


def make_speculation(
    config: EngineConfig,
    model_config: ModelConfig,
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
    recomputes = bool(model_config.states)
    if proposer is not None:
        policy = DraftPolicy(MAX_DRAFT_TOKENS, False, recomputes)
    elif config.speculation == "off" or (config.speculation == "auto" and not config.use_kv_cache):
        return None  # the loop without a cache is a baseline for comparisons
    elif config.speculation == "draft" and draft_model is None:
        raise ValueError("speculation='draft': needs a draft model; LLMEngine.from_config loads it")
    else:
        if draft_model is None:  # answers are shared where prompts are
            proposer = PromptLookup(config.enable_prefix_caching and config.use_kv_cache)
        else:
            proposer = draft_model
        decides = config.speculation == "auto"
        policy = DraftPolicy(config.num_draft_tokens, decides, recomputes)
    return Speculation(proposer, policy, model_config.vocab_size, clock, bus)
