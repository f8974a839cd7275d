"""OpenAI's /v1/chat/completions: conversations, streamed or whole, with log-probabilities and tools.

https://platform.openai.com/docs/api-reference/chat, with the additions of vLLM and llama.cpp.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from pellucid.outputs import CompletionDelta, RequestOutput
from pellucid.prompts import ChatPrompt
from pellucid.sampling_params import SamplingParams
from pellucid.server.endpoint import Call, Reply, StreamedReply
from pellucid.server.errors import refused
from pellucid.server.fields import FieldTable, honoured, not_served, without_effect
from pellucid.server.generation import GenerationRequest
from pellucid.server.protocols.answer_rules import ToolChoice, answer_rule, openai_tool_choice
from pellucid.server.protocols.answers import (
    AnswerBlocks,
    AnswerForm,
    Block,
    BlockEvent,
    BlockKind,
    Change,
)
from pellucid.server.protocols.logprobs import TokenLogprob, token_logprobs
from pellucid.server.protocols.messages import readable_messages
from pellucid.server.protocols.openai_common import (
    SAMPLING_FIELDS,
    STREAM_OPTION_FIELDS,
    ReplyWriter,
    SamplingFields,
    prompt_logprobs_of,
)
from pellucid.server.protocols.reasoning import effort_budget, effort_variables, with_budget
from pellucid.server.serving import Serving
from pellucid.server.streaming import TextChunks, TextTemplate
from pellucid.text.tokenizer import Tokenizer


class ChatBody(SamplingFields, kw_only=True):
    messages: list[Any]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    modalities: list[Literal["text"]] | None = None


CHAT_FIELDS = FieldTable(
    "POST /v1/chat/completions",
    ChatBody,
    (
        *honoured(
            messages="roles system, developer, user, assistant, tool; text or text parts; tool calls; keys that"
            " client libraries add have no effect",
            max_tokens="left out, all of the remaining context; the answer ends when the context is full",
            max_completion_tokens="the same by its newer name",
            logprobs="log-probabilities of the answer's tokens",
            top_logprobs="0..20 likeliest tokens at each position",
            tools="functions that the model may call; refused if the model's template does not take them",
            tool_choice="auto, none, required, or a function: the answer is valid calls and nothing else;"
            " refused if no grammar of the model's calls is known",
            parallel_tool_calls="false: at most one call, if calls are enforced by tool_choice or by"
            " strict in a tool",
            reasoning_effort="for templates that read it; for other models that reason, none, minimal and low are"
            " budgets of 0, 512 and 2048 tokens, and other efforts set no limit",
            chat_template_kwargs="variables for the template, such as enable_thinking",
            add_generation_prompt="end the prompt with the text that opens the answer",
            continue_final_message="the answer continues the final message",
            modalities="text",
        ),
        *SAMPLING_FIELDS,
        *without_effect(
            prompt_cache_options="equal prompts are found by their tokens; there are no breakpoints",
            prediction="speculation finds repeated text by itself",
            verbosity="say it in a message",
        ),
        *not_served(
            audio="only text is served",
            best_of="a parameter of /v1/completions",
            chat_template="a template is a program; start the server with a model that has it",
            documents="send them in a message",
            function_call="use tool_choice",
            functions="use tools",
            moderation="the server runs no moderation",
            web_search_options="the server fetches nothing",
        ),
    ),
    objects={"stream_options": STREAM_OPTION_FIELDS},
    example={"messages": [{"role": "user", "content": "What is 12 + 7?"}], "max_tokens": 32},
)


class ChoiceLogprobs(msgspec.Struct):
    content: list[TokenLogprob]
    refusal: None = None


class CallFunction(msgspec.Struct):
    name: str | UnsetType
    arguments: str


class ToolCall(msgspec.Struct):
    """A call, or in a stream what is added to one: its first part has everything but the arguments."""

    function: CallFunction
    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET


class ChatMessage(msgspec.Struct):
    """Clients of vLLM and Ollama read `reasoning`, those of llama.cpp `reasoning_content`."""

    content: str | None
    role: str = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct):
    index: int
    message: ChatMessage
    logprobs: ChoiceLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: list[Any] | UnsetType | None = UNSET


class ChatDelta(msgspec.Struct):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


NOTHING = ChatDelta()


class ChunkChoice(msgspec.Struct):
    index: int
    delta: ChatDelta
    logprobs: ChoiceLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: list[Any] | UnsetType | None = UNSET


@dataclass
class ChatCompletions:
    """The handler of the route."""

    serving: Serving

    async def __call__(self, call: Call) -> Reply | StreamedReply:
        """An answer to a conversation, whole or streamed: log-probabilities, tools, structured outputs."""
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
        generation = await self.serving.service.start(request, call)
        writer = ReplyWriter(
            generation,
            body,
            "chatcmpl",
            name,
            ("chat.completion", "chat.completion.chunk"),
            lambda number, output: _Choice(
                number, body, model.tokenizer, output, form.blocks(generation)
            ),
        )
        return await writer.reply()


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


class _Choice:
    """Writes one choice, whole or in parts."""

    def __init__(
        self,
        number: int,
        body: ChatBody,
        tokenizer: Tokenizer,
        output: RequestOutput,
        blocks: AnswerBlocks,
    ) -> None:
        self._number = number
        self._body = body
        self._tokenizer = tokenizer
        self._output = output
        self._blocks = blocks
        self._is_first = True
        self._has_equal_frames = body.has_equal_frames and not body.logprobs
        self._template_block: Block | None = None  # whose growth the template's frames bring
        self._template = TextTemplate(b"")
        self._text_chunks: TextChunks | None = None
        self._num_tokens = 0  # of the deltas without those of `_text_chunks`

    @property
    def num_tokens(self) -> int:
        return self._num_tokens + (0 if self._text_chunks is None else self._text_chunks.num_tokens)

    @property
    def num_reasoning_tokens(self) -> int:
        return self._blocks.num_reasoning_tokens

    def whole(self, delta: CompletionDelta) -> ChatChoice:
        self._num_tokens += len(delta.token_ids)
        self._blocks.read(delta)
        choice = ChatChoice(
            self._number,
            self._message(),
            self._logprobs(delta),
            self._finish_reason(delta),
            delta.stop_reason,
        )
        self._add_tokens(choice, delta)
        return choice

    def part(
        self, delta: CompletionDelta, frame: Callable[[msgspec.Struct], bytes]
    ) -> bytes | None:
        self._num_tokens += len(delta.token_ids)
        events = self._blocks.read(delta)
        if len(events) == 1 and delta.finish_reason is None:
            (event,) = events
            if event.block is self._template_block and event.change is Change.GREW:
                return self._template.of(event.text)
        part = self._full_part(delta, events)
        block = self._blocks.open_block
        if self._has_equal_frames and block is not None and block is not self._template_block:
            if block.kind is not BlockKind.CALL:
                added = _growth(block.kind, TextTemplate.PLACE)
                self._template = TextTemplate(frame(ChunkChoice(self._number, added)))
                self._template_block = block
        return None if part is None else frame(part)

    def text_chunks(self, frame: Callable[[msgspec.Struct], bytes]) -> TextChunks | None:
        if not (self._has_equal_frames and self._blocks.grow_by_text_alone):
            return None
        if self._text_chunks is None:
            added = _growth(BlockKind.TEXT, TextTemplate.PLACE)
            self._text_chunks = TextChunks.of_template(frame(ChunkChoice(self._number, added)))
        return self._text_chunks

    def _full_part(
        self, delta: CompletionDelta, events: Sequence[BlockEvent]
    ) -> ChunkChoice | None:
        added = self._added(events)
        choice = ChunkChoice(self._number, added)
        if delta.logprobs is not None:
            choice.logprobs = self._logprobs(delta)
        if delta.finish_reason is not None:
            choice.finish_reason = self._finish_reason(delta)
            choice.stop_reason = delta.stop_reason
        elif added == NOTHING and delta.logprobs is None and not self._body.return_token_ids:
            return None  # half a character, or what may become a stop string or a tool call
        if self._is_first:
            added.role = "assistant"
            if added.content is UNSET:
                added.content = ""
        if self._is_first or self._body.return_token_ids:
            self._add_tokens(choice, delta)
        self._is_first = False
        return choice

    def _message(self) -> ChatMessage:
        text = self._blocks.text_of(BlockKind.TEXT)
        message = ChatMessage(None if self._blocks.has_calls and not text else text)
        if reasoning := self._blocks.text_of(BlockKind.REASONING):
            message.reasoning_content = message.reasoning = reasoning
        if self._blocks.has_calls:
            message.tool_calls = [
                ToolCall(
                    CallFunction(block.name or "", block.text),
                    id=block.call_id or UNSET,
                    type="function",
                )
                for block in self._blocks.blocks
                if block.kind is BlockKind.CALL
            ]
        return message

    def _added(self, events: Sequence[BlockEvent]) -> ChatDelta:
        """The delta of a message for changes of blocks."""
        added = ChatDelta()
        calls: dict[int, ToolCall] = {}  # by index: clients take two entries for two calls
        for event in events:
            block = event.block
            if block.kind is BlockKind.CALL and event.change is not Change.CLOSED:
                index = self._call_index(block)
                call = calls.setdefault(index, ToolCall(CallFunction(UNSET, ""), index=index))
                call.function.arguments += event.text
                if event.change is Change.OPENED:
                    call.id, call.type = block.call_id or UNSET, "function"
                    call.function.name = block.name or ""
            elif event.change is Change.GREW and block.kind is BlockKind.TEXT:
                added.content = (added.content or "") + event.text
            elif event.change is Change.GREW:
                added.reasoning = (added.reasoning or "") + event.text
                added.reasoning_content = added.reasoning
        if calls:
            added.tool_calls = list(calls.values())
        return added

    def _call_index(self, block: Block) -> int:
        calls = [each for each in self._blocks.blocks if each.kind is BlockKind.CALL]
        return calls.index(block)

    def _finish_reason(self, delta: CompletionDelta) -> str | None:
        is_named = isinstance(self._body.tool_choice, dict)  # OpenAI's answer to that is "stop"
        if delta.finish_reason == "stop" and self._blocks.has_calls and not is_named:
            return "tool_calls"
        return delta.finish_reason

    def _add_tokens(self, choice: ChatChoice | ChunkChoice, delta: CompletionDelta) -> None:
        """What vLLM's clients may ask for besides."""
        if self._body.return_token_ids:
            choice.token_ids = delta.token_ids
            if self._is_first:
                choice.prompt_token_ids = self._output.prompt_token_ids
        if self._is_first and self._body.prompt_logprobs is not None:
            choice.prompt_logprobs = prompt_logprobs_of(self._output)

    def _logprobs(self, delta: CompletionDelta) -> ChoiceLogprobs | None:
        if delta.logprobs is None:
            return None
        return ChoiceLogprobs(
            token_logprobs(
                self._tokenizer, delta.token_ids, delta.logprobs, self._body.top_logprobs or 0
            )
        )


def _growth(kind: BlockKind, text: str) -> ChatDelta:
    """The delta of a message for added text of content or reasoning."""
    if kind is BlockKind.TEXT:
        return ChatDelta(content=text)
    return ChatDelta(reasoning_content=text, reasoning=text)
