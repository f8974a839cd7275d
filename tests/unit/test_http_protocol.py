"""The outbox: which parts of replies a callback of the event loop sends, and when."""

import asyncio
from typing import Any

from pellucid.server.http_protocol import BodyWriter, Outbox


class Connection:
    """A transport that notes what is sent on any connection."""

    def __init__(self, name: str, sent: list[tuple[str, bytes]]) -> None:
        self._name = name
        self._sent = sent
        self.closing = False

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data: bytes) -> None:
        self._sent.append((self._name, data))


def test_the_frames_of_a_step_are_sent_together_in_their_order() -> None:
    sent: list[tuple[str, bytes]] = []

    async def step() -> None:
        outbox = Outbox()
        one, other = (_writer(Connection(name, sent), outbox) for name in ("one", "other"))
        one.write(b"a")
        other.write(b"b" * 17)
        one.write(b"cd")
        assert sent == []
        await asyncio.sleep(0)
        assert sent == [
            ("one", b"3\r\nacd\r\n"),
            ("other", b"11\r\n%b\r\n" % (b"b" * 17)),
        ]
        one.write(b"e")  # of the next step
        await asyncio.sleep(0)
        assert sent[2:] == [("one", b"1\r\ne\r\n")]

    asyncio.run(step())


def test_what_is_flushed_is_sent_at_once_and_not_again() -> None:
    sent: list[tuple[str, bytes]] = []

    async def step() -> None:
        writer = _writer(Connection("one", sent), Outbox())
        writer.write(b"a")
        writer.flush()
        assert sent == [("one", b"1\r\na\r\n")]
        await asyncio.sleep(0)
        assert len(sent) == 1

    asyncio.run(step())


def test_a_client_that_has_gone_is_sent_nothing() -> None:
    sent: list[tuple[str, bytes]] = []

    async def step() -> None:
        outbox = Outbox()
        gone, other = Connection("gone", sent), Connection("other", sent)
        for connection in (gone, other):
            _writer(connection, outbox).write(b"a")
        gone.closing = True
        await asyncio.sleep(0)
        assert sent == [("other", b"1\r\na\r\n")]

    asyncio.run(step())


def _writer(connection: Any, outbox: Outbox) -> BodyWriter:
    return BodyWriter(connection, asyncio.get_running_loop().time, outbox)
