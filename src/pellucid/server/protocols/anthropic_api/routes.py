"""Anthropic's /v1/messages and /v1/messages/count_tokens, for the official client and Claude Code.

https://docs.claude.com/en/api/messages
"""

from dataclasses import dataclass

from pellucid.inputs.prompts import ChatPrompt
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.server.endpoint import Call, Reply, StreamedReply, json_reply
from pellucid.server.generation import GenerationRequest
from pellucid.server.protocols.answer_form import AnswerForm
from pellucid.server.protocols.answer_rules import (
    answer_rule,
    anthropic_tool_choice,
    openai_format_rule,
)
from pellucid.server.protocols.anthropic_api.fields import (
    COUNT_FIELDS,
    MESSAGES_FIELDS,
    ConversationFields,
    MessagesBody,
)
from pellucid.server.protocols.anthropic_api.input import conversation_of, system_text
from pellucid.server.protocols.anthropic_api.writer import MessageWriter, diagnostics_of
from pellucid.server.protocols.cache_comparison import aspects_of
from pellucid.server.protocols.reasoning import (
    effort_budget,
    given_budget,
    switch_budget,
    with_budget,
)
from pellucid.server.protocols.sampling import warn_of_room, with_given
from pellucid.server.serving import Serving
from pellucid.server.streaming import CompletionsReply
from pellucid.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Messages:
    """The handlers of the routes."""

    serving: Serving

    async def create(self, call: Call) -> Reply | StreamedReply:
        """An answer to a conversation, whole or streamed: thinking, tools, structured outputs."""
        service = self.serving.service
        name, request, form, earlier_id, is_streamed = await service.read(call, self._read)
        generation = await service.start(request, call)
        warn_of_room(generation, "max_tokens", self.serving.model.max_model_len)
        writer = MessageWriter(
            generation, name, form, lambda: diagnostics_of(earlier_id, generation, self.serving)
        )
        if is_streamed:
            return CompletionsReply(generation, writer)
        return Reply(writer.whole(await generation.finish()))

    async def count_tokens(self, call: Call) -> Reply:
        """The tokens that a request would have."""
        conversation = await self.serving.service.read(call, self._read_count)
        num_tokens = await self.serving.service.count_tokens(call, conversation)
        return json_reply({"input_tokens": num_tokens})

    def _read(
        self, call: Call
    ) -> tuple[str, GenerationRequest, AnswerForm, str | None, bool | None]:
        body = MESSAGES_FIELDS.decode(call.body, call.warnings)
        model = self.serving.model
        name = model.check_name(body.model)
        conversation = self._conversation(body, call)
        choice = anthropic_tool_choice(body.tool_choice)
        rule = answer_rule(
            openai_format_rule(
                None if body.output_config is None else body.output_config.format,
                "output_config.format",
            ),
            choice,
            conversation.tools,
            model.tokenizer.response_format,
            call.warnings,
        )
        form = AnswerForm.of(model.tokenizer, conversation, rule, may_call=choice.may_call)
        params = _sampling_params(body, model.default_sampling_params)
        params = form.adapt(with_budget(params, *_budgets(body, model.tokenizer, call.warnings)))
        request = GenerationRequest(
            [conversation],
            params,
            aspects=aspects_of(tools=body.tools, system=self._system(body, call)),
            rule_field=form.rule_field,
        )
        asked = body.diagnostics
        earlier_id = None if asked is None else asked.previous_message_id
        return name, request, form, earlier_id, body.stream

    def _read_count(self, call: Call) -> ChatPrompt:
        body = COUNT_FIELDS.decode(call.body, call.warnings)
        self.serving.model.check_name(body.model)
        return self._conversation(body, call)

    def _system(self, body: ConversationFields, call: Call) -> str:
        keeps_billing = self.serving.config.keep_billing_block
        return system_text(body.system or "", keeps_billing, call.warnings)

    def _conversation(self, body: ConversationFields, call: Call) -> ChatPrompt:
        keeps_billing = self.serving.config.keep_billing_block
        return conversation_of(body, self.serving.model.tokenizer, call.warnings, keeps_billing)


def _budgets(
    body: MessagesBody, tokenizer: Tokenizer, warnings: list[str]
) -> tuple[int | None, ...]:
    """The budgets of thinking that a call gives, in tokens."""
    given = None
    if body.thinking is not None and body.wants_thinking:
        tokens = {"thinking.budget_tokens": body.thinking.budget_tokens}
        given = given_budget(tokens, tokenizer, warnings)
    if given is None:
        given = effort_budget(body.effort, tokenizer)
    return given, switch_budget(body.wants_thinking, tokenizer)


def _sampling_params(body: MessagesBody, defaults: SamplingParams) -> SamplingParams:
    given = {
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "stop_sequences": body.stop_sequences,
        "max_tokens": body.max_tokens,
    }
    return with_given(defaults, given, {"stop_sequences": "stop"})
