"""Ollama's protocol: /api/generate and /api/chat as lines of JSON, and the routes about models.

https://docs.ollama.com/api
"""

import hashlib
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any, TypeAlias

import msgspec

from pellucid.outputs import CompletionDelta, RequestOutput
from pellucid.prompts import ChatPrompt
from pellucid.sampling_params import SamplingParams
from pellucid.server.endpoint import Call, Reply, StreamedReply, json_reply
from pellucid.server.errors import ApiError, ErrorShape, refused
from pellucid.server.fields import FieldTable, Treatment, honoured, not_served, without_effect
from pellucid.server.generation import Generation, GenerationRequest, whole_delta
from pellucid.server.protocols.answer_rules import ToolChoice, answer_rule, ollama_format_rule
from pellucid.server.protocols.answers import (
    AnswerBlocks,
    AnswerForm,
    Block,
    BlockKind,
    Change,
    arguments_of,
)
from pellucid.server.protocols.logprobs import TokenLogprob, token_logprobs
from pellucid.server.protocols.messages import readable_messages
from pellucid.server.protocols.reasoning import (
    effort_budget,
    effort_variables,
    switch_budget,
    switch_variables,
    with_budget,
)
from pellucid.server.protocols.sampling import with_given
from pellucid.server.served_model import FINGERPRINT, ServedModel
from pellucid.server.serving import Serving
from pellucid.server.streaming import (
    CompletionsReply,
    StreamWriter,
    TextChunks,
    TextTemplate,
    encode_text,
)
from pellucid.text.tokenizer import Tokenizer

API_VERSION = "0.13.0"  # of the Ollama whose protocol this is; clients compare it
MEDIA_TYPE = "application/x-ndjson"


class Options(msgspec.Struct, kw_only=True):
    num_predict: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None


class CommonFields(msgspec.Struct, kw_only=True):
    model: str
    stream: bool | None = None
    options: Options | None = None
    format: Any = None
    think: bool | str | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


class GenerateBody(CommonFields, kw_only=True):
    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None


class ChatBody(CommonFields, kw_only=True):
    messages: list[Any] | None = None
    tools: list[Any] | None = None


class ShowBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    name: str | None = None


SHOW_FIELDS = FieldTable(
    "POST /api/show",
    ShowBody,
    (
        *honoured(model="as everywhere", name="the same by its older name"),
        *without_effect(verbose="the reply always has all details"),
    ),
    Treatment.WITHOUT_EFFECT,
)
OPTION_FIELDS = FieldTable(
    "`options` of Ollama's requests",
    Options,
    (
        *honoured(
            num_predict="maximum output tokens; below 0, all of the remaining context",
            temperature="left out, the model's own default",
            top_k="0 is off",
            top_p="see docs/sampling.md",
            min_p="see docs/sampling.md",
            typical_p="see docs/sampling.md",
            repeat_penalty="repetition_penalty, over prompt and answer",
            presence_penalty="see docs/sampling.md",
            frequency_penalty="see docs/sampling.md",
            seed="the same seed gives the same answer; below 0, one is drawn",
            stop="strings that end the answer",
        ),
        *without_effect(
            num_ctx="the context is set when the server starts, with --max-model-len; nothing is cut",
            num_keep="nothing is ever dropped from a prompt",
            num_batch="set when the server starts",
            num_gpu="set when the server starts",
            main_gpu="set when the server starts",
            num_thread="set when the server starts, with --num-threads",
            use_mmap="weights are mapped where that helps",
            use_mlock="set it for the process",
            low_vram="memory is planned",
            numa="set it for the process",
            f16_kv="set when the server starts, with --kv-cache-dtype",
            logits_all="ask for logprobs",
            vocab_only="the whole model is loaded",
            embedding_only="the whole model is loaded",
            repeat_last_n="penalties look at prompt and answer as a whole",
            penalize_newline="penalties treat all tokens alike",
        ),
        *not_served(
            mirostat="use temperature, top_p, min_p or typical_p",
            mirostat_eta="use temperature, top_p, min_p or typical_p",
            mirostat_tau="use temperature, top_p, min_p or typical_p",
            tfs_z="use typical_p",
        ),
    ),
    Treatment.WITHOUT_EFFECT,
)
COMMON_FIELDS = (
    *honoured(
        model="the served model's name or one of its aliases, with or without :latest",
        stream="lines of JSON, unless false",
        options="see below",
        format="json, or a JSON schema; with tools, the answer either consists of calls or has the format",
        think="enable_thinking, or a level as reasoning_effort, of templates that read it; for other models that"
        " reason, false is a budget of 0 tokens and low one of 2048",
        logprobs="log-probabilities of the answer's tokens",
        top_logprobs="0..20 likeliest tokens at each position",
    ),
    *without_effect(
        keep_alive="the model stays loaded",
        truncate="nothing is truncated: a prompt that is too long is refused",
        shift="nothing is shifted out of the context: an answer ends when the context is full",
    ),
)
GENERATE_FIELDS = FieldTable(
    "POST /api/generate",
    GenerateBody,
    (
        *honoured(
            prompt="a user's message, or with raw the text itself; empty: the model is loaded",
            system="a system message before it",
            raw="no chat template",
        ),
        *COMMON_FIELDS,
        *not_served(
            context="send the conversation to /api/chat",
            images="only text is served",
            width="only text is served",
            height="only text is served",
            steps="only text is served",
            suffix="no model with a fill-in-the-middle form is supported",
            template="a template is a program; start the server with a model that has it",
        ),
    ),
    Treatment.WITHOUT_EFFECT,
    {"options": OPTION_FIELDS},
    {"prompt": "Once upon a time", "stream": False, "options": {"num_predict": 32}},
)
CHAT_FIELDS = FieldTable(
    "POST /api/chat",
    ChatBody,
    (
        *honoured(
            messages="roles system, user, assistant, tool; thinking and tool calls; empty: the model is"
            " loaded",
            tools="functions, which the chat template shows to the model",
        ),
        *COMMON_FIELDS,
    ),
    Treatment.WITHOUT_EFFECT,
    {"options": OPTION_FIELDS},
    {
        "messages": [{"role": "user", "content": "What is 12 + 7?"}],
        "stream": False,
        "options": {"num_predict": 32},
    },
)


class Durations(msgspec.Struct, kw_only=True):
    """The numbers of the last line; nanoseconds."""

    total_duration: int
    load_duration: int = 0
    prompt_eval_count: int
    prompt_eval_duration: int
    eval_count: int
    eval_duration: int

    @classmethod
    def of(cls, output: RequestOutput) -> "Durations":
        metrics = output.metrics
        total = (metrics.finished_time or metrics.arrival_time) - metrics.arrival_time
        return cls(
            total_duration=_nanoseconds(total),
            prompt_eval_count=len(output.prompt_token_ids),
            prompt_eval_duration=_nanoseconds(metrics.prefill_seconds or 0),
            eval_count=sum(len(completion.token_ids) for completion in output.outputs),
            eval_duration=_nanoseconds(metrics.decode_seconds or 0),
        )


@dataclass
class Added:
    """The new content of a line."""

    text: str = ""
    reasoning: str = ""
    calls: list[Block] = field(default_factory=list)  # whole: Ollama sends no parts of calls


_Form: TypeAlias = Callable[[Added], dict[str, Any]]  # how that stands in a line


def _generate_form(added: Added) -> dict[str, Any]:
    thinking = {"thinking": added.reasoning} if added.reasoning else {}
    return {"response": added.text, **thinking}


def _chat_form(added: Added) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": added.text}
    if added.reasoning:
        message["thinking"] = added.reasoning
    if added.calls:
        message["tool_calls"] = [
            {"id": call.call_id, "function": {"name": call.name, "arguments": arguments_of(call)}}
            for call in added.calls
        ]
    return {"message": message}


@dataclass
class Ollama:
    """The handlers of the routes."""

    serving: Serving

    async def root(self, call: Call) -> Reply:
        """The live page for browsers; for Ollama's clients the text "Ollama is running"."""
        return Reply(b"Ollama is running", media_type="text/plain; charset=utf-8")

    async def version(self, call: Call) -> Reply:
        """The version of Ollama whose protocol this is."""
        return json_reply({"version": API_VERSION, "server": FINGERPRINT})

    async def tags(self, call: Call) -> Reply:
        """The served model."""
        return json_reply({"models": [self._listed()]})

    async def ps(self, call: Call) -> Reply:
        """The loaded model, with its context length."""
        model = self.serving.model
        loaded = {"expires_at": "9999-12-31T00:00:00Z", "size_vram": 0}
        return json_reply(
            {"models": [{**self._listed(), **loaded, "context_length": model.max_model_len}]}
        )

    async def show(self, call: Call) -> Reply:
        """Facts of the model, its template and what it can do."""
        body = SHOW_FIELDS.decode(call.body, call.warnings)
        model = self.serving.model
        if not (name := body.model or body.name):
            raise refused("model: must be a name", "model")
        model.check_name(name)
        details = model.details()
        family = details["architecture"].lower()
        defaults = model.default_sampling_params
        return json_reply(
            {
                "modelfile": "",
                "parameters": f"temperature {defaults.temperature}\ntop_p {defaults.top_p}",
                "template": model.tokenizer.chat_template or "",
                "details": _details(model),
                "model_info": {
                    "general.architecture": family,
                    "general.parameter_count": details["num_parameters"],
                    f"{family}.context_length": model.max_model_len,
                    f"{family}.embedding_length": details["hidden_size"],
                    f"{family}.block_count": details["num_layers"],
                    f"{family}.attention.head_count": details["num_heads"],
                    f"{family}.attention.head_count_kv": details["num_kv_heads"],
                },
                "capabilities": self._capabilities(),
                "modified_at": _time(datetime.fromtimestamp(model.created, timezone.utc)),
            }
        )

    async def generate(self, call: Call) -> Reply | StreamedReply:
        """A text that continues a prompt, or answers it through the chat template."""
        body = GENERATE_FIELDS.decode(call.body, call.warnings)
        name = self.serving.model.check_name(body.model)
        if not body.prompt:
            return self._loaded(name, _generate_form)
        prompt: str | ChatPrompt = body.prompt
        if not body.raw and self.serving.model.tokenizer.has_chat_template:
            system = [{"role": "system", "content": body.system}] if body.system else []
            user = {"role": "user", "content": body.prompt}
            variables = self._variables(body, call)
            prompt = ChatPrompt([*system, user], chat_template_kwargs=variables)
        elif body.system:
            raise refused("system: needs a chat template, and no raw", "system")
        return await self._answer(call, body, name, prompt, _generate_form)

    async def chat(self, call: Call) -> Reply | StreamedReply:
        """An answer to a conversation, as lines of JSON or whole."""
        body = CHAT_FIELDS.decode(call.body, call.warnings)
        name = self.serving.model.check_name(body.model)
        if not body.messages:
            return self._loaded(name, _chat_form)
        messages = [_message(message, index) for index, message in enumerate(body.messages)]
        prompt = ChatPrompt(
            readable_messages(messages, call.warnings),
            body.tools or None,
            chat_template_kwargs=self._variables(body, call),
            continue_final_message=_is_unfinished(messages[-1]),
        )
        return await self._answer(call, body, name, prompt, _chat_form)

    async def _answer(
        self, call: Call, body: CommonFields, name: str, prompt: str | ChatPrompt, form: _Form
    ) -> Reply | StreamedReply:
        params = _sampling_params(body, self.serving.model.default_sampling_params)
        tokenizer = self.serving.model.tokenizer
        rule = ollama_format_rule(body.format)
        answer_form = AnswerForm(tokenizer, is_plain=True, rule=rule)
        if isinstance(prompt, ChatPrompt):
            answers = tokenizer.response_format
            rule = answer_rule(rule, ToolChoice(), prompt.tools, answers, call.warnings)
            answer_form = AnswerForm.of(tokenizer, prompt, rule)
            params = with_budget(params, _budget(body.think, tokenizer))
        request = GenerationRequest(
            [prompt], answer_form.adapt(params), rule_field=answer_form.rule_field
        )
        generation = await self.serving.service.start(request, call)
        blocks = answer_form.blocks(generation)
        lines = _Lines(generation, name, form, blocks, tokenizer, body.top_logprobs or 0)
        if body.stream is False:
            return Reply(lines.whole(await generation.finish()))
        return CompletionsReply(generation, lines)

    def _variables(self, body: CommonFields, call: Call) -> dict[str, Any]:
        tokenizer = self.serving.model.tokenizer
        if isinstance(body.think, str) and tokenizer.chat_template_mentions("reasoning_effort"):
            return effort_variables(body.think, "think", tokenizer, call.warnings)
        wanted = None if body.think is None else bool(body.think)
        return switch_variables(wanted, "think", tokenizer, call.warnings)

    def _loaded(self, name: str, form: _Form) -> Reply:
        """The answer to an empty prompt, which asks for nothing but that the model is there."""
        ended = {"done": True, "done_reason": "load"}
        return json_reply({"model": name, "created_at": _time(), **form(Added()), **ended})

    def _capabilities(self) -> list[str]:
        tokenizer = self.serving.model.tokenizer
        found = {
            "completion": True,
            "tools": tokenizer.chat_template_mentions("tools"),
            "thinking": tokenizer.chat_template_mentions("enable_thinking"),
        }
        return [name for name, has in found.items() if has]

    def _listed(self) -> dict[str, Any]:
        model = self.serving.model
        name = model.name if ":" in model.name else f"{model.name}:latest"
        facts = msgspec.json.encode([model.name, model.details()])
        return {
            "name": name,
            "model": name,
            "modified_at": _time(datetime.fromtimestamp(model.created, timezone.utc)),
            "size": model.weight_bytes,
            "digest": hashlib.sha256(facts).hexdigest(),  # of name and facts: tells models apart
            "details": _details(model),
        }


class _Lines(StreamWriter):
    """Writes one answer as lines of JSON, or as one."""

    media_type = MEDIA_TYPE

    def __init__(
        self,
        generation: Generation,
        name: str,
        form: _Form,
        blocks: AnswerBlocks,
        tokenizer: Tokenizer,
        num_top: int,
    ) -> None:
        self._generation = generation
        self._form = form
        self._blocks = blocks
        self._tokenizer = tokenizer
        self._num_top = num_top
        self._start = b'{"model":%b,"created_at":"' % msgspec.json.encode(name)
        self._text_template = TextTemplate(self._fields(Added(TextTemplate.PLACE)))
        self._text_chunks: _DatedChunks | None = None

    def whole(self, outputs: Sequence[RequestOutput]) -> bytes:
        (output,) = outputs
        (completion,) = output.outputs
        return self.added(0, whole_delta(output.request_id, completion))

    def added(self, prompt_index: int, delta: CompletionDelta) -> bytes:
        added = Added()
        for event in self._blocks.read(delta):
            if event.change is Change.CLOSED and event.block.kind is BlockKind.CALL:
                added.calls.append(event.block)
            elif event.block.kind is BlockKind.TEXT:
                added.text += event.text
            elif event.block.kind is BlockKind.REASONING:
                added.reasoning += event.text
        logprobs = None
        if delta.logprobs is not None:
            logprobs = self._logprobs(delta.token_ids, delta.logprobs)
        if added == Added() and not logprobs and delta.finish_reason is None:
            return b""
        return self._line(added, delta.finish_reason, logprobs)

    def text_chunks(self, prompt_index: int, index: int) -> TextChunks | None:
        has_logprobs = self._generation.request.params.num_logprobs is not None
        if has_logprobs or not self._blocks.grow_by_text_alone:
            return None
        if self._text_chunks is None:
            fields = self._fields(Added(TextTemplate.PLACE))
            self._text_chunks = _DatedChunks(self._dated(fields, _DatedChunks.TIME))
        return self._text_chunks

    def failure(self, error: ApiError, request_id: str) -> bytes:
        return ErrorShape.OLLAMA.body(error, request_id) + b"\n"

    def keepalive(self) -> bytes:
        return self._line(Added())

    def _line(
        self,
        added: Added,
        finish_reason: str | None = None,
        logprobs: list[TokenLogprob] | None = None,
    ) -> bytes:
        if finish_reason is None and not (logprobs or added.reasoning or added.calls):
            return self._text_line(added.text)
        return self._dated(self._fields(added, finish_reason, logprobs), _time().encode())

    def _text_line(self, text: str) -> bytes:
        return self._dated(self._text_template.of(text), _time().encode())

    def _dated(self, fields: bytes, now: bytes) -> bytes:
        """The line of an object, with model and time."""
        return b'%b%b",%b\n' % (self._start, now, fields[1:])

    def _fields(
        self,
        added: Added,
        finish_reason: str | None = None,
        logprobs: list[TokenLogprob] | None = None,
    ) -> bytes:
        """The fields of a line after model and time, as a JSON object."""
        fields = {**self._form(added), "done": finish_reason is not None}
        if logprobs:
            fields["logprobs"] = logprobs
        if finish_reason is not None:
            fields["done_reason"] = finish_reason
            durations = Durations.of(self._generation.outputs[0])
            fields |= msgspec.structs.asdict(durations)
        return msgspec.json.encode(fields)

    def _logprobs(self, token_ids: list[int], logprobs: list[Any]) -> list[TokenLogprob]:
        return token_logprobs(self._tokenizer, token_ids, logprobs, self._num_top)


class _DatedChunks(TextChunks):
    """The chunks of the lines of a text.

    Args:
        line: with the strings `TextTemplate.PLACE` for the text and `TIME` for the time.
    """

    __slots__ = ("_second", "_second_text")
    TIME = secrets.token_hex().encode()  # no string of a client

    def __init__(self, line: bytes) -> None:
        before, _, rest = line.partition(self.TIME)
        super().__init__(before, *rest.split(TextTemplate.ENCODED_PLACE))
        self._second = 0  # since 1970
        self._second_text = b""

    def _chunk(self, text: str) -> bytes:
        now, encoded = self._now(), encode_text(text)
        return self._format % (self._size + len(now) + len(encoded), now, encoded)

    def _now(self) -> bytes:
        """As `_time`; the tokens of one second share its text, because making it takes longer than the chunk."""
        second, nanoseconds = divmod(time.time_ns(), 10**9)
        if second != self._second:
            self._second = second
            self._second_text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second)).encode()
        return b"%b.%06dZ" % (self._second_text, nanoseconds // 1000)


_PARAMETER_NAMES = {
    "num_predict": "max_tokens",
    "repeat_penalty": "repetition_penalty",
    "top_logprobs": "logprobs",
}


def _budget(think: bool | str | None, tokenizer: Tokenizer) -> int | None:
    """The budget of reasoning that a switch or a level means, in tokens."""
    if isinstance(think, str):
        return effort_budget(think, tokenizer)
    return switch_budget(think, tokenizer)


def _sampling_params(body: CommonFields, defaults: SamplingParams) -> SamplingParams:
    if body.top_logprobs and not body.logprobs:
        raise refused(f"top_logprobs={body.top_logprobs}: needs logprobs=true", "top_logprobs")
    given = msgspec.structs.asdict(body.options or Options())
    for name in ("seed", "num_predict"):  # below 0: none
        if given[name] is not None and given[name] < 0:
            given[name] = None
    if body.logprobs:
        given["top_logprobs"] = body.top_logprobs or 0
    return with_given(replace(defaults, max_tokens=None), given, _PARAMETER_NAMES)


def _message(message: Any, index: int) -> Any:
    """Ollama's message in the form that all protocols share."""
    if not isinstance(message, dict):
        return message  # refused where all messages are checked
    if message.get("images"):
        raise refused(f"messages[{index}].images: only text is served", "messages")
    names = {"thinking": "reasoning_content", "tool_name": "name"}
    return {names.get(key, key): value for key, value in message.items() if key != "images"}


def _is_unfinished(message: Any) -> bool:
    """Whether it is an assistant's text, which the answer is to continue."""
    return (
        isinstance(message, dict)
        and message.get("role") == "assistant"
        and bool(message.get("content"))
        and not message.get("tool_calls")
    )


def _details(model: ServedModel) -> dict[str, Any]:
    details = model.details()
    family = details["architecture"].lower()
    return {
        "parent_model": "",
        "format": details["file_format"],
        "family": family,
        "families": [family],
        "parameter_size": _short(details["num_parameters"]),
        "quantization_level": details["quantization"],
    }


def _short(count: int) -> str:
    for unit, size in (("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return str(count)


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _time(at: datetime | None = None) -> str:
    at = datetime.now(timezone.utc) if at is None else at.replace(tzinfo=timezone.utc)
    return at.isoformat().replace("+00:00", "Z")
