"""Where the replicas of a pool come from."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from pellucid.cluster.dispatcher import Dispatcher
from pellucid.cluster.replica_link import ReplicaLink


class ReplicaSource(ABC):
    """Brings replicas to a dispatcher. All methods belong to one event loop."""

    @abstractmethod
    async def begin(self, dispatcher: Dispatcher) -> None:
        """Returns when requests can be answered.

        Raises:
            ValueError: a replica cannot be used.
        """

    @abstractmethod
    async def stop(self) -> None:
        """Ends the connections to all replicas, and the replicas that belong to this pool alone."""

    @property
    @abstractmethod
    def links(self) -> Sequence[ReplicaLink]:
        """To the replicas that are there or are loading, in the order of their numbers."""

    @property
    @abstractmethod
    def num_restarts(self) -> int:
        """Replicas that were started after another one had ended."""
