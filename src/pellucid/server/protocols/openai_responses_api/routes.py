"""OpenAI's /v1/responses without storage: the client sends the whole conversation, as Codex CLI does.

https://platform.openai.com/docs/api-reference/responses
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pellucid.inputs.parameter_checks import shown
from pellucid.inputs.prompts import ChatPrompt
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.server.endpoint import Call, Reply, StreamedReply, json_reply
from pellucid.server.errors import refused
from pellucid.server.generation import GenerationRequest
from pellucid.server.protocols.answer_form import AnswerForm
from pellucid.server.protocols.answer_rules import (
    answer_rule,
    openai_format_rule,
    openai_tool_choice,
)
from pellucid.server.protocols.cache_comparison import aspects_of
from pellucid.server.protocols.openai_responses_api.fields import (
    ENCRYPTED,
    INPUT_TOKENS_FIELDS,
    LOGPROBS,
    RESPONSES_FIELDS,
    ConversationFields,
    ResponsesBody,
)
from pellucid.server.protocols.openai_responses_api.input import Conversation, conversation_of
from pellucid.server.protocols.openai_responses_api.kept_items import KeptItems
from pellucid.server.protocols.openai_responses_api.response_object import ResponseObject
from pellucid.server.protocols.openai_responses_api.tools import CalledTool, flat_name
from pellucid.server.protocols.openai_responses_api.writer import EventWriter
from pellucid.server.protocols.reasoning import effort_budget, with_budget
from pellucid.server.protocols.sampling import warn_of_room, with_given
from pellucid.server.serving import Serving
from pellucid.server.streaming import CompletionsReply


@dataclass(frozen=True)
class _Wanted:
    """What a call asks for.

    Attributes:
        name: by which it calls the model.
        form: how the answer is read.
        tools: as in `Conversation`.
    """

    body: ResponsesBody
    name: str
    request: GenerationRequest
    form: AnswerForm
    tools: Mapping[str, CalledTool]


@dataclass(frozen=True)
class Responses:
    """The handlers of the routes."""

    serving: Serving
    kept: KeptItems = field(default_factory=KeptItems)

    async def create(self, call: Call) -> Reply | StreamedReply:
        """An answer to items. A client sends the whole conversation, in which it may refer to recent items."""
        service = self.serving.service
        wanted = await service.read(call, self._read)
        body = wanted.body
        generation = await service.start(wanted.request, call)
        limit = None if body.max_output_tokens is None else "max_output_tokens"
        warn_of_room(generation, limit, self.serving.model.max_model_len)
        response = ResponseObject(
            generation, body, wanted.name, wanted.form, service.records, wanted.tools, self.kept
        )
        if body.stream:
            return CompletionsReply(generation, EventWriter(response))
        (output,) = await generation.finish()
        return json_reply(response.whole(output))

    async def input_tokens(self, call: Call) -> Reply:
        """The tokens that a request would have."""
        conversation = await self.serving.service.read(call, self._read_count)
        num_tokens = await self.serving.service.count_tokens(call, conversation)
        return json_reply({"object": "response.input_tokens", "input_tokens": num_tokens})

    def _read(self, call: Call) -> _Wanted:
        body = RESPONSES_FIELDS.decode(call.body, call.warnings)
        if body.truncation not in (None, "disabled"):
            raise refused(
                f"truncation={shown(body.truncation)}: must be 'disabled': nothing is cut",
                "truncation",
            )
        body.check_repeated()
        for included in body.include or ():
            if included not in (LOGPROBS, ENCRYPTED):
                call.warnings.append(f"include: {included[:64]!r} has no effect")
        if body.top_logprobs and not body.wants_logprobs:
            call.warnings.append(f"top_logprobs: has no effect: include has no {LOGPROBS!r}")
        model = self.serving.model
        name = model.check_name(body.model)
        read = self._conversation(body, call)
        conversation = read.prompt
        choice = openai_tool_choice(_flat_choice(body.tool_choice), body.parallel_tool_calls)
        rule = answer_rule(
            openai_format_rule(body.text_format, "text.format"),
            choice,
            conversation.tools,
            model.tokenizer.response_format,
            call.warnings,
        )
        form = AnswerForm.of(model.tokenizer, conversation, rule, may_call=choice.may_call)
        params = _sampling_params(body, model.default_sampling_params)
        params = form.adapt(with_budget(params, effort_budget(body.effort, model.tokenizer)))
        request = GenerationRequest(
            [conversation],
            params,
            aspects=aspects_of(tools=body.tools, reasoning_effort=body.effort),
            rule_field=form.rule_field,
        )
        body.input = []  # not kept for as long as the reply takes
        return _Wanted(body, name, request, form, read.tools)

    def _read_count(self, call: Call) -> ChatPrompt:
        body = INPUT_TOKENS_FIELDS.decode(call.body, call.warnings)
        self.serving.model.check_name(body.model)
        return self._conversation(body, call).prompt

    def _conversation(self, body: ConversationFields, call: Call) -> Conversation:
        find = partial(self.kept.find, call.caller.name)
        return conversation_of(body, self.serving.model.tokenizer, call.warnings, find)


def _flat_choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    """A choice of a tool by the name that the model uses, whatever its type."""
    if isinstance(choice, dict) and choice.get("type") in ("custom", "function"):
        name = flat_name(choice.get("name"), choice.get("namespace"))
        return {"type": "function", "name": name}
    return choice


def _sampling_params(body: ResponsesBody, defaults: SamplingParams) -> SamplingParams:
    return with_given(
        defaults,
        {
            "temperature": body.temperature,
            "top_p": body.top_p,
            "max_output_tokens": body.max_output_tokens,
            "top_logprobs": (body.top_logprobs or 0) if body.wants_logprobs else None,
        },
        {"max_output_tokens": "max_tokens", "top_logprobs": "logprobs"},
    )
