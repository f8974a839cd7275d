"""OpenAI's /v1/chat/completions: conversations, streamed or whole, with log-probabilities and tools.

https://platform.openai.com/docs/api-reference/chat, with the additions of vLLM and llama.cpp.
"""

from dataclasses import dataclass

from pellucid.prompts import ChatPrompt
from pellucid.sampling_params import SamplingParams
from pellucid.server.endpoint import Call, Reply, StreamedReply
from pellucid.server.errors import refused
from pellucid.server.generation import GenerationRequest
from pellucid.server.protocols.answer_rules import ToolChoice, answer_rule, openai_tool_choice
from pellucid.server.protocols.answers import AnswerForm
from pellucid.server.protocols.messages import readable_messages
from pellucid.server.protocols.openai_chat_api.choice_writer import ChatChoiceWriter
from pellucid.server.protocols.openai_chat_api.fields import CHAT_FIELDS, ChatBody
from pellucid.server.protocols.openai_shared.reply_writer import ReplyWriter
from pellucid.server.protocols.reasoning import effort_budget, effort_variables, with_budget
from pellucid.server.serving import Serving
from pellucid.text.tokenizer import Tokenizer


@dataclass
class ChatCompletions:
    """The handler of the route."""

    serving: Serving

    async def __call__(self, call: Call) -> Reply | StreamedReply:
        """An answer to a conversation, whole or streamed: log-probabilities, tools, structured outputs."""
        service, tokenizer = self.serving.service, self.serving.model.tokenizer
        body, name, request, form = await service.read(call, self._read)
        generation = await service.start(request, call)
        writer = ReplyWriter(
            generation,
            body,
            "chatcmpl",
            name,
            ("chat.completion", "chat.completion.chunk"),
            lambda number, output: ChatChoiceWriter(
                number, body, tokenizer, output, form.blocks(generation)
            ),
        )
        return await writer.reply()

    def _read(self, call: Call) -> tuple[ChatBody, str, GenerationRequest, AnswerForm]:
        body = CHAT_FIELDS.decode(call.body, call.warnings)
        body.check_stream()
        model = self.serving.model
        name = model.check_name(body.model)
        choice = openai_tool_choice(body.tool_choice, body.parallel_tool_calls)
        prompt = chat_prompt(body, choice, model.tokenizer, call.warnings)
        answers = model.tokenizer.response_format
        rule = answer_rule(body.format_rule(), choice, prompt.tools, answers, call.warnings)
        # A client that asks for special tokens gets the text unparsed.
        form = AnswerForm.of(model.tokenizer, prompt, rule, body.skip_special_tokens is False)
        params = _sampling_params(body, model.default_sampling_params)
        budget = body.thinking_budget_in_tokens(model.tokenizer, call.warnings)
        if budget is None:
            budget = effort_budget(body.reasoning_effort, model.tokenizer)
        params = form.adapt(with_budget(params, budget))
        request = GenerationRequest(
            [prompt], params, body.priority or 0, body.cache_salt, rule_field=form.rule_field
        )
        body.messages = []  # not kept for as long as the reply takes
        return body, name, request, form


def chat_prompt(
    body: ChatBody, choice: ToolChoice, tokenizer: Tokenizer, warnings: list[str]
) -> ChatPrompt:
    """The conversation of a call.

    Raises:
        ApiError: a field asks for what is not served.
        ValueError: names the message, the key, the value and what is allowed.
    """
    effort = effort_variables(body.reasoning_effort, "reasoning_effort", tokenizer, warnings)
    variables = effort | (body.chat_template_kwargs or {})
    return ChatPrompt(
        readable_messages(body.messages, warnings),
        (body.tools or None) if choice.offers else None,
        chat_template_kwargs=variables,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=bool(body.continue_final_message),
    )


def _sampling_params(body: ChatBody, defaults: SamplingParams) -> SamplingParams:
    if len({body.max_tokens, body.max_completion_tokens} - {None}) > 1:
        raise refused(
            "max_completion_tokens: must equal max_tokens, or one is left out", "max_tokens"
        )
    if body.top_logprobs and not body.logprobs:
        raise refused(f"top_logprobs={body.top_logprobs}: needs logprobs=true", "top_logprobs")
    return body.sampling_params(
        defaults,
        max_tokens=body.max_tokens if body.max_completion_tokens is None else None,
        max_completion_tokens=body.max_completion_tokens,
        top_logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        prompt_logprobs=body.prompt_logprobs,
    )
