"""Ollama's /api/generate and /api/chat.

https://docs.ollama.com/api
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from pellucid.server.endpoint import Call, Reply, StreamedReply, json_reply
from pellucid.server.protocols.ask import Ask, Prompts
from pellucid.server.protocols.ollama_api.fields import (
    CHAT_FIELDS,
    GENERATE_FIELDS,
    ChatBody,
    CommonFields,
    GenerateBody,
)
from pellucid.server.protocols.ollama_api.input import conversation_of, prompt_of
from pellucid.server.protocols.ollama_api.writer import (
    Added,
    Form,
    LineWriter,
    chat_form,
    generate_form,
    time_text,
)
from pellucid.server.serving import Serving
from pellucid.server.streaming import CompletionsReply

# What a call asks for; its body if that is nothing but that the model is there, or is not
Wanted: TypeAlias = Ask[GenerateBody] | Ask[ChatBody] | CommonFields


@dataclass
class Ollama:
    """The handlers of the routes."""

    serving: Serving

    async def generate(self, call: Call) -> Reply | StreamedReply:
        """A text that continues a prompt, or answers it through the chat template."""
        return await self._answer(call, self._read_generate, generate_form)

    async def chat(self, call: Call) -> Reply | StreamedReply:
        """An answer to a conversation, as lines of JSON or whole."""
        return await self._answer(call, self._read_chat, chat_form)

    async def _answer(
        self, call: Call, reader: Callable[[Call], Wanted], form: Form
    ) -> Reply | StreamedReply:
        ask = await self.serving.service.read(call, reader)
        if isinstance(ask, CommonFields):
            return self._loaded(ask, form)
        generation = await ask.start(self.serving, call)
        lines = LineWriter(generation, ask, form)
        if ask.body.stream is False:
            return Reply(lines.whole(await generation.finish()))
        return CompletionsReply(generation, lines)

    def _read_generate(self, call: Call) -> Wanted:
        body = GENERATE_FIELDS.decode(call.body, call.warnings)
        body.warn(call.warnings)
        if not body.prompt:
            return body
        ask = Ask.of(self.serving.model, call, body, self._prompt)
        body.prompt = None  # not kept for as long as the reply takes
        return ask

    def _read_chat(self, call: Call) -> Wanted:
        body = CHAT_FIELDS.decode(call.body, call.warnings)
        body.warn(call.warnings)
        if not body.messages:
            return body
        ask = Ask.of(self.serving.model, call, body, self._conversation)
        body.messages = None
        return ask

    def _prompt(self, body: GenerateBody, call: Call) -> Prompts:
        return Prompts([prompt_of(body, self.serving.model.tokenizer, call.warnings)])

    def _conversation(self, body: ChatBody, call: Call) -> Prompts:
        return Prompts([conversation_of(body, self.serving.model.tokenizer, call.warnings)])

    def _loaded(self, body: CommonFields, form: Form) -> Reply:
        """The answer to an empty prompt."""
        named = {"model": self.serving.model.check_name(body.model), "created_at": time_text()}
        ended = {"done": True, "done_reason": "unload" if body.unloads else "load"}
        return json_reply({**named, **form(Added()), **ended})
