"""Several answers to one prompt: one of them computes it, the others wait for that."""

from collections.abc import Iterable, Sequence

from pellucid.scheduling.request import Request


class Siblings:
    """Groups of requests with the same prompt. The first of a group leads: it alone is scheduled.

    A group lasts until its prompt is computed. If the leader ends before, the next one takes over.
    """

    def __init__(self) -> None:
        self._groups: dict[str, list[Request]] = {}  # by the id of every member; two or more each

    def __bool__(self) -> bool:
        """Whether there are any groups."""
        return bool(self._groups)

    def add(self, requests: Sequence[Request]) -> None:
        """Makes a group; the first request leads it."""
        if len(requests) > 1:
            group = list(requests)
            for member in group:
                self._groups[member.request_id] = group

    def followers(self, leader: Request) -> list[Request]:
        group = self._groups.get(leader.request_id)
        return group[1:] if group is not None and group[0] is leader else []

    def follows(self, request: Request) -> bool:
        """Whether it waits for its leader."""
        group = self._groups.get(request.request_id)
        return group is not None and group[0] is not request

    def leave(self, request: Request) -> Request | None:
        """Takes a request out of its group; the new leader, if it was the leader and left others."""
        group = self._groups.pop(request.request_id, None)
        if group is None:
            return None
        led = group[0] is request
        group.remove(request)
        new_leader = group[0] if led else None
        if len(group) == 1:
            del self._groups[group[0].request_id]
        return new_leader

    def dissolve(self, requests: Iterable[Request]) -> list[Request]:
        """Ends the group that any of these requests is in; who was still following in it."""
        for request in requests:
            if (group := self._groups.get(request.request_id)) is not None:
                for member in group:
                    del self._groups[member.request_id]
                return group[1:]
        return []
