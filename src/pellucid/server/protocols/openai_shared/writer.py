"""Writes a reply of completions or chat completions, whole or as a stream."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from pellucid.outputs import CompletionDelta, RequestOutput
from pellucid.server.endpoint import Reply, StreamedReply
from pellucid.server.errors import ApiError, ErrorShape
from pellucid.server.generation import Generation, whole_delta
from pellucid.server.protocols.ask import Ask
from pellucid.server.protocols.logprobs import prompt_logprobs_of
from pellucid.server.protocols.openai_shared.fields import SamplingFields, StreamOptions
from pellucid.server.protocols.openai_shared.usage import (
    prompt_progress,
    timings_of,
    usage_of,
)
from pellucid.server.served_model import FINGERPRINT
from pellucid.server.streaming import CompletionsReply, Progress, StreamWriter, TextChunks, sse

DONE = b"data: [DONE]\n\n"


Body = TypeVar("Body", bound=SamplingFields)


class TokensOfChoice(Protocol):
    """A choice with the tokens that vLLM's clients may ask for."""

    token_ids: list[int] | UnsetType
    prompt_token_ids: list[int] | UnsetType
    prompt_logprobs: list[Any] | UnsetType | None


class ReplyObject(msgspec.Struct, kw_only=True):
    """The object of a whole reply, and of each frame of a stream."""

    id: str
    object: str
    created: int
    model: str
    choices: list[Any]
    system_fingerprint: str = FINGERPRINT
    usage: dict[str, Any] | UnsetType | None = UNSET
    timings: dict[str, float] | UnsetType = UNSET
    prompt_progress: dict[str, Any] | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET


class ChoiceWriter(ABC, Generic[Body]):
    """Writes one choice: all of it, or what a delta adds to it.

    Args:
        number: of the choice.
        ask: what the call asks for.
        output: of the choice's prompt.
    """

    def __init__(self, number: int, ask: Ask[Body], output: RequestOutput) -> None:
        self._number = number
        self._body = ask.body
        self._tokenizer = ask.form.tokenizer
        self._output = output
        self._is_first = True

    @abstractmethod
    def part(
        self, delta: CompletionDelta, frame: Callable[[msgspec.Struct], bytes]
    ) -> bytes | None:
        """The frame of what a delta adds, by `frame`. None: nothing that the client would see; never for the
        last delta."""

    @abstractmethod
    def text_chunks(self, frame: Callable[[msgspec.Struct], bytes]) -> TextChunks | None:
        """As `StreamWriter.text_chunks`."""

    @abstractmethod
    def whole(self, delta: CompletionDelta) -> msgspec.Struct: ...

    @property
    @abstractmethod
    def num_tokens(self) -> int:
        """Tokens that were written so far."""

    @property
    def num_reasoning_tokens(self) -> int:
        """Of these, those that are reasoning."""
        return 0

    def _add_tokens(self, choice: TokensOfChoice, token_ids: list[int]) -> None:
        """What vLLM's clients may ask for besides."""
        if self._body.return_token_ids:
            choice.token_ids = token_ids
            if self._is_first:
                choice.prompt_token_ids = self._output.prompt_token_ids
        if self._is_first and self._body.prompt_logprobs is not None:
            choice.prompt_logprobs = prompt_logprobs_of(self._output)


class ReplyWriter(StreamWriter, Generic[Body]):
    """Writes one reply, whole or as a stream.

    Args:
        generation: whose answers it writes.
        ask: what the call asks for.
        kind: of the objects' ids: "cmpl" or "chatcmpl".
        object_names: of the whole reply and of a frame.
        make_choice: the writer of a choice, of its number and its prompt's output.
    """

    def __init__(
        self,
        generation: Generation,
        ask: Ask[Body],
        kind: str,
        object_names: tuple[str, str],
        make_choice: Callable[[int, Ask[Body], RequestOutput, Generation], ChoiceWriter[Body]],
    ) -> None:
        self._generation = generation
        self._ask = ask
        self._fields = ask.body
        self._id = f"{kind}-{generation.id}"
        self._created = int(time.time())
        self._object_names = object_names
        self._make_choice = make_choice
        self._n = generation.request.params.n
        self._choices: dict[int, ChoiceWriter[Body]] = {}  # by number
        self._stream_options = self._fields.stream_options or StreamOptions()
        self._num_ended = 0
        self._is_last = False  # the frame that is written is the last one with a choice

    async def reply(self) -> Reply | StreamedReply:
        if self._fields.stream:
            progress = self._progress if self._fields.return_progress else None
            return CompletionsReply(self._generation, self, progress)
        return Reply(msgspec.json.encode(self._whole(await self._generation.finish())))

    def _whole(self, outputs: Sequence[RequestOutput]) -> ReplyObject:
        choices = [
            self._new_choice(prompt_index, completion.index, output).whole(
                whole_delta(output.request_id, completion)
            )
            for prompt_index, output in enumerate(outputs)
            for completion in output.outputs
        ]
        return self._object(
            self._object_names[0],
            choices,
            usage=self._usage(),
            timings=timings_of(outputs),
            warnings=self._generation.call.warnings or UNSET,
        )

    def added(self, prompt_index: int, delta: CompletionDelta) -> bytes:
        choice = self._choices.get(prompt_index * self._n + delta.index)
        if choice is None:
            output = self._generation.outputs[prompt_index]
            choice = self._new_choice(prompt_index, delta.index, output)
        if delta.finish_reason is not None:
            self._num_ended += 1
            self._is_last = self._num_ended == num_choices(self._generation.outputs)
        return choice.part(delta, self._part_frame) or b""

    def text_chunks(self, prompt_index: int, index: int) -> TextChunks | None:
        choice = self._choices.get(prompt_index * self._n + index)
        return None if choice is None else choice.text_chunks(self._part_frame)

    def last(self) -> bytes:
        if self._stream_options.include_usage:
            return self._frame([], usage=self._usage()) + DONE
        return DONE

    def failure(self, error: ApiError, request_id: str) -> bytes:
        return sse(ErrorShape.OPENAI.body(error, request_id)) + DONE

    def _progress(self, progress: Progress) -> bytes:
        return self._frame([], prompt_progress=prompt_progress(progress))

    def _part_frame(self, part: msgspec.Struct) -> bytes:
        """The last one has timings and warnings; they stand beside a choice, as clients expect one in every frame."""
        has_timings = self._is_last or self._fields.timings_per_token
        return self._frame(
            [part],
            usage=self._frame_usage(),
            timings=timings_of(self._generation.outputs) if has_timings else UNSET,
            warnings=(self._is_last and self._generation.call.warnings) or UNSET,
        )

    def _frame_usage(self) -> dict[str, Any] | UnsetType | None:
        """The usage in a frame with choices: null if the client asked for it at the end."""
        if self._stream_options.continuous_usage_stats:
            return self._usage()
        return None if self._stream_options.include_usage else UNSET

    def _frame(self, choices: list[Any], **others: Any) -> bytes:
        return sse(msgspec.json.encode(self._object(self._object_names[1], choices, **others)))

    def _object(self, name: str, choices: list[Any], **others: Any) -> ReplyObject:
        return ReplyObject(
            id=self._id,
            object=name,
            created=self._created,
            model=self._ask.name,
            choices=choices,
            **others,
        )

    def _usage(self) -> dict[str, Any]:
        choices = self._choices.values()
        return usage_of(
            self._generation.outputs,
            sum(choice.num_tokens for choice in choices),
            sum(choice.num_reasoning_tokens for choice in choices),
        )

    def _new_choice(
        self, prompt_index: int, index: int, output: RequestOutput
    ) -> ChoiceWriter[Body]:
        number = prompt_index * self._n + index
        choice = self._make_choice(number, self._ask, output, self._generation)
        self._choices[number] = choice
        return choice


def num_choices(outputs: Sequence[RequestOutput]) -> int:
    return sum(len(output.outputs) for output in outputs)
