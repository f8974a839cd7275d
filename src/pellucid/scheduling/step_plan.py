"""A step while the scheduler decides on it."""

from pellucid.scheduling.request import Request
from pellucid.scheduling.scheduler_output import ScheduledRequest, StartedRequest


class StepPlan:
    """A step while the scheduler decides on it; a request can be taken back.

    Args:
        num_tokens: that the step may have.
        num_extra_logits: rows of logits that it may have beside one for each request.

    Attributes:
        budget: tokens that may still be scheduled.
        draft_budget: drafts that may still be scheduled without taking another decode's place.
        extra_logits: rows of logits that may still be asked for, beside one for each request.
        scheduled: what each request has been given so far, by its id.
        started: requests that execution does not know yet.
        num_reserved_seats: siblings that will be running when the step has been computed.
        preempted: who had to make room so far.
        errors: why requests end with the step, by id.
    """

    def __init__(self, num_tokens: int, num_extra_logits: int) -> None:
        self.budget = self.draft_budget = num_tokens
        self.extra_logits = num_extra_logits
        self.num_reserved_seats = 0
        self.preempted: list[Request] = []
        self.scheduled: dict[str, ScheduledRequest] = {}
        self.started: list[StartedRequest] = []
        self.errors: dict[str, Exception] = {}

    def add(self, scheduled: ScheduledRequest) -> None:
        self.scheduled[scheduled.request_id] = scheduled
        num_scheduled_tokens = scheduled.end - scheduled.start
        self.budget -= num_scheduled_tokens
        if num_scheduled_tokens > 1:  # most steps are decodes of one token each
            self.draft_budget -= scheduled.num_draft_tokens
            self.extra_logits -= scheduled.num_extra_logits
        if scheduled.samplers:
            self.num_reserved_seats += len(scheduled.samplers) - 1

    def introduce(self, request: Request) -> None:
        """Tells execution of a request that it does not know yet."""
        request.is_introduced = True
        self.started.append(request.started())

    def drop(self, request: Request) -> ScheduledRequest | None:
        """Takes back what the request has been given in this step, if anything, and returns it."""
        scheduled = self.scheduled.pop(request.request_id, None)
        if scheduled is not None:
            self.budget += scheduled.num_scheduled_tokens
            self.draft_budget += scheduled.num_draft_tokens
            self.extra_logits += scheduled.num_extra_logits
            if scheduled.samplers:
                self.num_reserved_seats -= len(scheduled.samplers) - 1
        return scheduled
