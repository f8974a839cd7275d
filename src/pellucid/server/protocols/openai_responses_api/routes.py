"""OpenAI's /v1/responses without storage: the client sends the whole conversation, as Codex CLI does.

https://platform.openai.com/docs/api-reference/responses
"""

from dataclasses import dataclass, field
from functools import partial

from pellucid.inputs.prompts import ChatPrompt
from pellucid.server.endpoint import Call, Reply, StreamedReply, json_reply
from pellucid.server.generation import GenerationRequest
from pellucid.server.protocols.ask import Ask, count_tokens, read_conversation
from pellucid.server.protocols.cache_comparison import aspects_of
from pellucid.server.protocols.openai_responses_api.fields import (
    INPUT_TOKENS_FIELDS,
    RESPONSES_FIELDS,
    ConversationFields,
    ResponsesBody,
)
from pellucid.server.protocols.openai_responses_api.input import Conversation, conversation_of
from pellucid.server.protocols.openai_responses_api.kept_items import KeptItems
from pellucid.server.protocols.openai_responses_api.response_object import ResponseObject
from pellucid.server.protocols.openai_responses_api.tools import CalledTool
from pellucid.server.protocols.openai_responses_api.writer import EventWriter
from pellucid.server.serving import Handlers
from pellucid.server.streaming import CompletionsReply


@dataclass
class Responses(Handlers):
    """The handlers of the routes."""

    kept: KeptItems = field(default_factory=KeptItems)

    async def create(self, call: Call) -> Reply | StreamedReply:
        """An answer to items. A client sends the whole conversation, in which it may refer to recent items."""
        tools: dict[str, CalledTool] = {}
        ask = await Ask.read(
            self.serving, call, RESPONSES_FIELDS, partial(self._request, tools=tools)
        )
        generation = await ask.start(self.serving, call)
        response = ResponseObject(generation, ask, self.service.records, tools, self.kept)
        if ask.body.stream:
            return CompletionsReply(generation, EventWriter(response))
        (output,) = await generation.finish()
        return json_reply(response.whole(output))

    async def input_tokens(self, call: Call) -> Reply:
        """The tokens that a request would have."""
        conversation = await read_conversation(
            self.serving, call, INPUT_TOKENS_FIELDS, self._prompt
        )
        num_tokens = await count_tokens(self.serving, call, conversation)
        return json_reply({"object": "response.input_tokens", "input_tokens": num_tokens})

    def _request(
        self, body: ResponsesBody, call: Call, tools: dict[str, CalledTool]
    ) -> GenerationRequest:
        """The request; adds the call's tools, as in `Conversation`, to `tools`."""
        conversation = self._conversation(body, call)
        tools.update(conversation.tools)
        body.input = []  # not kept for as long as the reply takes
        params = body.sampling_params(self.model.default_sampling_params)
        aspects = aspects_of(tools=body.tools, reasoning_effort=body.effort)
        return GenerationRequest([conversation.prompt], params, aspects=aspects)

    def _prompt(self, body: ConversationFields, call: Call) -> ChatPrompt:
        return self._conversation(body, call).prompt

    def _conversation(self, body: ConversationFields, call: Call) -> Conversation:
        find = partial(self.kept.find, call.caller.name)
        return conversation_of(body, self.tokenizer, call.warnings, find)
