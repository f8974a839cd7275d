"""OpenAI's /v1/chat/completions: conversations, streamed or whole, with log-probabilities and tools.

https://platform.openai.com/docs/api-reference/chat, with the additions of vLLM and llama.cpp.
"""

from dataclasses import dataclass

from pellucid.inputs.prompts import ChatPrompt
from pellucid.server.endpoint import Call, Reply, StreamedReply, json_reply
from pellucid.server.protocols.ask import Ask, Prompts, count_tokens
from pellucid.server.protocols.openai_chat_api.fields import (
    CHAT_FIELDS,
    INPUT_TOKENS_FIELDS,
    ChatBody,
    PlaceOfReasoning,
)
from pellucid.server.protocols.openai_chat_api.input import conversation_of
from pellucid.server.protocols.openai_chat_api.writer import ChatChoiceWriter
from pellucid.server.protocols.openai_shared.writer import ReplyWriter
from pellucid.server.serving import Serving


@dataclass
class ChatCompletions:
    """The handler of the route."""

    serving: Serving

    async def __call__(self, call: Call) -> Reply | StreamedReply:
        """An answer to a conversation, whole or streamed: log-probabilities, tools, structured outputs."""
        ask = await self.serving.service.read(call, self._read)
        generation = await ask.start(self.serving, call)
        tokenizer = self.serving.model.tokenizer
        writer = ReplyWriter(
            generation,
            ask.body,
            "chatcmpl",
            ask.name,
            ("chat.completion", "chat.completion.chunk"),
            lambda number, output: ChatChoiceWriter(
                number, ask.body, tokenizer, output, ask.form.blocks(generation)
            ),
        )
        return await writer.reply()

    async def input_tokens(self, call: Call) -> Reply:
        """The tokens that a request would have."""
        decode = INPUT_TOKENS_FIELDS.decode
        num_tokens = await count_tokens(self.serving, call, decode, self._conversation)
        return json_reply({"object": "response.input_tokens", "input_tokens": num_tokens})

    def _read(self, call: Call) -> Ask[ChatBody]:
        body = CHAT_FIELDS.decode(call.body, call.warnings)
        body.check_stream()
        ask = Ask.of(self.serving.model, call, body, self._prompts)
        body.messages = []  # not kept for as long as the reply takes
        return ask

    def _prompts(self, body: ChatBody, call: Call) -> Prompts:
        return Prompts(
            [self._conversation(body, call)],
            body.priority or 0,
            body.salt,
            # A client that asks for special tokens gets the text unparsed
            is_plain=body.skip_special_tokens is False,
            keeps_reasoning=body.place_of_reasoning is PlaceOfReasoning.CONTENT,
        )

    def _conversation(self, body: ChatBody, call: Call) -> ChatPrompt:
        return conversation_of(body, self.serving.model.tokenizer, call.warnings)
