"""OpenAI's /v1/models, which Anthropic's clients read too."""

from pellucid.server.endpoint import Call, Reply, json_reply
from pellucid.server.serving import Handlers


class Models(Handlers):
    """The handlers of the routes."""

    async def list(self, call: Call) -> Reply:
        """The served model, with its context length under each name that clients look for."""
        facts = self.model.facts()
        paging = {"has_more": False, "first_id": facts["id"], "last_id": facts["id"]}
        return json_reply({"object": "list", "data": [facts], **paging})

    async def retrieve(self, call: Call) -> Reply:
        """The served model and its facts, by any of its names."""
        name = self.model.check_name(call.path_params["model"])
        return json_reply({**self.model.facts(), "id": name, "details": self.model.details()})
