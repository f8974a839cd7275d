"""OpenAI's /v1/completions: text and token ids, lists of both, echo and log-probabilities.

https://platform.openai.com/docs/api-reference/completions, with vLLM's additions.
"""

from dataclasses import dataclass

from pellucid.server.endpoint import Call, Reply, StreamedReply
from pellucid.server.protocols.ask import Ask, Prompts
from pellucid.server.protocols.openai_completions_api.fields import (
    COMPLETION_FIELDS,
    CompletionBody,
)
from pellucid.server.protocols.openai_completions_api.input import prompts_of
from pellucid.server.protocols.openai_completions_api.writer import TextChoiceWriter
from pellucid.server.protocols.openai_shared.writer import ReplyWriter
from pellucid.server.serving import Serving


@dataclass
class Completions:
    """The handler of the route."""

    serving: Serving

    async def __call__(self, call: Call) -> Reply | StreamedReply:
        """A text that continues a prompt: strings, token ids, and lists of both."""
        ask = await self.serving.service.read(call, self._read)
        generation = await ask.start(self.serving, call)
        body, tokenizer = ask.body, self.serving.model.tokenizer
        writer = ReplyWriter(
            generation,
            body,
            "cmpl",
            ask.name,
            ("text_completion", "text_completion"),
            lambda number, output: TextChoiceWriter(
                number, body, tokenizer, output, body.is_prompt_only
            ),
        )
        return await writer.reply()

    def _read(self, call: Call) -> Ask[CompletionBody]:
        body = COMPLETION_FIELDS.decode(call.body, call.warnings)
        body.check_stream()
        ask = Ask.of(
            self.serving.model,
            call,
            body,
            lambda body, call: Prompts(prompts_of(body.prompt), body.priority or 0, body.salt),
        )
        body.prompt = ""  # not kept for as long as the reply takes
        return ask
