"""Ollama's /api/generate and /api/chat.

https://docs.ollama.com/api
"""

from collections.abc import Callable

from pellucid.inputs.prompts import Prompt
from pellucid.server.endpoint import Call, Reply, StreamedReply, json_reply
from pellucid.server.fields import FieldTable
from pellucid.server.generation import GenerationRequest
from pellucid.server.protocols.ask import Ask
from pellucid.server.protocols.ollama_api.fields import (
    CHAT_FIELDS,
    GENERATE_FIELDS,
)
from pellucid.server.protocols.ollama_api.input import conversation_of, prompt_of
from pellucid.server.protocols.ollama_api.writer import (
    Added,
    Form,
    LineWriter,
    OllamaBody,
    chat_form,
    generate_form,
    time_text,
)
from pellucid.server.serving import Handlers
from pellucid.server.streaming import CompletionsReply
from pellucid.text.tokenizer import Tokenizer


class Ollama(Handlers):
    """The handlers of the routes."""

    async def generate(self, call: Call) -> Reply | StreamedReply:
        """A text that continues a prompt, or answers it through the chat template."""
        return await self._answer(call, GENERATE_FIELDS, prompt_of, generate_form)

    async def chat(self, call: Call) -> Reply | StreamedReply:
        """An answer to a conversation, as lines of JSON or whole."""
        return await self._answer(call, CHAT_FIELDS, conversation_of, chat_form)

    async def _answer(
        self,
        call: Call,
        table: FieldTable[OllamaBody],
        prompt_of: Callable[[OllamaBody, Tokenizer, list[str]], Prompt],
        form: Form,
    ) -> Reply | StreamedReply:
        def request_of(body: OllamaBody, call: Call) -> GenerationRequest:
            defaults = self.model.default_sampling_params
            if body.is_empty:
                return GenerationRequest([], defaults)
            prompt = prompt_of(body, self.tokenizer, call.warnings)
            return GenerationRequest([prompt], body.sampling_params(defaults))

        ask = await Ask.read(self.serving, call, table, request_of)
        if ask.body.is_empty:
            return _loaded(ask, form)
        generation = await ask.start(self.serving, call)
        lines = LineWriter(generation, ask, form)
        if ask.body.stream is False:
            return Reply(lines.whole(await generation.finish()))
        return CompletionsReply(generation, lines)


def _loaded(ask: Ask[OllamaBody], form: Form) -> Reply:
    """The answer to an empty prompt."""
    named = {"model": ask.name, "created_at": time_text()}
    ended = {"done": True, "done_reason": "unload" if ask.body.unloads else "load"}
    return json_reply({**named, **form(Added()), **ended})
