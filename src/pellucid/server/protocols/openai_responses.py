"""OpenAI's /v1/responses without storage: the client sends the whole conversation, as Codex CLI does.

https://platform.openai.com/docs/api-reference/responses
"""

import secrets
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import msgspec

from pellucid.outputs import CompletionDelta, RequestOutput
from pellucid.prompts import ChatPrompt
from pellucid.sampling_params import SamplingParams
from pellucid.server.cache_comparison import (
    CacheComparison,
    CacheOutcome,
    aspects_of,
    compare_with,
)
from pellucid.server.endpoint import Call, Reply, StreamedReply, json_reply
from pellucid.server.errors import ApiError, refused
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
    openai_format_rule,
    openai_tool_choice,
)
from pellucid.server.protocols.answers import (
    AnswerBlocks,
    AnswerForm,
    Block,
    BlockEvent,
    BlockKind,
    Change,
    shown_tools,
)
from pellucid.server.protocols.logprobs import TokenLogprob, TokenSplitter, token_logprobs
from pellucid.server.protocols.reasoning import effort_budget, effort_variables, with_budget
from pellucid.server.protocols.sampling import with_given
from pellucid.server.request_records import RequestRecords
from pellucid.server.serving import Serving
from pellucid.server.streaming import (
    CompletionsReply,
    StreamWriter,
    TextChunks,
    TextTemplate,
    encode_text,
    sse_event,
)
from pellucid.text.tokenizer import Tokenizer


class PromptCacheOptions(msgspec.Struct):
    comparison_response_id: str | None = None


class ReasoningOptions(msgspec.Struct):
    effort: str | None = None


class TextOptions(msgspec.Struct):
    format: dict[str, Any] | None = None


class ConversationFields(msgspec.Struct, kw_only=True):
    input: str | list[Any]
    model: str | None = None
    instructions: str | None = None
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    reasoning: ReasoningOptions | None = None
    text: TextOptions | None = None
    parallel_tool_calls: bool | None = None

    @property
    def effort(self) -> str | None:
        return None if self.reasoning is None else self.reasoning.effort

    @property
    def text_format(self) -> dict[str, Any] | None:
        return None if self.text is None else self.text.format


class ResponsesBody(ConversationFields, kw_only=True):
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stream: bool | None = None
    metadata: dict[str, str] | None = None
    prompt_cache_key: str | None = None
    truncation: str | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    include: list[str] | None = None
    top_logprobs: int | None = None

    @property
    def wants_logprobs(self) -> bool:
        return LOGPROBS in (self.include or ())


LOGPROBS = "message.output_text.logprobs"  # what `include` calls them
PROMPT_CACHE_FIELDS = FieldTable(
    "`prompt_cache_options` of responses",
    PromptCacheOptions,
    (
        *honoured(
            comparison_response_id="an earlier response: why the prompt was not found in the cache, exactly"
        ),
        *without_effect(
            mode="every full block of a prompt is found again; there are no breakpoints",
            ttl="blocks stay until memory is needed",
        ),
        *not_served(prewarm="send the request with max_output_tokens=1"),
    ),
    Treatment.WITHOUT_EFFECT,
)
REASONING_FIELDS = FieldTable(
    "`reasoning` of responses",
    ReasoningOptions,
    (
        *honoured(effort="as reasoning_effort of chat completions"),
        *without_effect(
            context="the template decides which earlier reasoning the model sees",
            generate_summary="the reply has the reasoning itself",
            mode="there is one",
            summary="the reply has the reasoning itself",
        ),
    ),
    Treatment.WITHOUT_EFFECT,
)
TEXT_FIELDS = FieldTable(
    "`text` of responses",
    TextOptions,
    (
        *honoured(
            format="text, json_object, or json_schema, which is enforced, strict or not; with tools, the"
            " answer either consists of calls or has the format"
        ),
        *without_effect(verbosity="say it in a message"),
    ),
    Treatment.WITHOUT_EFFECT,
)
CONVERSATION_OBJECTS: dict[str, FieldTable[Any]] = {
    "reasoning": REASONING_FIELDS,
    "text": TEXT_FIELDS,
}
CONVERSATION_FIELDS = (
    *honoured(
        input="text, or items: messages, function calls and their outputs, reasoning",
        model="the served model's name or one of its aliases",
        instructions="a system message before the input",
        tools="functions, which the chat template shows to the model; tools of other types are left"
        " out with a warning",
        tool_choice="auto, none, required, or a function: the answer is valid calls and nothing else;"
        " refused if no grammar of the model's calls is known",
        reasoning="see below",
        text="see below",
        parallel_tool_calls="false: at most one call, if calls are enforced by tool_choice or by strict"
        " in a tool",
    ),
    *not_served(
        conversation="the server stores none: send the items",
        previous_response_id="the server stores none: send the items",
        prompt="the server stores none: send the items",
    ),
)
RESPONSES_FIELDS = FieldTable(
    "POST /v1/responses",
    ResponsesBody,
    (
        *honoured(
            max_output_tokens="left out, all of the remaining context",
            temperature="0 is greedy; left out, the model's own default",
            top_p="see docs/sampling.md",
            stream="server-sent events",
            metadata="repeated in the reply",
            prompt_cache_key="repeated in the reply; equal prompts are found by their tokens",
            truncation="disabled",
            prompt_cache_options="see below",
            include=f"{LOGPROBS}: log-probabilities of the text's tokens; a reply always has everything else",
            top_logprobs="0..20 likeliest tokens at each position; with the log-probabilities alone",
        ),
        *CONVERSATION_FIELDS,
        *without_effect(
            access_programs="used by OpenAI alone",
            client_metadata="nothing is stored",
            context_management="nothing is left out of a conversation",
            image="only text is served",
            max_tool_calls="the server calls no tools",
            prompt_cache_retention="blocks stay until memory is needed",
            safety_identifier="used by OpenAI's abuse detection only",
            service_tier="there is one",
            store="nothing is stored",
            stream_options="frames have no padding",
            user="used by OpenAI's abuse detection only",
        ),
        *not_served(
            background="leave it out, and read the stream",
            background_options="leave it out, and read the stream",
            moderation="the server runs no moderation",
        ),
    ),
    Treatment.WITHOUT_EFFECT,
    {**CONVERSATION_OBJECTS, "prompt_cache_options": PROMPT_CACHE_FIELDS},
    {"input": "What is 12 + 7?", "max_output_tokens": 32},
)
INPUT_TOKENS_FIELDS = FieldTable(
    "POST /v1/responses/input_tokens",
    ConversationFields,
    (
        *CONVERSATION_FIELDS,
        *without_effect(
            personality="say it in the instructions",
            truncation="nothing is cut",
        ),
    ),
    Treatment.WITHOUT_EFFECT,
    CONVERSATION_OBJECTS,
    {"input": "What is 12 + 7?"},
)


@dataclass(frozen=True)
class Responses:
    """The handlers of the routes."""

    serving: Serving

    async def create(self, call: Call) -> Reply | StreamedReply:
        """An answer to items. The server keeps none: a client sends the whole conversation."""
        body = RESPONSES_FIELDS.decode(call.body, call.warnings)
        if body.truncation not in (None, "disabled"):
            raise refused(
                f"truncation={body.truncation!r}: must be 'disabled': nothing is cut", "truncation"
            )
        for included in body.include or ():
            if included != LOGPROBS:
                call.warnings.append(f"include: {included[:64]!r} has no effect")
        if body.top_logprobs and not body.wants_logprobs:
            call.warnings.append(f"top_logprobs: has no effect: include has no {LOGPROBS!r}")
        model = self.serving.model
        name = model.check_name(body.model)
        conversation = conversation_of(body, model.tokenizer, call.warnings)
        rule = answer_rule(
            openai_format_rule(body.text_format, "text.format"),
            openai_tool_choice(body.tool_choice, body.parallel_tool_calls),
            conversation.tools,
            model.tokenizer.response_format,
            call.warnings,
        )
        form = AnswerForm.of(model.tokenizer, conversation, rule)
        params = _sampling_params(body, model.default_sampling_params)
        params = form.adapt(with_budget(params, effort_budget(body.effort, model.tokenizer)))
        request = GenerationRequest(
            [conversation],
            params,
            aspects=aspects_of(tools=body.tools, reasoning_effort=body.effort),
            rule_field=form.rule_field,
        )
        generation = await self.serving.service.start(request, call)
        writer = _Writer(generation, body, name, form, self.serving.service.records)
        if body.stream:
            return CompletionsReply(generation, writer)
        return json_reply(writer.whole(await generation.finish()))

    async def input_tokens(self, call: Call) -> Reply:
        """The tokens that a request would have."""
        body = INPUT_TOKENS_FIELDS.decode(call.body, call.warnings)
        model = self.serving.model
        model.check_name(body.model)
        conversation = conversation_of(body, model.tokenizer, call.warnings)
        encode = model.tokenizer.encode_conversation
        token_ids = await self.serving.service.work_on_text(lambda: encode(conversation))
        return json_reply({"object": "response.input_tokens", "input_tokens": len(token_ids)})


def conversation_of(
    body: ConversationFields, tokenizer: Tokenizer, warnings: list[str]
) -> ChatPrompt:
    """The conversation of a call in the form that all protocols share.

    Raises:
        ApiError: an item is not served.
        ValueError: names the message, the key, the value and what is allowed.
    """
    messages: list[dict[str, Any]] = []
    if body.instructions:
        messages.append({"role": "system", "content": body.instructions})
    items: list[Any] = (
        [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input
    )
    tools = list(body.tools or ())
    for index, item in enumerate(items):
        if isinstance(item, dict) and item.get("type") == "additional_tools":  # of Codex CLI
            tools += item.get("tools") or ()
        else:
            _add_item(messages, item, f"input[{index}]", warnings)
    variables = effort_variables(body.effort, "reasoning.effort", tokenizer, warnings)
    choice = openai_tool_choice(body.tool_choice, body.parallel_tool_calls)
    functions = _functions(tools, tokenizer, warnings) if choice.offers else None
    return ChatPrompt(messages, functions, chat_template_kwargs=variables)


# What is read of each kind of item
_ITEM_KEYS = {
    "message": {"role", "content"},
    "reasoning": {"content", "summary"},
    "function_call": {"call_id", "name", "arguments"},
    "custom_tool_call": {"call_id", "name", "input"},
    "function_call_output": {"call_id", "output"},
    "custom_tool_call_output": {"call_id", "output"},
}


def _add_item(messages: list[dict[str, Any]], item: Any, name: str, warnings: list[str]) -> None:
    """Adds an item to the conversation: calls and reasoning belong to the assistant's message."""
    if not isinstance(item, dict):
        raise refused(f"{name}: must be an object", name)
    kind = item.get("type", "message")
    if kind in _ITEM_KEYS:
        warn_of_unknown_keys(item, _ITEM_KEYS[kind] | {"id", "status", "type"}, "input", warnings)
    if kind == "message":
        message = {"role": item.get("role"), "content": _text(item.get("content"), name)}
        last = messages[-1] if messages else {}
        if (
            message["role"] == "assistant"
            and last.get("content") is None
            and last.get("role") == "assistant"
        ):
            last["content"] = message["content"]  # its reasoning came first
        else:
            messages.append(message)
    elif kind == "reasoning":
        texts = [
            part.get("text", "")
            for part in (*(item.get("content") or ()), *(item.get("summary") or ()))
            if isinstance(part, dict)
        ]
        if texts:
            messages.append(
                {"role": "assistant", "content": None, "reasoning_content": "\n".join(texts)}
            )
    elif kind in ("function_call", "custom_tool_call"):
        arguments = (
            item.get("arguments") if kind == "function_call" else {"input": item.get("input")}
        )
        function = {"name": item.get("name"), "arguments": arguments}
        made = {"id": item.get("call_id"), "type": "function", "function": function}
        if not messages or messages[-1].get("role") != "assistant":
            messages.append({"role": "assistant", "content": None})
        messages[-1].setdefault("tool_calls", []).append(made)
    elif kind in ("function_call_output", "custom_tool_call_output"):
        content = _text(item.get("output"), name)
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": content})
    elif kind == "item_reference":
        raise refused(f"{name}: the server keeps no items: send the item itself", name)
    else:
        warnings.append(
            f"{name}: has no effect: items of the type {str(kind)[:64]!r} are not served"
        )


def _text(content: Any, name: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise refused(f"{name}: content must be text or a list of parts", name)
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        text = (
            part.get("refusal" if kind == "refusal" else "text") if isinstance(part, dict) else None
        )
        if kind not in ("input_text", "output_text", "text", "refusal") or not isinstance(
            text, str
        ):
            raise refused(f"{name}.content[{index}].type={kind!r}: only text is served", name)
        texts.append(text)
    return "\n".join(texts)


def _functions(
    tools: Sequence[Any], tokenizer: Tokenizer, warnings: list[str]
) -> list[dict[str, Any]] | None:
    functions = []
    for index, tool in enumerate(tools):
        if not isinstance(tool, dict):
            raise refused(f"tools[{index}]: must be an object", "tools")
        if (kind := tool.get("type")) != "function":
            warnings.append(
                f"tools[{index}]: has no effect: tools of the type {str(kind)[:64]!r} are not served"
            )
            continue
        keys = ("name", "description", "parameters", "strict")
        warn_of_unknown_keys(tool, {"type", *keys}, "tools", warnings)
        given = {key: tool[key] for key in keys if tool.get(key)}
        functions.append({"type": "function", "function": given})
    return shown_tools(functions, tokenizer, warnings)


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


class _Writer(StreamWriter):
    """Writes one response, whole or as events."""

    def __init__(
        self,
        generation: Generation,
        body: ResponsesBody,
        model: str,
        form: AnswerForm,
        records: RequestRecords,
    ) -> None:
        self._generation = generation
        self._records = records
        self._body = body
        self._model = model
        self._params = generation.request.params
        self._created = int(time.time())
        self._blocks = form.blocks(generation)
        self._logprobs = _TextLogprobs(form.tokenizer, generation) if body.wants_logprobs else None
        self._templates: dict[int, TextTemplate] = {}  # by block: of the events that it grows by
        self._numbers = count()  # of the events
        self._text_chunks: _NumberedChunks | None = None
        self._num_tokens = 0  # of the deltas without those of `_text_chunks`

    def whole(self, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        (completion,) = outputs[0].outputs
        delta = whole_delta(outputs[0].request_id, completion)
        self._read(delta)
        return self._ended(completion.finish_reason, len(completion.token_ids))

    def first(self) -> bytes:
        created = self._event("response.created", response=self._response("in_progress"))
        return created + self.keepalive()

    def added(self, prompt_index: int, delta: CompletionDelta) -> bytes:
        self._num_tokens += len(delta.token_ids)
        changes = self._read(delta)
        if delta.finish_reason is not None:
            changes += ((change, ()) for change in self._blocks.close())
        frames = [frame for change in changes for frame in self._block_frames(*change)]
        if delta.finish_reason is not None:
            num_tokens = self._num_tokens
            if self._text_chunks is not None:
                num_tokens += self._text_chunks.num_tokens
            response = self._ended(delta.finish_reason, num_tokens)
            is_whole = response["status"] == "completed"
            kind = "response.completed" if is_whole else "response.incomplete"
            frames.append(self._event(kind, response=response))
        return b"".join(frames)

    def text_chunks(self, prompt_index: int, index: int) -> TextChunks | None:
        if not self._blocks.grow_by_text_alone or self._logprobs is not None:
            return None
        if self._text_chunks is None:
            block = self._blocks.open_block
            assert block is not None
            fields = msgspec.json.encode(self._growth(block, TextTemplate.PLACE, ()))
            kind = _GROWTH_EVENTS[block.kind]
            frame = _numbered_event(kind, _NumberedChunks.NUMBER, fields)
            self._text_chunks = _NumberedChunks(frame, self._numbers, block)
        return self._text_chunks

    def keepalive(self) -> bytes:
        """Clients' idle timers are reset by events, not by comments."""
        return self._event("response.in_progress", response=self._response("in_progress"))

    def failure(self, error: ApiError, request_id: str) -> bytes:
        response = self._response("failed")
        response["error"] = {"code": error.code or "server_error", "message": error.message}
        return self._event("response.failed", response=response)

    def _read(self, delta: CompletionDelta) -> "list[tuple[BlockEvent, Sequence[TokenLogprob]]]":
        """The changes of a delta, with the log-probabilities of the tokens of added text."""
        if self._logprobs is None:
            return [(event, ()) for event in self._blocks.read(delta)]
        return self._logprobs.read(delta, self._blocks)

    def _block_frames(self, event: BlockEvent, logprobs: Sequence[TokenLogprob]) -> list[bytes]:
        block = event.block
        if event.change is Change.GREW:
            return [self._growth_frame(block, event.text, logprobs)]
        at = self._place(block)
        part = {**at, "content_index": 0}
        if event.change is Change.OPENED:
            frames = [
                self._event(
                    "response.output_item.added",
                    output_index=block.index,
                    item=self._item(block, "in_progress"),
                )
            ]
            if block.kind is not BlockKind.CALL:
                frames.append(
                    self._event(
                        "response.content_part.added", **part, part=self._content(block, "")
                    )
                )
            return frames
        name = _EVENT_NAMES[block.kind]
        is_text = block.kind is BlockKind.TEXT
        if block.kind is BlockKind.CALL:
            done = [self._event(f"{name}.done", **at, name=block.name, arguments=block.text)]
        else:
            content = self._content(block, block.text)
            extra = {"logprobs": content["logprobs"]} if is_text else {}
            done = [
                self._event(f"{name}.done", **part, **extra, text=block.text),
                self._event("response.content_part.done", **part, part=content),
            ]
        item = self._item(block, "completed")
        return [
            *done,
            self._event("response.output_item.done", output_index=block.index, item=item),
        ]

    def _growth_frame(self, block: Block, text: str, logprobs: Sequence[TokenLogprob]) -> bytes:
        kind = _GROWTH_EVENTS[block.kind]
        if logprobs:
            fields = self._growth(block, text, logprobs)
            return self._numbered_event(kind, msgspec.json.encode(fields))
        template = self._templates.get(block.index)
        if template is None:
            fields = self._growth(block, TextTemplate.PLACE, ())
            template = TextTemplate(msgspec.json.encode(fields))
            self._templates[block.index] = template
        return self._numbered_event(kind, template.of(text))

    def _growth(self, block: Block, text: str, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        fields = self._place(block)
        if block.kind is not BlockKind.CALL:
            fields["content_index"] = 0
        if block.kind is BlockKind.TEXT:
            fields["logprobs"] = logprobs
        return {**fields, "delta": text}

    def _place(self, block: Block) -> dict[str, Any]:
        return {"item_id": self._item_id(block), "output_index": block.index}

    def _item(self, block: Block, status: str) -> dict[str, Any]:
        text = block.text if status == "completed" else ""
        if block.kind is BlockKind.CALL:
            return {
                "id": self._item_id(block),
                "type": "function_call",
                "status": status,
                "call_id": block.call_id,
                "name": block.name,
                "arguments": text,
            }
        content = [self._content(block, text)] if status == "completed" else []
        if block.kind is BlockKind.REASONING:
            return {
                "id": self._item_id(block),
                "type": "reasoning",
                "status": status,
                "summary": [],
                "content": content,
            }
        return {
            "id": self._item_id(block),
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": content,
        }

    def _content(self, block: Block, text: str) -> dict[str, Any]:
        if block.kind is BlockKind.REASONING:
            return {"type": "reasoning_text", "text": text}
        logprobs: Sequence[TokenLogprob] = ()
        if text and self._logprobs is not None:
            logprobs = self._logprobs.of_block[block.index]
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def _item_id(self, block: Block) -> str:
        prefix = {BlockKind.TEXT: "msg", BlockKind.REASONING: "rs", BlockKind.CALL: "fc"}[
            block.kind
        ]
        return f"{prefix}_{self._generation.id}_{block.index}"

    def _ended(self, finish_reason: str | None, num_tokens: int) -> dict[str, Any]:
        response = self._response("completed" if finish_reason == "stop" else "incomplete")
        if finish_reason == "length":
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        elif finish_reason == "abort":
            response["status"] = "cancelled"
        response["output"] = [self._item(block, "completed") for block in self._blocks.blocks]
        response["completed_at"] = int(time.time())
        options = self._body.prompt_cache_options
        if options is not None and options.comparison_response_id is not None:
            compared = compare_with(options.comparison_response_id, self._generation, self._records)
            response["prompt_cache_diagnostics"] = _diagnostics(compared)
        (output,) = self._generation.outputs
        num_prompt_tokens = len(output.prompt_token_ids)
        response["usage"] = {
            "input_tokens": num_prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": output.num_cached_tokens,
                "cache_write_tokens": 0,
            },
            "output_tokens": num_tokens,
            "output_tokens_details": {"reasoning_tokens": self._blocks.num_reasoning_tokens},
            "total_tokens": num_prompt_tokens + num_tokens,
        }
        return response

    def _response(self, status: str) -> dict[str, Any]:
        body = self._body
        return {
            "id": f"resp_{self._generation.id}",
            "object": "response",
            "created_at": self._created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": self._model,
            "output": [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "prompt_cache_key": body.prompt_cache_key,
            "reasoning": {"effort": body.effort, "summary": None},
            "service_tier": "default",
            "store": False,
            "temperature": self._params.temperature,
            "text": {"format": body.text_format or {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": [tool for tool in body.tools or () if tool.get("type") == "function"],
            "top_p": self._params.top_p,
            "truncation": "disabled",
            "usage": None,
            "warnings": self._generation.call.warnings,
        }

    def _event(self, kind: str, **fields: Any) -> bytes:
        return self._numbered_event(kind.encode(), msgspec.json.encode(fields))

    def _numbered_event(self, kind: bytes, fields: bytes) -> bytes:
        """An event: the two fields that every event has, then those of a JSON object."""
        return _numbered_event(kind, b"%d" % next(self._numbers), fields)


def _numbered_event(kind: bytes, number: bytes, fields: bytes) -> bytes:
    return sse_event(kind, b'{"type":"%b","sequence_number":%b,%b' % (kind, number, fields[1:]))


class _NumberedChunks(TextChunks):
    """The chunks of the events by which a block of text grows.

    Args:
        frame: an event, with the strings `TextTemplate.PLACE` for the text and `NUMBER` for its number.
        numbers: of the events.
        block: gets the text.
    """

    __slots__ = ("_block_parts", "_numbers")
    NUMBER = secrets.token_hex().encode()  # no string of a client

    def __init__(self, frame: bytes, numbers: Iterator[int], block: Block) -> None:
        before, _, rest = frame.partition(self.NUMBER)
        super().__init__(before, *rest.split(TextTemplate.ENCODED_PLACE))
        self._numbers = numbers
        self._block_parts = block.parts

    def _chunk(self, text: str) -> bytes:
        self._block_parts.append(text)
        number, encoded = b"%d" % next(self._numbers), encode_text(text)
        size = self._size + len(number) + len(encoded)
        return self._format % (size, number, encoded)


_EVENT_NAMES = {
    BlockKind.TEXT: "response.output_text",
    BlockKind.REASONING: "response.reasoning_text",
    BlockKind.CALL: "response.function_call_arguments",
}
_GROWTH_EVENTS = {kind: f"{name}.delta".encode() for kind, name in _EVENT_NAMES.items()}


def _diagnostics(compared: CacheComparison) -> dict[str, Any]:
    if compared.outcome is CacheOutcome.REUSED:
        return {"type": "cache_hit"}
    if compared.outcome is CacheOutcome.NOT_FOUND:
        return {"type": "comparison_response_not_found"}
    if compared.outcome is CacheOutcome.EVICTED:
        return {"type": "unavailable"}
    return {
        "type": "cache_miss",
        "reason": f"{compared.changed or 'input'}_changed",
        "cache_missed_tokens": compared.missed_tokens,
        "comparison_reusable_tokens": compared.reusable_tokens,
    }


class _TextLogprobs:
    """The log-probabilities of the tokens in the texts of one answer, without those of reasoning and of calls.

    Args:
        tokenizer: the model's.
        generation: whose answer it is.

    Attributes:
        of_block: by the index of a text.
    """

    def __init__(self, tokenizer: Tokenizer, generation: Generation) -> None:
        params = generation.request.params
        prompt_token_ids = generation.prompts[0].token_ids
        self.of_block: dict[int, list[TokenLogprob]] = defaultdict(list)
        self._tokenizer = tokenizer
        self._num_top = params.logprobs or 0
        self._splitter = TokenSplitter(tokenizer, prompt_token_ids, params.skip_special_tokens)
        self._held: list[tuple[str, TokenLogprob]] = []  # of tokens whose text is held back

    def read(
        self, delta: CompletionDelta, blocks: AnswerBlocks
    ) -> list[tuple[BlockEvent, Sequence[TokenLogprob]]]:
        """Has `blocks` read a delta token by token.

        Returns:
            What it changes; with added text, the log-probabilities of the tokens that brought it.
        """
        found: list[tuple[BlockEvent, Sequence[TokenLogprob]]] = []
        for token in self._splitter.split(delta):
            self._held += (
                (token.text, written)
                for written in token_logprobs(
                    self._tokenizer, token.token_ids, token.logprobs or (), self._num_top
                )
            )
            events = blocks.read(token)
            for event in events:
                logprobs: Sequence[TokenLogprob] = ()
                if event.change is Change.GREW and event.block.kind is BlockKind.TEXT:
                    logprobs = self._take(len(event.text))
                    self.of_block[event.block.index] += logprobs
                found.append((event, logprobs))
            if events:
                self._held = []
        return found

    def _take(self, num_chars: int) -> list[TokenLogprob]:
        """Those of the latest tokens that have so many characters, and of the parts of characters before these."""
        taken: list[TokenLogprob] = []
        while self._held and (num_chars > 0 or not self._held[-1][0]):
            text, logprob = self._held.pop()
            num_chars -= len(text)
            taken.append(logprob)
        return taken[::-1]
