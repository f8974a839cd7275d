"""Ray Serve's router in a front: a call goes where its first argument says.

`pellucid.cluster.router` has chosen the replica by then, by prefix and load, or the call waits for a new replica. Ray
copies this module's class into each process (it pickles it by value), so nothing is kept here.
"""

from typing import Any

from ray.serve.request_router import RequestRouter


class DestinationRouter(RequestRouter):  # type: ignore[misc]  # typed only where Ray is installed
    """Asks the `Destination` of each call."""

    # Seconds in which a replica says how many calls it has; an engine that loads is slow to answer.
    queue_len_response_deadline_s = 2.0
    max_queue_len_response_deadline_s = 10.0

    async def choose_replicas(
        self, candidate_replicas: list[Any], pending_request: Any = None
    ) -> list[list[Any]]:
        """Ray asks again, after a pause that grows to `max_backoff_s`, while there is no replica for a call."""
        pending_request.routing_context.should_backoff = True
        by_name = {each.replica_id.unique_id: each for each in candidate_replicas}
        chosen = pending_request.args[0].choose(by_name.keys())
        return [] if chosen is None else [[by_name[chosen]]]
