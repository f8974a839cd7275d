"""Where scheduling puts its events; the engine's `EventBus` is one."""

from typing import Protocol

from pellucid.events import Event, Level


class EventSink(Protocol):
    @property
    def active(self) -> bool:
        """Whether anyone listens; asked before an event is made."""
        ...

    def wants(self, level: Level) -> bool:
        """Whether anyone listens to events of `level`."""
        ...

    def emit(self, event: Event) -> None:
        """Hands an event to everyone who wants it."""
        ...


class NoEvents:
    """Nobody listens."""

    active = False

    def wants(self, level: Level) -> bool:
        return False

    def emit(self, event: Event) -> None:
        raise AssertionError("asked first, nobody would emit")
