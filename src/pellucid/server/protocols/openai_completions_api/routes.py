"""OpenAI's /v1/completions: text and token ids, lists of both, echo and log-probabilities.

https://platform.openai.com/docs/api-reference/completions, with vLLM's additions.
"""

from pellucid.server.endpoint import Call, Reply, StreamedReply
from pellucid.server.generation import GenerationRequest
from pellucid.server.protocols.ask import Ask
from pellucid.server.protocols.openai_completions_api.fields import (
    COMPLETION_FIELDS,
    CompletionBody,
)
from pellucid.server.protocols.openai_completions_api.input import prompts_of
from pellucid.server.protocols.openai_completions_api.writer import TextChoiceWriter
from pellucid.server.protocols.openai_shared.writer import ReplyWriter
from pellucid.server.serving import Handlers


class Completions(Handlers):
    """The handler of the route."""

    async def __call__(self, call: Call) -> Reply | StreamedReply:
        """A text that continues a prompt: strings, token ids, and lists of both."""
        ask = await Ask.read(self.serving, call, COMPLETION_FIELDS, self._request)
        generation = await ask.start(self.serving, call)
        names = ("text_completion", "text_completion")
        return await ReplyWriter(generation, ask, "cmpl", names, TextChoiceWriter).reply()

    def _request(self, body: CompletionBody, call: Call) -> GenerationRequest:
        params = body.sampling_params(self.model.default_sampling_params)
        prompts, body.prompt = (
            prompts_of(body.prompt),
            "",
        )  # not kept for as long as the reply takes
        return GenerationRequest(prompts, params, body.priority or 0, body.salt)
