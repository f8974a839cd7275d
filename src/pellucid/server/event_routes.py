"""/v1/events: the engine's events as server-sent events. /v1/snapshot: the state that they continue. For
admins."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass

import msgspec

from pellucid.event_feed import FeedReader
from pellucid.events import Event, EventRecord, Gap, Level
from pellucid.server.endpoint import Call, Reply, StreamedReply, json_reply
from pellucid.server.errors import refused
from pellucid.server.serving import Serving
from pellucid.server.streaming import SSE_KEEPALIVE

LEVELS = {level.name.lower(): level for level in Level}
EVENT_NAMES = frozenset(event.ev for event in Event.__subclasses__())


@dataclass(frozen=True)
class EventRoutes:
    """The handlers of the routes."""

    serving: Serving

    async def events(self, call: Call) -> StreamedReply:
        """Events from now on, or from where `Last-Event-ID` says that a reader left off.

        A reader that does not go on from somewhere gets a snapshot first, and so does one that has missed
        events. `level` is stat, step or token; `ev` names the events that are wanted, between commas.
        """
        name = call.query.get("level", "stat")
        if name not in LEVELS:
            raise refused(f"level={name[:64]!r}: must be one of {', '.join(LEVELS)}", "level")
        after = call.headers.get("last-event-id")
        if after is not None and not (after.isascii() and after.isdigit() and len(after) < 16):
            raise refused("Last-Event-ID: must be the id of an event", "Last-Event-ID")
        wanted = frozenset(filter(None, call.query.get("ev", "").split(",")))
        if unknown := sorted(wanted - EVENT_NAMES):
            raise refused(
                f"ev={unknown[0][:64]!r}: must be among {', '.join(sorted(EVENT_NAMES))}", "ev"
            )
        reader = self.serving.service.feed.read(LEVELS[name], None if after is None else int(after))
        call.resources.callback(reader.close)
        frames = self._frames(reader, wanted, begins=after is None)
        return StreamedReply(frames, lambda: SSE_KEEPALIVE)

    async def snapshot(self, call: Call) -> Reply:
        """All requests and blocks after the step under way."""
        return json_reply((await self.serving.service.engine.snapshot()).fields_as_dict())

    async def _frames(
        self, reader: FeedReader, wanted: frozenset[str], begins: bool
    ) -> AsyncGenerator[bytes, None]:
        if begins:
            yield await self._snapshot_frame()
        async for records in reader.batches():
            # All of a batch in one frame: a reader at level token gets thousands a second.
            frames = [
                _frame(record) for record in records if not wanted or record.event.ev in wanted
            ]
            if frames:
                yield b"".join(frames)
            if isinstance(records[0].event, Gap):
                yield await self._snapshot_frame()

    async def _snapshot_frame(self) -> bytes:
        snapshot = await self.serving.service.engine.snapshot()
        data = msgspec.json.encode({"ev": snapshot.ev, **snapshot.fields_as_dict()})
        return b"event: snapshot\ndata: " + data + b"\n\n"


def _frame(record: EventRecord) -> bytes:
    data = msgspec.json.encode(record.as_dict())
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (record.seq, record.event.ev.encode(), data)
