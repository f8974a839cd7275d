"""Anthropic's /v1/messages and /v1/messages/count_tokens, for the official client and Claude Code.

https://docs.claude.com/en/api/messages
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from pellucid.outputs import CompletionDelta, RequestOutput
from pellucid.parameter_checks import shown
from pellucid.prompts import ChatPrompt
from pellucid.sampling_params import SamplingParams
from pellucid.server.cache_comparison import CacheOutcome, aspects_of, compare_with
from pellucid.server.endpoint import Call, Reply, StreamedReply, json_reply
from pellucid.server.errors import ApiError, ErrorShape, refused
from pellucid.server.fields import (
    FieldTable,
    Treatment,
    honoured,
    not_served,
    warn_of_unknown_keys,
    without_effect,
)
from pellucid.server.generation import Generation, GenerationRequest, whole_delta
from pellucid.server.protocols.answer_rules import (
    answer_rule,
    anthropic_tool_choice,
    openai_format_rule,
)
from pellucid.server.protocols.answers import (
    AnswerForm,
    Block,
    BlockEvent,
    BlockKind,
    Change,
    arguments_of,
    shown_tools,
)
from pellucid.server.protocols.reasoning import (
    effort_budget,
    effort_variables,
    given_budget,
    switch_budget,
    switch_variables,
    with_budget,
)
from pellucid.server.protocols.sampling import with_given
from pellucid.server.serving import Serving
from pellucid.server.streaming import (
    CompletionsReply,
    StreamWriter,
    TextChunks,
    TextTemplate,
    sse_event,
)
from pellucid.text.tokenizer import Tokenizer

_log = logging.getLogger("pellucid.server")

# Claude Code puts a line of this name before its system prompt, with a number that changes in every request:
# no prompt would ever be found in the cache again.
BILLING_BLOCK = "x-anthropic-billing-header"
STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "abort": "end_turn"}
PING = b'event: ping\ndata: {"type":"ping"}\n\n'


class Diagnostics(msgspec.Struct):
    previous_message_id: str | None = None


class OutputConfig(msgspec.Struct):
    format: dict[str, Any] | None = None
    effort: str | None = None


class Thinking(msgspec.Struct):
    type: Literal["adaptive", "disabled", "enabled"] = "enabled"
    budget_tokens: int | None = None


class ConversationFields(msgspec.Struct, kw_only=True):
    messages: list[Any]
    model: str | None = None
    system: str | list[Any] | None = None
    tools: list[Any] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None

    @property
    def effort(self) -> str | None:
        return None if self.output_config is None else self.output_config.effort

    @property
    def wants_thinking(self) -> bool | None:
        return None if self.thinking is None else self.thinking.type != "disabled"


class MessagesBody(ConversationFields, kw_only=True):
    max_tokens: int
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    diagnostics: Diagnostics | None = None


THINKING_FIELDS = FieldTable(
    "`thinking` of messages",
    Thinking,
    (
        *honoured(
            type="adaptive, disabled or enabled: enable_thinking of templates that read it; for other models"
            " that reason, disabled is a budget of 0",
            budget_tokens="maximum tokens of thinking; then the end of thinking is forced",
        ),
        *without_effect(display="thinking is given as the model wrote it"),
    ),
    Treatment.WITHOUT_EFFECT,
)
OUTPUT_CONFIG_FIELDS = FieldTable(
    "`output_config` of messages",
    OutputConfig,
    honoured(
        format="json_schema, which is enforced; with tools, the answer either consists of calls or has the format",
        effort="as reasoning_effort of /v1/chat/completions",
    ),
    Treatment.WITHOUT_EFFECT,
)
DIAGNOSTICS_FIELDS = FieldTable(
    "`diagnostics` of messages",
    Diagnostics,
    honoured(
        previous_message_id="an earlier message: why the prompt was not found in the cache, exactly"
    ),
    Treatment.WITHOUT_EFFECT,
)
CONVERSATION_OBJECTS: dict[str, FieldTable[Any]] = {
    "thinking": THINKING_FIELDS,
    "output_config": OUTPUT_CONFIG_FIELDS,
}
CONVERSATION_FIELDS = (
    *honoured(
        messages="roles user, assistant and system; text, tool_use, tool_result and thinking blocks;"
        " a final message of the assistant is continued",
        model="the served model's name or one of its aliases",
        system="text or text blocks; Claude Code's changing billing line is left out, and logged",
        tools="functions, which the chat template shows to the model; the vendor's own tools are"
        " left out with a warning",
        tool_choice="auto, none, any, or a tool: the answer is valid calls and nothing else; refused if no"
        " grammar of the model's calls is known",
        thinking="see below",
        output_config="see below",
    ),
    *without_effect(
        cache_control="equal prompts are found by their tokens",
        context_management="nothing is left out of a conversation",
    ),
    *not_served(
        container="there are no containers",
        mcp_servers="the server calls no other servers; give their functions as tools",
    ),
)
MESSAGES_FIELDS = FieldTable(
    "POST /v1/messages",
    MessagesBody,
    (
        *honoured(
            max_tokens="the answer ends when the context is full",
            stop_sequences="strings that end the answer",
            stream="server-sent events",
            temperature="0 is greedy; left out, the model's own default",
            top_p="see docs/sampling.md",
            top_k="see docs/sampling.md",
            diagnostics="see below",
        ),
        *CONVERSATION_FIELDS,
        *without_effect(
            metadata="nothing is stored",
            service_tier="there is one",
            inference_geo="it runs here",
            speed="there is one speed",
        ),
    ),
    Treatment.WITHOUT_EFFECT,
    {**CONVERSATION_OBJECTS, "diagnostics": DIAGNOSTICS_FIELDS},
    {"max_tokens": 32, "messages": [{"role": "user", "content": "What is 12 + 7?"}]},
)
COUNT_FIELDS = FieldTable(
    "POST /v1/messages/count_tokens",
    ConversationFields,
    (*CONVERSATION_FIELDS, *without_effect(speed="there is one speed")),
    Treatment.WITHOUT_EFFECT,
    CONVERSATION_OBJECTS,
    {"messages": [{"role": "user", "content": "What is 12 + 7?"}]},
)


@dataclass(frozen=True)
class Messages:
    """The handlers of the routes."""

    serving: Serving

    async def create(self, call: Call) -> Reply | StreamedReply:
        """An answer to a conversation, whole or streamed: thinking, tools, structured outputs."""
        body = MESSAGES_FIELDS.decode(call.body, call.warnings)
        model = self.serving.model
        name = model.check_name(body.model)
        conversation = self._conversation(body, call)
        rule = answer_rule(
            openai_format_rule(
                None if body.output_config is None else body.output_config.format,
                "output_config.format",
            ),
            anthropic_tool_choice(body.tool_choice),
            conversation.tools,
            model.tokenizer.response_format,
            call.warnings,
        )
        form = AnswerForm.of(model.tokenizer, conversation, rule)
        params = _sampling_params(body, model.default_sampling_params)
        params = form.adapt(with_budget(params, *_budgets(body, model.tokenizer, call.warnings)))
        request = GenerationRequest(
            [conversation],
            params,
            aspects=aspects_of(tools=body.tools, system=self._system(body)),
            rule_field=form.rule_field,
        )
        generation = await self.serving.service.start(request, call)
        asked = body.diagnostics
        earlier_id = None if asked is None else asked.previous_message_id
        writer = _Writer(
            generation, name, form, lambda: _diagnostics(earlier_id, generation, self.serving)
        )
        if body.stream:
            return CompletionsReply(generation, writer)
        return Reply(writer.whole(await generation.finish()))

    async def count_tokens(self, call: Call) -> Reply:
        """The tokens that a request would have."""
        body = COUNT_FIELDS.decode(call.body, call.warnings)
        self.serving.model.check_name(body.model)
        conversation = self._conversation(body, call)
        encode = self.serving.model.tokenizer.encode_conversation
        token_ids = await self.serving.service.work_on_text(lambda: encode(conversation))
        return json_reply({"input_tokens": len(token_ids)})

    def _system(self, body: ConversationFields) -> str:
        return _system_text(body.system or "", self.serving.config.keep_billing_block)

    def _conversation(self, body: ConversationFields, call: Call) -> ChatPrompt:
        keeps_billing = self.serving.config.keep_billing_block
        return conversation_of(body, self.serving.model.tokenizer, call.warnings, keeps_billing)


def conversation_of(
    body: ConversationFields, tokenizer: Tokenizer, warnings: list[str], keeps_billing: bool = False
) -> ChatPrompt:
    """The conversation of a call in the form that all protocols share.

    Messages keep their order, system messages within the conversation included. Moved to the front, they would
    change the prompt from its beginning, and the prefix cache would find nothing of it.

    Raises:
        ApiError: a block is not served.
        ValueError: names the message, the key, the value and what is allowed.
    """
    messages: list[Any] = []
    for block in body.system if isinstance(body.system, list) else ():
        if isinstance(block, dict):
            warn_of_unknown_keys(block, _BLOCK_KEYS["text"] | {"type"}, "system", warnings)
    if body.system is not None and (system := _system_text(body.system, keeps_billing)):
        messages.append({"role": "system", "content": system})
    for index, message in enumerate(body.messages):
        messages += _messages(message, f"messages[{index}]", warnings)
    choice = anthropic_tool_choice(body.tool_choice)
    functions = _functions(body.tools or (), warnings)
    offered = shown_tools(functions, tokenizer, warnings) if choice.offers else None
    variables = effort_variables(body.effort, "output_config.effort", tokenizer, warnings)
    variables |= switch_variables(body.wants_thinking, "thinking", tokenizer, warnings)
    last = messages[-1] if messages else {}
    continues = last.get("role") == "assistant" and bool(last.get("content"))
    return ChatPrompt(
        messages,
        offered,
        chat_template_kwargs=variables,
        continue_final_message=continues and not last.get("tool_calls"),
    )


def _system_text(system: str | list[Any], keeps_billing: bool) -> str:
    blocks = [system] if isinstance(system, str) else [_text(block, "system") for block in system]
    if keeps_billing:
        return "\n\n".join(blocks)
    kept = [text for text in blocks if not text.lstrip().startswith(BILLING_BLOCK)]
    if len(kept) < len(blocks):
        _log.debug("left a block out of a system prompt that changes with every request")
    return "\n\n".join(kept)


def _messages(message: Any, name: str, warnings: list[str]) -> list[dict[str, Any]]:
    """One of Anthropic's messages: results of tools become messages of their own, before its text."""
    if not isinstance(message, dict) or message.get("role") not in ("user", "assistant", "system"):
        raise refused(f"{name}.role: must be 'user', 'assistant' or 'system'", name)
    role, content = message["role"], message.get("content")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list):
        raise refused(f"{name}.content: must be text or a list of blocks", f"{name}.content")
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for index, block in enumerate(content):
        at = f"{name}.content[{index}]"
        kind = block.get("type") if isinstance(block, dict) else None
        if isinstance(kind, str) and kind in _BLOCK_KEYS:
            warn_of_unknown_keys(block, _BLOCK_KEYS[kind] | {"type"}, "messages", warnings)
        if kind == "text":
            texts.append(_text(block, at))
        elif kind == "thinking":
            reasoning.append(str(block.get("thinking", "")))
        elif kind == "redacted_thinking":
            warnings.append(f"{at}: has no effect: nobody here can read it")
        elif kind == "tool_use":
            function = {"name": block.get("name"), "arguments": block.get("input") or {}}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind == "tool_result":
            results.append(
                {
                    "role": "tool",
                    "tool_call_id": block.get("tool_use_id"),
                    "content": _result_text(block, at),
                }
            )
        else:
            raise refused(f"{at}.type={shown(kind)}: only text and tools are served", at)
    made: list[dict[str, Any]] = list(results)
    if texts or calls or reasoning:
        own: dict[str, Any] = {"role": role, "content": "\n".join(texts) if texts else None}
        if reasoning:
            own["reasoning_content"] = "\n".join(reasoning)
        if calls:
            own["tool_calls"] = calls
        made.append(own)
    return made or [{"role": role, "content": ""}]


def _result_text(block: dict[str, Any], name: str) -> str:
    content = block.get("content")
    if content is None:
        content = ""
    if not isinstance(content, str):
        if not isinstance(content, list):
            raise refused(f"{name}.content: must be text or a list of blocks", name)
        content = "\n".join(_text(part, f"{name}.content") for part in content)
    return f"Error: {content}" if block.get("is_error") is True else content


def _text(block: Any, name: str) -> str:
    if not isinstance(block, dict) or block.get("type") != "text":
        kind = block.get("type") if isinstance(block, dict) else None
        raise refused(f"{name}.type={shown(kind)}: only text is served", name)
    text = block.get("text")
    if not isinstance(text, str):
        raise refused(f"{name}.text: must be text", name)
    return text


_TOOL_KEYS = {"type", "name", "description", "input_schema", "strict"}
# What is read of each kind of block; thinking's signature proves to the vendor that it is the vendor's.
_BLOCK_KEYS = {
    "text": {"text"},
    "thinking": {"thinking", "signature"},
    "tool_use": {"id", "name", "input"},
    "tool_result": {"tool_use_id", "content", "is_error"},
}


def _functions(tools: Sequence[Any], warnings: list[str]) -> list[dict[str, Any]]:
    """The functions among the tools of a call."""
    functions = []
    for index, tool in enumerate(tools):
        if not isinstance(tool, dict):
            raise refused(f"tools[{index}]: must be an object", "tools")
        if tool.get("type", "custom") != "custom":
            warnings.append(
                f"tools[{index}]: has no effect: {shown(tool['type'])} is the vendor's own"
            )
            continue
        warn_of_unknown_keys(tool, _TOOL_KEYS, "tools", warnings)
        function = {
            "name": tool.get("name"),
            "description": tool.get("description"),
            "parameters": tool.get("input_schema"),
            "strict": tool.get("strict") or None,
        }
        given = {key: value for key, value in function.items() if value is not None}
        functions.append({"type": "function", "function": given})
    return functions


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


class _Writer(StreamWriter):
    """Writes one message, whole or as events."""

    def __init__(
        self,
        generation: Generation,
        model: str,
        form: AnswerForm,
        diagnose: Callable[[], dict[str, Any]],
    ) -> None:
        self._generation = generation
        self._model = model
        self._diagnose = diagnose
        self._blocks = form.blocks(generation)
        self._templates: dict[int, TextTemplate] = {}  # by block: of the events that it grows by
        self._text_chunks: TextChunks | None = None
        self._has_begun = False
        self._num_tokens = 0  # of the deltas without those of `_text_chunks`

    def whole(self, outputs: Sequence[RequestOutput]) -> bytes:
        (completion,) = outputs[0].outputs
        delta = whole_delta(outputs[0].request_id, completion)
        self._blocks.read(delta)
        message = self._message(len(completion.token_ids))
        message["content"] = [_content_block(block) for block in self._blocks.blocks]
        message |= self._ending(completion.finish_reason, completion.stop_reason)
        return msgspec.json.encode(message)

    def added(self, prompt_index: int, delta: CompletionDelta) -> bytes:
        events = []
        if not self._has_begun:  # now it is known what was found in the cache
            self._has_begun = True
            events.append(_event("message_start", message=self._message(0)))
        self._num_tokens += len(delta.token_ids)
        events += map(self._block_event, self._blocks.read(delta))
        if delta.finish_reason is not None:
            events += map(self._block_event, self._blocks.close())
            ending = self._ending(delta.finish_reason, delta.stop_reason)
            num_tokens = self._num_tokens
            if self._text_chunks is not None:
                num_tokens += self._text_chunks.num_tokens
            usage = self._usage(num_tokens)
            events += [_event("message_delta", delta=ending, usage=usage), _event("message_stop")]
        return b"".join(events)

    def text_chunks(self, prompt_index: int, index: int) -> TextChunks | None:
        if not self._blocks.grow_by_text_alone:
            return None
        if self._text_chunks is None:
            assert self._blocks.open_block is not None
            self._text_chunks = TextChunks.of_template(_growth_frame(self._blocks.open_block))
        return self._text_chunks

    def failure(self, error: ApiError, request_id: str) -> bytes:
        return sse_event(b"error", ErrorShape.ANTHROPIC.body(error, request_id))

    def keepalive(self) -> bytes:
        return PING

    def _block_event(self, event: BlockEvent) -> bytes:
        block = event.block
        if event.change is Change.OPENED:
            return _event("content_block_start", index=block.index, content_block=_opened(block))
        if event.change is Change.CLOSED:
            return _event("content_block_stop", index=block.index)
        return self._growth(block, event.text)

    def _growth(self, block: Block, text: str) -> bytes:
        template = self._templates.get(block.index)
        if template is None:
            template = self._templates[block.index] = TextTemplate(_growth_frame(block))
        return template.of(text)

    def _message(self, num_tokens: int) -> dict[str, Any]:
        return {
            "id": f"msg_{self._generation.id}",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(num_tokens),
            **self._diagnose(),
        }

    def _usage(self, num_tokens: int) -> dict[str, int]:
        """Anthropic counts what was found in the cache apart."""
        (output,) = self._generation.outputs
        found = output.num_cached_tokens
        return {
            "input_tokens": len(output.prompt_token_ids) - found,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": found,
            "output_tokens": num_tokens,
        }

    def _ending(self, finish_reason: str | None, stop_reason: object) -> dict[str, Any]:
        if finish_reason == "stop" and stop_reason in self._generation.request.params.stop:
            return {"stop_reason": "stop_sequence", "stop_sequence": stop_reason}
        if self._blocks.has_calls and finish_reason == "stop":
            return {"stop_reason": "tool_use", "stop_sequence": None}
        assert finish_reason is not None
        return {"stop_reason": STOP_REASONS[finish_reason], "stop_sequence": None}


def _diagnostics(
    earlier_id: str | None, generation: Generation, serving: Serving
) -> dict[str, Any]:
    """The diagnostics of the cache in a message, if the client asked for them."""
    if earlier_id is None:
        return {}
    found = compare_with(earlier_id, generation, serving.service.records)
    if found.outcome is CacheOutcome.REUSED:
        return {"diagnostics": None}
    reason: dict[str, Any] = {"type": "unavailable"}
    if found.outcome is CacheOutcome.NOT_FOUND:
        reason = {"type": "previous_message_not_found"}
    elif found.outcome is CacheOutcome.DIFFERS:
        kind = f"{found.changed or 'messages'}_changed"
        reason = {"type": kind, "cache_missed_input_tokens": found.missed_tokens}
    return {"diagnostics": {"cache_miss_reason": reason}}


def _growth_frame(block: Block) -> bytes:
    """The event of a block that grows by the text `TextTemplate.PLACE`."""
    kind, field = _DELTA_FIELDS[block.kind]
    delta = {"type": kind, field: TextTemplate.PLACE}
    return _event("content_block_delta", index=block.index, delta=delta)


def _opened(block: Block) -> dict[str, Any]:
    """A block without its text."""
    return _content_block(Block(block.index, block.kind, block.call_id, block.name))


def _content_block(block: Block) -> dict[str, Any]:
    if block.kind is BlockKind.TEXT:
        return {"type": "text", "text": block.text}
    if block.kind is BlockKind.REASONING:
        return {"type": "thinking", "thinking": block.text, "signature": ""}
    return {
        "type": "tool_use",
        "id": block.call_id,
        "name": block.name,
        "input": arguments_of(block),
    }


_DELTA_FIELDS = {
    BlockKind.TEXT: ("text_delta", "text"),
    BlockKind.REASONING: ("thinking_delta", "thinking"),
    BlockKind.CALL: ("input_json_delta", "partial_json"),
}


def _event(kind: str, **fields: Any) -> bytes:
    return sse_event(kind.encode(), msgspec.json.encode({"type": kind, **fields}))
