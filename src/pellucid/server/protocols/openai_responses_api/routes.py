"""OpenAI's /v1/responses without storage: the client sends the whole conversation, as Codex CLI does.

https://platform.openai.com/docs/api-reference/responses
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from pellucid.inputs.prompts import ChatPrompt
from pellucid.server.endpoint import Call, Reply, StreamedReply, json_reply
from pellucid.server.protocols.ask import Ask, Prompts, count_tokens
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
from pellucid.server.serving import Serving
from pellucid.server.streaming import CompletionsReply


@dataclass(frozen=True)
class Responses:
    """The handlers of the routes."""

    serving: Serving
    kept: KeptItems = field(default_factory=KeptItems)

    async def create(self, call: Call) -> Reply | StreamedReply:
        """An answer to items. A client sends the whole conversation, in which it may refer to recent items."""
        service = self.serving.service
        ask, tools = await service.read(call, self._read)
        generation = await ask.start(self.serving, call)
        response = ResponseObject(generation, ask, service.records, tools, self.kept)
        if ask.body.stream:
            return CompletionsReply(generation, EventWriter(response))
        (output,) = await generation.finish()
        return json_reply(response.whole(output))

    async def input_tokens(self, call: Call) -> Reply:
        """The tokens that a request would have."""
        decode = INPUT_TOKENS_FIELDS.decode
        num_tokens = await count_tokens(self.serving, call, decode, self._prompt)
        return json_reply({"object": "response.input_tokens", "input_tokens": num_tokens})

    def _read(self, call: Call) -> tuple[Ask[ResponsesBody], Mapping[str, CalledTool]]:
        """What the call asks for, and its tools as in `Conversation`."""
        body = RESPONSES_FIELDS.decode(call.body, call.warnings)
        body.check(call.warnings)
        tools: dict[str, CalledTool] = {}

        def prompts_of(body: ResponsesBody, call: Call) -> Prompts:
            conversation = self._conversation(body, call)
            tools.update(conversation.tools)
            aspects = aspects_of(tools=body.tools, reasoning_effort=body.effort)
            return Prompts([conversation.prompt], aspects=aspects)

        ask = Ask.of(self.serving.model, call, body, prompts_of)
        body.input = []  # not kept for as long as the reply takes
        return ask, tools

    def _prompt(self, body: ConversationFields, call: Call) -> ChatPrompt:
        return self._conversation(body, call).prompt

    def _conversation(self, body: ConversationFields, call: Call) -> Conversation:
        find = partial(self.kept.find, call.caller.name)
        return conversation_of(body, self.serving.model.tokenizer, call.warnings, find)
