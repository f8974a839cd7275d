"""/v1/events: the engine's events as server-sent events. /v1/snapshot: the state that they continue."""

from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from pellucid.async_engine import AsyncLLMEngine
from pellucid.observing.event_feed import FeedReader
from pellucid.observing.events import (
    Event,
    EventRecord,
    Gap,
    Hello,
    Level,
    Load,
    Snapshot,
    Stat,
)
from pellucid.observing.logged_events import Records, records_of
from pellucid.server.api_keys import Role
from pellucid.server.completion_id import CompletionId
from pellucid.server.endpoint import Call, GeneratedReply, Reply, json_reply
from pellucid.server.errors import ApiError, refused
from pellucid.server.serving import Handlers

LEVELS = {level.name.lower(): level for level in Level}
EVENT_NAMES = frozenset(event.ev for event in Event.__subclasses__())
EARLIEST = -1  # before the number of any event
OPEN_EVENTS = (Hello, Load, Stat, Gap)  # about no request: every caller may get them


class _Wish(NamedTuple):
    """What a reader asked for: events of these names, or all if there are none; a frame for each, or for many."""

    names: frozenset[str]
    in_batches: bool


class EventRoutes(Handlers):
    """The handlers of the routes."""

    async def events(self, call: Call) -> GeneratedReply:
        """Events from now on, or from where `Last-Event-ID` says that a reader left off.

        A new reader gets a snapshot first, and so does one that has missed events; with `history=true` it gets the
        events that are still kept, and then the snapshot. `level` is stat, step, text or token. `ev` names the events
        to send, and `req` the requests whose tokens to send, separated by commas. With `batch=true` one frame has all
        events that came within 50 ms. A caller without the role admin gets only events of its own requests.
        """
        self._check_visible(call)
        level = _level(call)
        after = call.headers.get("last-event-id")
        if after is not None and not (after.isascii() and after.isdigit() and len(after) < 16):
            raise refused("Last-Event-ID: must be the id of an event", "Last-Event-ID")
        self._check_level(level)
        has_history, in_batches = _flag(call, "history"), _flag(call, "batch")
        wanted = frozenset(filter(None, call.query.get("ev", "").split(",")))
        if unknown := sorted(wanted - EVENT_NAMES):
            raise refused(
                f"ev={unknown[0][:64]!r}: must be among {', '.join(sorted(EVENT_NAMES))}", "ev"
            )
        watched = frozenset(map(_watched_name, filter(None, call.query.get("req", "").split(","))))
        admission = self.service.admission
        call.resources.enter_context(admission.hold(admission.readers, call.caller))
        begins_early = after is None and has_history
        first = EARLIEST if begins_early else None if after is None else int(after)
        reader = self.service.feed.read(level, first, watched or None)
        call.resources.callback(reader.close)
        wish = _Wish(wanted, in_batches)
        if begins_early:
            return GeneratedReply(self._frames_with_history(call, reader, wish))
        return GeneratedReply(self._frames(call, reader, wish, begins=after is None))

    async def snapshot(self, call: Call) -> Reply:
        """All requests and blocks after the current step; at level token with the tokens so far."""
        self._check_visible(call)
        snapshot = await self._snapshot(call, _level(call))
        return json_reply(snapshot.fields_as_dict())

    async def _frames_with_history(
        self, call: Call, reader: FeedReader, wish: _Wish
    ) -> AsyncGenerator[bytes, None]:
        """`hello`, the events that are kept, and a snapshot, which events after it lead on from."""
        if (hello := self.engine.events.hello) is not None:
            yield b"event: hello\ndata: %b\n\n" % hello.encode()
        while batch := reader.take():
            kept = [each for each in batch if not _is_gap(each)]
            if frames := self._shown(call, kept, wish):
                yield frames
        async for frames in self._frames(call, reader, wish, begins=True):
            yield frames

    async def _frames(
        self, call: Call, reader: FeedReader, wish: _Wish, begins: bool
    ) -> AsyncGenerator[bytes, None]:
        if begins:
            yield await self._snapshot_frame(call, reader.interest.level)
        async for batch in reader.batches():
            if frames := self._shown(call, batch, wish):
                yield frames
            if _is_gap(batch[0]):
                yield await self._snapshot_frame(call, reader.interest.level)

    def _shown(self, call: Call, batch: Sequence[Records], wish: _Wish) -> bytes:
        """The events that the caller may hear and wants. Those of a batch are sent together: a reader at level text
        gets thousands a second."""
        has_all = call.caller.role is Role.ADMIN and not wish.names
        if not (has_all and wish.in_batches):
            records = records_of(batch)
            if wish.names:
                records = [record for record in records if record.event.ev in wish.names]
            if call.caller.role is not Role.ADMIN:
                shown = self.service.visibility.shown
                records = [
                    replace(record, event=shown(record.event, call.caller))
                    for record in records
                    if self._may_hear(call, record.event)
                ]
            if not wish.in_batches:
                return b"".join(map(_frame, records))
            batch = records
        if not batch:
            return b""
        frame = b"id: %d\nevent: batch\ndata: %b\n\n"
        return frame % (batch[-1].last_seq, self.service.feed.encode(batch))

    async def _snapshot_frame(self, call: Call, level: Level) -> bytes:
        snapshot = await self._snapshot(call, level)
        return b"event: snapshot\ndata: %b\n\n" % snapshot.encode()

    async def _snapshot(self, call: Call, level: Level) -> Snapshot:
        snapshot = await self.engine.snapshot(level >= Level.TEXT)
        if call.caller.role is Role.ADMIN:
            return snapshot
        own = tuple(request for request in snapshot.requests if self._is_own(call, request.req))
        return replace(snapshot, requests=own, blocks=())

    def _may_hear(self, call: Call, event: Event) -> bool:
        """Callers that are no admins get the events of their own requests, and those about no request."""
        if isinstance(event, OPEN_EVENTS):
            return True
        request_id = getattr(event, "req", None)
        return isinstance(request_id, str) and self._is_own(call, request_id)

    def _is_own(self, call: Call, request_id: str) -> bool:
        return self.service.visibility.is_own(request_id, call.caller)

    def _check_level(self, level: Level) -> None:
        """Raises an ApiError for events that several engines would mix up."""
        if level > Level.STAT and not isinstance(self.engine, AsyncLLMEngine):
            raise refused(
                f"level={level.name.lower()!r}: steps and blocks are of one engine, and this server has"
                " replicas; level=stat has the events of requests",
                "level",
            )

    def _check_visible(self, call: Call) -> None:
        """Raises an ApiError if the caller must not learn what the events of the whole engine tell."""
        if self.service.visibility.hides_others(call.caller):
            raise ApiError(
                403,
                f"{call.path} needs a key with the role admin: keys are isolated",
                code="admin_key_needed",
            )


def _level(call: Call) -> Level:
    name = call.query.get("level", "stat")
    if name not in LEVELS:
        raise refused(f"level={name[:64]!r}: must be one of {', '.join(LEVELS)}", "level")
    return LEVELS[name]


def _flag(call: Call, name: str) -> bool:
    value = call.query.get(name, "false")
    if value not in ("true", "false"):
        raise refused(f"{name}={value[:64]!r}: must be true or false", name)
    return value == "true"


def _watched_name(name: str) -> str:
    if (named := CompletionId.parse(name)) is None:
        raise refused(f"req={name[:64]!r}: must be the id of a request", "req")
    return str(named)


def _is_gap(each: Records) -> bool:
    return isinstance(each, EventRecord) and isinstance(each.event, Gap)


def _frame(record: EventRecord) -> bytes:
    name = record.event.ev.encode()
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (record.seq, name, record.encode())
