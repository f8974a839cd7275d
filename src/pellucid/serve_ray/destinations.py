"""Where a call of a front goes. Ray's router, which has a thread of its own, asks the call itself.

On the other side a destination arrives as the id of its conversation.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection


class Destination(ABC):
    """Chooses the replica that gets a call.

    Args:
        conversation: id of the front's conversation with the replica.
    """

    def __init__(self, conversation: str) -> None:
        self._conversation = conversation

    @abstractmethod
    def choose(self, names: Collection[str]) -> str | None:
        """One of these replicas; None: it is not there now, so the call waits."""

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (self._conversation,)


class KnownReplica(Destination):
    """The replica at the other end of a conversation.

    Args:
        name: of the replica.
    """

    def __init__(self, conversation: str, name: str) -> None:
        super().__init__(conversation)
        self._name = name

    def choose(self, names: Collection[str]) -> str | None:
        return self._name if self._name in names else None


class NewReplica(Destination):
    """The next replica that the front does not know: a call that begins a conversation waits for it.

    Args:
        unknown: gets the names of all replicas now; returns those without a conversation.
    """

    def __init__(self, conversation: str, unknown: Callable[[frozenset[str]], set[str]]) -> None:
        super().__init__(conversation)
        self._unknown = unknown

    def choose(self, names: Collection[str]) -> str | None:
        return min(self._unknown(frozenset(names)), default=None)
