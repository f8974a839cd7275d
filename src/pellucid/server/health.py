"""/health: whether the engine's steps advance; /ready: whether the server takes new requests."""

from pellucid.server.endpoint import Call, Reply, json_reply
from pellucid.server.serving import Handlers


class Health(Handlers):
    """The handlers of both routes."""

    async def health(self, call: Call) -> Reply:
        """Fails when the engine has failed, or when requests are unfinished and no step ends. An open port alone
        does not show that."""
        stalled = self.engine.seconds_without_step
        limit = self.config.stall_seconds
        if not self.engine.is_healthy and not self.service.is_draining:
            return json_reply({"status": "failed", "reason": "the engine has ended"}, 503)
        if stalled > limit:
            reason = f"requests are unfinished, and no step has ended for {stalled:.0f} s"
            return json_reply({"status": "stalled", "reason": reason}, 503)
        return json_reply({"status": "ok"})

    async def ready(self, call: Call) -> Reply:
        """200 while new requests are taken."""
        if self.service.is_draining or not self.engine.is_healthy:
            reason = "shutting down" if self.service.is_draining else "the engine has ended"
            return json_reply({"status": "not ready", "reason": reason}, 503)
        return json_reply({"status": "ready"})
