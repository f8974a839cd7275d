"""OpenAI's /v1/chat/completions: conversations, streamed or whole, with log-probabilities and tools.

https://platform.openai.com/docs/api-reference/chat, with the additions of vLLM and llama.cpp.
"""

from dataclasses import dataclass

from pellucid.inputs.prompts import ChatPrompt
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.server.endpoint import Call, Reply, StreamedReply, json_reply
from pellucid.server.errors import refused
from pellucid.server.generation import GenerationRequest
from pellucid.server.protocols.answer_form import AnswerForm
from pellucid.server.protocols.answer_rules import answer_rule, openai_tool_choice
from pellucid.server.protocols.answers import shown_tools
from pellucid.server.protocols.messages import readable_messages
from pellucid.server.protocols.openai_chat_api.fields import (
    CHAT_FIELDS,
    INPUT_TOKENS_FIELDS,
    SWITCH,
    ChatBody,
    PlaceOfReasoning,
)
from pellucid.server.protocols.openai_chat_api.writer import ChatChoiceWriter
from pellucid.server.protocols.openai_shared.writer import ReplyWriter
from pellucid.server.protocols.reasoning import (
    effort_budget,
    effort_variables,
    known_variables,
    switch_budget,
    switch_variables,
    with_budget,
)
from pellucid.server.protocols.sampling import warn_of_room
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
        warn_of_room(generation, next(iter(body.limit), None), self.serving.model.max_model_len)
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

    async def input_tokens(self, call: Call) -> Reply:
        """The tokens that a request would have."""
        conversation = await self.serving.service.read(call, self._read_conversation)
        num_tokens = await self.serving.service.count_tokens(call, conversation)
        return json_reply({"object": "response.input_tokens", "input_tokens": num_tokens})

    def _read_conversation(self, call: Call) -> ChatPrompt:
        body = INPUT_TOKENS_FIELDS.decode(call.body, call.warnings)
        self.serving.model.check_name(body.model)
        return chat_prompt(body, self.serving.model.tokenizer, call.warnings)

    def _read(self, call: Call) -> tuple[ChatBody, str, GenerationRequest, AnswerForm]:
        body = CHAT_FIELDS.decode(call.body, call.warnings)
        body.check_stream()
        model = self.serving.model
        name = model.check_name(body.model)
        choice = openai_tool_choice(body.tool_choice, body.parallel_tool_calls)
        prompt = chat_prompt(body, model.tokenizer, call.warnings)
        answers = model.tokenizer.response_format
        rule = answer_rule(body.format_rule(), choice, prompt.tools, answers, call.warnings)
        form = AnswerForm.of(
            model.tokenizer,
            prompt,
            rule,
            # A client that asks for special tokens gets the text unparsed
            is_plain=body.skip_special_tokens is False,
            may_call=choice.may_call,
            keeps_reasoning=body.place_of_reasoning is PlaceOfReasoning.CONTENT,
        )
        params = _sampling_params(body, model.default_sampling_params)
        budget = body.thinking_budget_in_tokens(model.tokenizer, call.warnings)
        if budget is None:
            budget = effort_budget(body.reasoning_effort, model.tokenizer)
        switched_off = switch_budget(body.wants_thinking, model.tokenizer)
        params = form.adapt(with_budget(params, budget, switched_off))
        request = GenerationRequest(
            [prompt], params, body.priority or 0, body.salt, rule_field=form.rule_field
        )
        body.messages = []  # not kept for as long as the reply takes
        return body, name, request, form


def chat_prompt(body: ChatBody, tokenizer: Tokenizer, warnings: list[str]) -> ChatPrompt:
    """The conversation of a call.

    Tools stand in it even if none may be called: without them the prompt would differ from its beginning, and the
    prefix cache would find nothing of it.

    Raises:
        ApiError: a field asks for what is not served.
        ValueError: names the message, the key, the value and what is allowed.
    """
    variables = effort_variables(body.reasoning_effort, "reasoning_effort", tokenizer, warnings)
    variables |= switch_variables(body.wants_thinking, "enable_thinking", tokenizer, warnings)
    given = {
        name: value for name, value in (body.chat_template_kwargs or {}).items() if name != SWITCH
    }
    tools = body.tools or None
    if body.tool_choice == "none":  # then it is no fault if the template does not take them
        tools = shown_tools(body.tools or [], tokenizer, warnings)
    return ChatPrompt(
        readable_messages(body.messages, warnings),
        tools,
        chat_template_kwargs=variables | known_variables(given, tokenizer, warnings),
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=bool(body.continue_final_message),
    )


def _sampling_params(body: ChatBody, defaults: SamplingParams) -> SamplingParams:
    if body.top_logprobs and not body.logprobs:
        raise refused(f"top_logprobs={body.top_logprobs}: needs logprobs=true", "top_logprobs")
    return body.sampling_params(
        defaults,
        **body.limit,
        **({"n_probs" if body.n_probs else "top_logprobs": body.num_top_logprobs}),
        prompt_logprobs=body.prompt_logprobs,
    )
