"""OpenAI's /v1/chat/completions: conversations, streamed or whole, with log-probabilities and tools.

https://platform.openai.com/docs/api-reference/chat, with the additions of vLLM and llama.cpp.
"""

from pellucid.inputs.prompts import ChatPrompt
from pellucid.server.endpoint import Call, Reply, StreamedReply, json_reply
from pellucid.server.generation import GenerationRequest
from pellucid.server.protocols.ask import Ask, count_tokens, read_conversation
from pellucid.server.protocols.openai_chat_api.fields import (
    CHAT_FIELDS,
    INPUT_TOKENS_FIELDS,
    ChatBody,
)
from pellucid.server.protocols.openai_chat_api.input import conversation_of
from pellucid.server.protocols.openai_chat_api.writer import ChatChoiceWriter
from pellucid.server.protocols.openai_shared.writer import ReplyWriter
from pellucid.server.serving import Handlers


class ChatCompletions(Handlers):
    """The handler of the route."""

    async def __call__(self, call: Call) -> Reply | StreamedReply:
        """An answer to a conversation, whole or streamed: log-probabilities, tools, structured outputs."""
        ask = await Ask.read(self.serving, call, CHAT_FIELDS, self._request)
        generation = await ask.start(self.serving, call)
        names = ("chat.completion", "chat.completion.chunk")
        return await ReplyWriter(generation, ask, "chatcmpl", names, ChatChoiceWriter).reply()

    async def input_tokens(self, call: Call) -> Reply:
        """The tokens that a request would have."""
        conversation = await read_conversation(
            self.serving, call, INPUT_TOKENS_FIELDS, self._conversation
        )
        num_tokens = await count_tokens(self.serving, call, conversation)
        return json_reply({"object": "response.input_tokens", "input_tokens": num_tokens})

    def _request(self, body: ChatBody, call: Call) -> GenerationRequest:
        conversation = self._conversation(body, call)
        body.messages = []  # not kept for as long as the reply takes
        params = body.sampling_params(self.model.default_sampling_params)
        return GenerationRequest([conversation], params, body.priority or 0, body.salt)

    def _conversation(self, body: ChatBody, call: Call) -> ChatPrompt:
        return conversation_of(body, self.tokenizer, call.warnings)
