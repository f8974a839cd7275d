"""What a caller learns of the requests of other callers."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from pellucid.observing import events
from pellucid.server.api_keys import Caller, Role
from pellucid.server.completion_id import call_id_in
from pellucid.server.request_records import CompletionRecord, RequestRecords
from pellucid.server.waiting_line import RequestsAhead

OTHER = "other"  # in place of the ids of other callers' requests


@dataclass(frozen=True)
class Visibility:
    """Admins see everything. Other callers see no ids of others; isolated ones see nothing that tells whether there are
    others, but for the times and the room that their own requests got.

    Attributes:
        records: know the owners of requests.
        isolates: callers are isolated.
    """

    records: RequestRecords
    isolates: bool

    def hides_others(self, viewer: Caller) -> bool:
        """Whether the caller must not learn that there are others."""
        return self.isolates and viewer.role is not Role.ADMIN

    def is_own(self, request_id: str, viewer: Caller) -> bool:
        """Whether a request or completion, by the engine's name, is the caller's."""
        return self.records.find(call_id_in(request_id), viewer) is not None

    def ahead(self, ahead: RequestsAhead, viewer: Caller) -> RequestsAhead:
        """What a caller sees of the line before a request."""
        return RequestsAhead(ahead.own, 0) if self.hides_others(viewer) else ahead

    def shown(self, event: events.Event, viewer: Caller) -> events.Event:
        """What a caller sees of an event about a request of its own."""
        if viewer.role is Role.ADMIN:
            return event
        eyes = self._eyes(viewer)
        if isinstance(event, events.RequestStateChanged):
            return eyes.change(event)
        if isinstance(event, events.PrefixMatched):
            return eyes.prefix(event)
        if isinstance(event, events.Preempted):
            return eyes.preempted(event)
        return eyes.ledger(event) if isinstance(event, events.RequestLedger) else event

    def shown_record(self, record: CompletionRecord, viewer: Caller) -> CompletionRecord:
        """What a caller sees of the record of a completion of its own."""
        if viewer.role is Role.ADMIN:
            return record
        eyes = self._eyes(viewer)
        return CompletionRecord(
            None if record.change is None else eyes.change(record.change),
            None if record.prefix is None else eyes.prefix(record.prefix),
            # One request of its own preempts another only because others have the rest of the blocks
            [] if self.isolates else [eyes.preempted(each) for each in record.preemptions],
            None if record.ledger is None else eyes.ledger(record.ledger),
        )

    def _eyes(self, viewer: Caller) -> "_Eyes":
        return _Eyes(lambda request_id: self.is_own(request_id, viewer), self.isolates)


@dataclass(frozen=True)
class _Eyes:
    """How one caller sees events about its own requests.

    Args:
        is_own: whether a request is the caller's, by the engine's name.
        isolated: the others' ids are left out; otherwise they stand as `OTHER`.
    """

    is_own: Callable[[str], bool]
    isolated: bool

    def change(self, event: events.RequestStateChanged) -> events.RequestStateChanged:
        blocked_by = event.blocked_by
        if blocked_by is not None:
            blocked_by = tuple(self._by_name((name, 0) for name in blocked_by))
        event = replace(event, blocked_by=blocked_by)
        if not self.isolated:
            return event
        if event.to in ("waiting", "preempted"):
            event = replace(event, to="waiting", reason="waits")
        return replace(event, need_blocks=None, free_blocks=None)

    def prefix(self, event: events.PrefixMatched) -> events.PrefixMatched:
        is_own = event.near_req is not None and self.is_own(event.near_req)
        return replace(
            event,
            near_req=event.near_req if is_own else None,
            evicted_ago=None if self.isolated else event.evicted_ago,
        )

    def preempted(self, event: events.Preempted) -> events.Preempted:
        return event if self.is_own(event.cause_req) else replace(event, cause_req=OTHER)

    def ledger(self, event: events.RequestLedger) -> events.RequestLedger:
        return replace(
            event,
            lost_tok=0 if self.isolated else event.lost_tok,
            stalled_by=tuple(self._by_name(event.stalled_by).items()),
            blocked_by=tuple(self._by_name(event.blocked_by).items()),
        )

    def _by_name(self, times: Iterable[tuple[str, int]]) -> Mapping[str, int]:
        """Times by the ids that the caller sees."""
        found: Counter[str] = Counter()
        for name, time in times:
            if self.is_own(name):
                found[name] += time
            elif not self.isolated:
                found[OTHER] += time
        return found
