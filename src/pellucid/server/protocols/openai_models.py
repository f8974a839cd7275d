"""OpenAI's /v1/models, which Anthropic's clients read too."""

from dataclasses import dataclass

from pellucid.server.endpoint import Call, Reply, json_reply
from pellucid.server.serving import Serving


@dataclass(frozen=True)
class Models:
    """The handlers of the routes."""

    serving: Serving

    async def list(self, call: Call) -> Reply:
        """The served model, with its context length under each name that clients look for."""
        facts = self.serving.model.facts()
        paging = {"has_more": False, "first_id": facts["id"], "last_id": facts["id"]}
        return json_reply({"object": "list", "data": [facts], **paging})

    async def retrieve(self, call: Call) -> Reply:
        """The served model and its facts, by any of its names."""
        name = self.serving.model.check_name(call.path_params["model"])
        return json_reply(
            {**self.serving.model.facts(), "id": name, "details": self.serving.model.details()}
        )
