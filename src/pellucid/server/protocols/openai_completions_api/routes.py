"""OpenAI's /v1/completions: text and token ids, lists of both, echo and log-probabilities.

https://platform.openai.com/docs/api-reference/completions, with vLLM's additions.
"""

from dataclasses import dataclass
from typing import Any

from pellucid.inputs.prompts import Prompt
from pellucid.server.endpoint import Call, Reply, StreamedReply
from pellucid.server.errors import refused
from pellucid.server.generation import GenerationRequest
from pellucid.server.protocols.openai_completions_api.fields import (
    COMPLETION_FIELDS,
    CompletionBody,
)
from pellucid.server.protocols.openai_completions_api.writer import TextChoiceWriter
from pellucid.server.protocols.openai_shared.writer import ReplyWriter
from pellucid.server.protocols.reasoning import with_budget
from pellucid.server.protocols.sampling import warn_of_room
from pellucid.server.serving import Serving

DEFAULT_MAX_TOKENS = 16  # OpenAI's


@dataclass
class Completions:
    """The handler of the route."""

    serving: Serving

    async def __call__(self, call: Call) -> Reply | StreamedReply:
        """A text that continues a prompt: strings, token ids, and lists of both."""
        service, tokenizer = self.serving.service, self.serving.model.tokenizer
        body, name, request = await service.read(call, self._read)
        generation = await service.start(request, call)
        warn_of_room(generation, next(iter(body.limit), None), self.serving.model.max_model_len)
        writer = ReplyWriter(
            generation,
            body,
            "cmpl",
            name,
            ("text_completion", "text_completion"),
            lambda number, output: TextChoiceWriter(
                number, body, tokenizer, output, body.is_prompt_only
            ),
        )
        return await writer.reply()

    def _read(self, call: Call) -> tuple[CompletionBody, str, GenerationRequest]:
        body = COMPLETION_FIELDS.decode(call.body, call.warnings)
        body.check_stream()
        model = self.serving.model
        name = model.check_name(body.model)
        limit = body.limit or {"max_tokens": DEFAULT_MAX_TOKENS}
        if body.is_prompt_only:
            limit = {"max_tokens": 1}  # the engine computes a prompt to go on
        logprobs = body.aliased("logprobs", "n_probs")
        body.logprobs = next(iter(logprobs.values()), None)
        rule = body.format_rule()
        params = body.sampling_params(
            model.default_sampling_params,
            **limit,
            **logprobs,
            best_of=body.best_of,
            prompt_logprobs=_prompt_logprobs(body),
            structured_outputs=None if rule is None else rule.params,
        )
        budget = body.thinking_budget_in_tokens(model.tokenizer, call.warnings)
        request = GenerationRequest(
            prompts_of(body.prompt),
            with_budget(params, budget),
            body.priority or 0,
            body.salt,
            rule_field="structured_outputs" if rule is None else rule.field,
        )
        body.prompt = ""  # not kept for as long as the reply takes
        return body, name, request


def _prompt_logprobs(body: CompletionBody) -> int | None:
    """How many the engine must compute at each position of the prompt: echo wants as many as logprobs."""
    wanted = [body.prompt_logprobs, body.logprobs if body.echo else None]
    return max((number for number in wanted if number is not None), default=None)


def prompts_of(prompt: str | list[Any]) -> list[Prompt]:
    """The prompts of a call: one, unless it is a list of strings and of lists of token ids."""
    if isinstance(prompt, str):
        return [prompt]
    if all(type(element) is int for element in prompt) and prompt:
        return [prompt]
    for index, element in enumerate(prompt):
        if isinstance(element, list) and all(type(token_id) is int for token_id in element):
            continue
        if not isinstance(element, str):
            raise refused(
                f"prompt[{index}]: must be a string or a list of token ids", f"prompt[{index}]"
            )
    return list(prompt)
