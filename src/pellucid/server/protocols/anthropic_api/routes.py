"""Anthropic's /v1/messages and /v1/messages/count_tokens, for the official client and Claude Code.

https://docs.claude.com/en/api/messages
"""

from pellucid.inputs.prompts import ChatPrompt
from pellucid.server.endpoint import Call, Reply, StreamedReply, json_reply
from pellucid.server.generation import GenerationRequest
from pellucid.server.protocols.anthropic_api.fields import (
    COUNT_FIELDS,
    MESSAGES_FIELDS,
    ConversationFields,
    MessagesBody,
)
from pellucid.server.protocols.anthropic_api.input import conversation_of, system_text
from pellucid.server.protocols.anthropic_api.writer import MessageWriter
from pellucid.server.protocols.ask import Ask, count_tokens, read_conversation
from pellucid.server.protocols.cache_comparison import aspects_of
from pellucid.server.serving import Handlers
from pellucid.server.streaming import CompletionsReply


class Messages(Handlers):
    """The handlers of the routes."""

    async def create(self, call: Call) -> Reply | StreamedReply:
        """An answer to a conversation, whole or streamed: thinking, tools, structured outputs."""
        ask = await Ask.read(self.serving, call, MESSAGES_FIELDS, self._request)
        generation = await ask.start(self.serving, call)
        writer = MessageWriter(generation, ask, self.service.records)
        if ask.body.stream:
            return CompletionsReply(generation, writer)
        return Reply(writer.whole(await generation.finish()))

    async def count_tokens(self, call: Call) -> Reply:
        """The tokens that a request would have."""
        conversation = await read_conversation(self.serving, call, COUNT_FIELDS, self._conversation)
        num_tokens = await count_tokens(self.serving, call, conversation)
        return json_reply({"input_tokens": num_tokens})

    def _request(self, body: MessagesBody, call: Call) -> GenerationRequest:
        conversation = self._conversation(body, call)
        body.messages = []  # not kept for as long as the reply takes
        keeps_billing = self.config.keep_billing_block
        system = system_text(body.system or "", keeps_billing, call.warnings)
        params = body.sampling_params(self.model.default_sampling_params)
        aspects = aspects_of(tools=body.tools, system=system)
        return GenerationRequest([conversation], params, aspects=aspects)

    def _conversation(self, body: ConversationFields, call: Call) -> ChatPrompt:
        keeps_billing = self.config.keep_billing_block
        return conversation_of(body, self.tokenizer, call.warnings, keeps_billing)
