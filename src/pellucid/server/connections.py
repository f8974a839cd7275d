"""The open connections of a server, counted by client."""

from collections import defaultdict
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Protocol

IPV6_CLIENT_BITS = 64  # of an address: whoever has one address of such a network has all of them


class Connection(Protocol):
    """What is known of a connection."""

    @property
    def idle_since(self) -> float | None:
        """Since when it waits for the head of a request; None: a call is under way, or a reply is not sent yet."""

    def abort(self) -> None:
        """Closes it at once."""


class Connections:
    """Bounds the connections of each client, and of all together.

    Where there is no room for a new connection, it takes the place of the one that has been idle for longest: of the
    same client, or of the client with the most connections. So connections that send nothing keep nobody out.

    Args:
        max_all: connections of all clients.
        max_per_client: of one client.
    """

    def __init__(self, max_all: int, max_per_client: int) -> None:
        self._max_all = max_all
        self._max_per_client = max_per_client
        # In the order in which they were opened: clocks may be coarse
        self._by_client: defaultdict[str, dict[Connection, None]] = defaultdict(dict)
        self._num_all = 0

    def admit(self, connection: Connection, client: str) -> bool:
        """Adds a new connection, unless there is no room for it."""
        own = self._by_client[client]
        if len(own) >= self._max_per_client and not self._close_idlest(client):
            return False
        if self._num_all >= self._max_all:
            busiest = max(self._by_client, key=lambda each: len(self._by_client[each]))
            if not self._close_idlest(busiest):
                return False
        self._by_client[client][connection] = None
        self._num_all += 1
        return True

    def discard(self, connection: Connection, client: str) -> None:
        """Forgets a connection; does nothing if it was not admitted, or is forgotten already."""
        own = self._by_client[client]
        if connection in own:
            del own[connection]
            self._num_all -= 1
        if not own:
            del self._by_client[client]

    def _close_idlest(self, client: str) -> bool:
        idle = [
            (each.idle_since, number, each)
            for number, each in enumerate(self._by_client[client])
            if each.idle_since is not None
        ]
        if not idle:
            return False
        _, _, connection = min(idle)
        self.discard(connection, client)
        connection.abort()
        return True


def client_of(address: str) -> str:
    """Who an address belongs to: an address of IPv4, or a network of IPv6."""
    if ":" not in address:
        return address
    try:
        ip = ip_address(address.partition("%")[0])  # without the zone
    except ValueError:
        return address
    if isinstance(ip, IPv6Address):
        if ip.ipv4_mapped is not None:
            return str(ip.ipv4_mapped)
        return str(ip_network((ip, IPV6_CLIENT_BITS), strict=False))
    return str(ip)
