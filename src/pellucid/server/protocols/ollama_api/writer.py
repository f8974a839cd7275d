"""Writes an answer as Ollama's lines of JSON."""

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

import msgspec

from pellucid.outputs import CompletionDelta, RequestOutput
from pellucid.server.errors import ApiError, ErrorShape
from pellucid.server.generation import Generation, whole_delta
from pellucid.server.protocols.answers import Block, BlockKind, Change
from pellucid.server.protocols.ask import Ask
from pellucid.server.protocols.logprobs import TokenLogprob, token_logprobs
from pellucid.server.protocols.ollama_api.fields import CommonFields
from pellucid.server.streaming import StreamWriter, TextChunks, TextTemplate, encode_text

MEDIA_TYPE = "application/x-ndjson"


def durations_of(output: RequestOutput) -> dict[str, int]:
    """The numbers of the last line; nanoseconds."""
    metrics = output.metrics
    return {
        "total_duration": _nanoseconds(
            (metrics.finished_time or metrics.arrival_time) - metrics.arrival_time
        ),
        "load_duration": 0,
        "prompt_eval_count": len(output.prompt_token_ids),
        "prompt_eval_duration": _nanoseconds(metrics.prefill_seconds or 0),
        "eval_count": sum(len(completion.token_ids) for completion in output.outputs),
        "eval_duration": _nanoseconds(metrics.decode_seconds or 0),
    }


@dataclass
class Added:
    """The new content of a line."""

    text: str = ""
    reasoning: str = ""
    # By their index in the answer; whole: Ollama sends no parts of calls
    calls: dict[int, Block] = field(default_factory=dict)


OllamaBody = TypeVar("OllamaBody", bound=CommonFields)
Form: TypeAlias = Callable[[Added], dict[str, Any]]  # how that stands in a line


def generate_form(added: Added) -> dict[str, Any]:
    thinking = {"thinking": added.reasoning} if added.reasoning else {}
    return {"response": added.text, **thinking}


def chat_form(added: Added) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": added.text}
    if added.reasoning:
        message["thinking"] = added.reasoning
    if added.calls:
        message["tool_calls"] = [
            {
                "id": call.call_id,
                "function": {"index": index, "name": call.name, "arguments": call.arguments},
            }
            for index, call in added.calls.items()
        ]
    return {"message": message}


class LineWriter(StreamWriter):
    """Writes one answer as lines of JSON, or as one."""

    media_type = MEDIA_TYPE

    def __init__(self, generation: Generation, ask: Ask[OllamaBody], form: Form) -> None:
        self._generation = generation
        self._form = form
        self._blocks = ask.form.blocks(generation)
        self._tokenizer = ask.form.tokenizer
        self._num_top = ask.body.top_logprobs or 0
        self._start = b'{"model":%b,"created_at":"' % msgspec.json.encode(ask.name)
        self._text_template = TextTemplate(self._fields(Added(TextTemplate.PLACE)))

    def whole(self, outputs: Sequence[RequestOutput]) -> bytes:
        (output,) = outputs
        (completion,) = output.outputs
        return self.added(0, whole_delta(output.request_id, completion))

    def added(self, prompt_index: int, delta: CompletionDelta) -> bytes:
        added = Added()
        for event in self._blocks.read(delta):
            if event.change is Change.CLOSED and event.block.kind is BlockKind.CALL:
                added.calls[self._blocks.call_index(event.block)] = event.block
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
        return None if has_logprobs else self._blocks.text_chunks(self._new_text_chunks)

    def _new_text_chunks(self, block: Block) -> TextChunks:
        fields = self._fields(Added(TextTemplate.PLACE))
        return _DatedChunks(self._dated(fields, _DatedChunks.TIME))

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
        return self._dated(self._fields(added, finish_reason, logprobs), time_text().encode())

    def _text_line(self, text: str) -> bytes:
        return self._dated(self._text_template.of(text), time_text().encode())

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
            fields |= durations_of(self._generation.outputs[0])
        return msgspec.json.encode(fields)

    def _logprobs(self, token_ids: list[int], logprobs: list[Any]) -> list[TokenLogprob]:
        return token_logprobs(self._tokenizer, token_ids, logprobs, self._num_top)


class _DatedChunks(TextChunks):
    """The chunks of the lines of a text.

    Args:
        line: with the strings `TextTemplate.PLACE` for the text and `TIME` for the time.
    """

    __slots__ = ()
    TIME = secrets.token_hex().encode()  # no string of a client

    def __init__(self, line: bytes) -> None:
        super().__init__(line, self.TIME)

    def _chunk(self, text: str) -> bytes:
        second, nanoseconds = divmod(time.time_ns(), 10**9)
        now, encoded = b"%b.%06dZ" % (_second_text(second), nanoseconds // 1000), encode_text(text)
        return self._format % (self._size + len(now) + len(encoded), now, encoded)


@lru_cache(maxsize=1)
def _second_text(second: int) -> bytes:
    """As `time_text`; the tokens of one second since 1970 share it, because making it takes longer than the chunk."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second)).encode()


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def time_text(at: datetime | None = None) -> str:
    at = datetime.now(timezone.utc) if at is None else at.replace(tzinfo=timezone.utc)
    return at.isoformat().replace("+00:00", "Z")
