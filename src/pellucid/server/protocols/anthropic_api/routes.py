"""Anthropic's /v1/messages and /v1/messages/count_tokens, for the official client and Claude Code.

https://docs.claude.com/en/api/messages
"""

from dataclasses import dataclass

from pellucid.inputs.prompts import ChatPrompt
from pellucid.server.endpoint import Call, Reply, StreamedReply, json_reply
from pellucid.server.protocols.anthropic_api.fields import (
    COUNT_FIELDS,
    MESSAGES_FIELDS,
    ConversationFields,
    MessagesBody,
)
from pellucid.server.protocols.anthropic_api.input import conversation_of, system_text
from pellucid.server.protocols.anthropic_api.writer import MessageWriter
from pellucid.server.protocols.ask import Ask, Prompts, count_tokens
from pellucid.server.protocols.cache_comparison import aspects_of
from pellucid.server.serving import Serving
from pellucid.server.streaming import CompletionsReply


@dataclass(frozen=True)
class Messages:
    """The handlers of the routes."""

    serving: Serving

    async def create(self, call: Call) -> Reply | StreamedReply:
        """An answer to a conversation, whole or streamed: thinking, tools, structured outputs."""
        ask = await self.serving.service.read(call, self._read)
        generation = await ask.start(self.serving, call)
        writer = MessageWriter(generation, ask, self.serving.service.records)
        if ask.body.stream:
            return CompletionsReply(generation, writer)
        return Reply(writer.whole(await generation.finish()))

    async def count_tokens(self, call: Call) -> Reply:
        """The tokens that a request would have."""
        decode = COUNT_FIELDS.decode
        num_tokens = await count_tokens(self.serving, call, decode, self._conversation)
        return json_reply({"input_tokens": num_tokens})

    def _read(self, call: Call) -> Ask[MessagesBody]:
        body = MESSAGES_FIELDS.decode(call.body, call.warnings)
        ask = Ask.of(self.serving.model, call, body, self._prompts)
        body.messages = []  # not kept for as long as the reply takes
        return ask

    def _prompts(self, body: MessagesBody, call: Call) -> Prompts:
        conversation = self._conversation(body, call)
        keeps_billing = self.serving.config.keep_billing_block
        system = system_text(body.system or "", keeps_billing, call.warnings)
        return Prompts([conversation], aspects=aspects_of(tools=body.tools, system=system))

    def _conversation(self, body: ConversationFields, call: Call) -> ChatPrompt:
        keeps_billing = self.serving.config.keep_billing_block
        return conversation_of(body, self.serving.model.tokenizer, call.warnings, keeps_billing)
