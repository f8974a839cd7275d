"""A step while the scheduler decides on it."""

from pellucid.scheduling.request import Request
from pellucid.scheduling.scheduler_output import ScheduledRequest, SchedulerOutput


class StepPlan:
    """Collects shares; one can be taken back while the step is not decided.

    Attributes:
        budget: tokens that may still be scheduled.
        draft_budget: drafts that may still be scheduled without taking another decode's place.
        num_reserved_seats: requests that will be running when the step has been computed.
        preempted: who had to make room so far.
    """

    def __init__(self, budget: int) -> None:
        self.budget = self.draft_budget = budget
        self.num_reserved_seats = 0
        self.preempted: list[Request] = []
        self._shares: dict[str, ScheduledRequest] = {}

    def add(self, share: ScheduledRequest) -> None:
        self._shares[share.request.request_id] = share
        self.budget -= share.num_scheduled_tokens
        if len(share.samplers) > 1:
            self.num_reserved_seats += len(share.samplers) - 1

    def drop(self, request: Request) -> None:
        """Takes back what the request has been given in this step, if anything."""
        share = self._shares.pop(request.request_id, None)
        if share is not None:
            self.budget += share.num_scheduled_tokens
            if share.samplers:
                self.num_reserved_seats -= len(share.samplers) - 1

    def output(self) -> SchedulerOutput:
        return SchedulerOutput(tuple(self._shares.values()), tuple(self.preempted))
