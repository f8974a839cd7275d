"""Shared by OpenAI's completions and chat completions: sampling, usage, timings, errors."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from pellucid.outputs import CompletionDelta, RequestOutput
from pellucid.sampling_params import SamplingParams
from pellucid.server.endpoint import Reply, StreamedReply
from pellucid.server.errors import ApiError, ErrorShape, refused
from pellucid.server.fields import FieldTable, honoured, not_served, without_effect
from pellucid.server.generation import Generation, whole_delta
from pellucid.server.protocols.answer_rules import (
    AnswerRule,
    one_rule,
    openai_format_rule,
    structured_outputs_rule,
)
from pellucid.server.protocols.reasoning import given_budget
from pellucid.server.protocols.sampling import with_given
from pellucid.server.served_model import FINGERPRINT
from pellucid.server.streaming import (
    CompletionsReply,
    Progress,
    StreamWriter,
    TextChunks,
    sse,
)
from pellucid.text.tokenizer import Tokenizer

DONE = b"data: [DONE]\n\n"


class StreamOptions(msgspec.Struct, kw_only=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


STREAM_OPTION_FIELDS = FieldTable(
    "`stream_options` of completions and chat completions",
    StreamOptions,
    (
        *honoured(
            include_usage="a last frame with the usage of all answers",
            continuous_usage_stats="the usage so far in every frame",
        ),
        *without_effect(include_obfuscation="frames have no padding"),
    ),
)


class SamplingFields(msgspec.Struct, kw_only=True):
    """Fields that both routes honour. Fields that are left out take the model's own defaults."""

    model: str | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    min_tokens: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    timeout: float | None = None
    priority: int | None = None
    cache_salt: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    return_progress: bool | None = None
    prompt_logprobs: int | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    thinking_token_budget: int | None = None
    thinking_budget_tokens: int | None = None
    thinking_budget: int | None = None

    def check_stream(self) -> None:
        """Raises an ApiError for fields that apply to streams only."""
        for name in ("stream_options", "return_progress"):
            if getattr(self, name) and not self.stream:
                raise refused(f"{name}: needs stream=true", name)

    @property
    def has_equal_frames(self) -> bool:
        """Whether the frames of a text differ in parts of the text alone, if they have no log-probabilities."""
        options = self.stream_options
        has_usage = options is not None and bool(options.continuous_usage_stats)
        return not (has_usage or self.return_token_ids)

    def format_rule(self) -> AnswerRule | None:
        """What the client wants each text to be.

        Raises:
            ApiError: it says so in a wrong form, or twice.
        """
        return one_rule(
            openai_format_rule(self.response_format, "response_format"),
            structured_outputs_rule(self.structured_outputs),
        )

    def thinking_budget_in_tokens(self, tokenizer: Tokenizer, warnings: list[str]) -> int | None:
        """The budget of reasoning; None: no limit.

        Raises:
            ApiError: a budget is below -1, or two differ.
        """
        names = ("thinking_token_budget", "thinking_budget_tokens", "thinking_budget")
        given = {name: getattr(self, name) for name in names}
        return given_budget(given, tokenizer, warnings)

    def sampling_params(self, defaults: SamplingParams, **others: Any) -> SamplingParams:
        """The engine's parameters.

        Args:
            defaults: the model's.
            others: fields that the two routes read in ways of their own.

        Raises:
            ApiError, ValueError: names the field, its value and what is allowed.
        """
        given = {name: getattr(self, name) for name in _PARAMETERS}
        return with_given(defaults, given | others, _PARAMETER_NAMES)


_PARAMETERS = (
    "timeout",
    *(
        name
        for name in SamplingFields.__struct_fields__
        if name in SamplingParams.__dataclass_fields__
        and name not in ("structured_outputs", "thinking_token_budget")
    ),
)
_PARAMETER_NAMES = {
    "timeout": "max_time",
    "max_completion_tokens": "max_tokens",
    "top_logprobs": "logprobs",
}

SAMPLING_FIELDS = (
    *honoured(
        model="the served model's name or one of its aliases; left out, the served model",
        n="completions of each prompt; bounded",
        temperature="0 is greedy; left out, the model's own default",
        top_p="see docs/sampling.md",
        top_k="0 or -1 is off",
        min_p="see docs/sampling.md",
        typical_p="see docs/sampling.md",
        repetition_penalty="see docs/sampling.md",
        presence_penalty="see docs/sampling.md",
        frequency_penalty="see docs/sampling.md",
        logit_bias="token ids to numbers in -100..100",
        allowed_token_ids="no other token is sampled",
        bad_words="strings that are never completed",
        min_tokens="minimum tokens before EOS, a stop token or a stop string may end the answer",
        seed="the same seed gives the same answer, bit for bit",
        stop="a string or a list; matched in text, also across tokens",
        stop_token_ids="tokens that end the answer",
        include_stop_str_in_output="the text keeps the stop string",
        ignore_eos="continue after the model's end tokens",
        skip_special_tokens="leave special tokens out of the text",
        timeout="seconds after which the answer ends, with finish_reason length",
        priority="lower is sooner, among the requests of a key; each level counts as having arrived 10 s earlier",
        cache_salt="only calls with the same salt share cached prompts",
        stream="server-sent events",
        stream_options="see below; with stream alone",
        return_token_ids="prompt_token_ids and token_ids in the reply",
        return_progress="prompt_progress and the position in the queue before the first token; with stream"
        " alone",
        prompt_logprobs="log-probabilities of the prompt's tokens, in vLLM's form",
        response_format="text, json_object, or json_schema, which is enforced, strict or not; with tools,"
        " the answer either consists of calls or has the format",
        structured_outputs="one of json, regex, choice, grammar (Lark's syntax, as llguidance reads it),"
        " json_object",
        thinking_token_budget="maximum tokens of reasoning; then the end of reasoning is forced; -1 is no limit",
        thinking_budget_tokens="the same by llama.cpp's name",
        thinking_budget="the same by Qwen's name",
    ),
    *without_effect(
        user="used by OpenAI's abuse detection only",
        metadata="nothing is stored",
        store="nothing is stored",
        safety_identifier="used by OpenAI's abuse detection only",
        service_tier="there is only one; see priority",
        prompt_cache_key="equal prompts are found by their tokens; see cache_salt",
        prompt_cache_retention="blocks stay until memory is needed",
    ),
    *not_served(
        use_beam_search="use LLM.beam_search in Python",
        length_penalty="a parameter of beam search; use LLM.beam_search in Python",
        logits_processors="code in a request is never run; use logit_bias, allowed_token_ids or bad_words",
        truncate_prompt_tokens="nothing is truncated; shorten the prompt yourself",
        guided_json="use response_format or structured_outputs.json",
        guided_regex="use structured_outputs.regex",
        guided_choice="use structured_outputs.choice",
        guided_grammar="use structured_outputs.grammar",
        grammar="use structured_outputs.grammar, which is in Lark's syntax",
        json_schema="use response_format",
    ),
)


class CachedTokens(msgspec.Struct):
    cached_tokens: int


class ReasoningTokenCount(msgspec.Struct):
    reasoning_tokens: int


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokenCount


def usage_of(
    outputs: Sequence[RequestOutput], num_completion_tokens: int, num_reasoning_tokens: int
) -> Usage:
    """The tokens of a request.

    Args:
        outputs: one for each prompt; several answers to one prompt compute it once.
        num_completion_tokens: of all answers that the client gets.
        num_reasoning_tokens: of these, those that are reasoning.
    """
    num_prompt_tokens = sum(len(output.prompt_token_ids) for output in outputs)
    return Usage(
        num_prompt_tokens,
        num_completion_tokens,
        num_prompt_tokens + num_completion_tokens,
        CachedTokens(sum(output.num_cached_tokens for output in outputs)),
        ReasoningTokenCount(num_reasoning_tokens),
    )


class Timings(msgspec.Struct):
    """Where a request's time went, by llama.cpp's names; milliseconds."""

    queue_ms: float
    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float


def timings_of(outputs: Sequence[RequestOutput]) -> Timings | UnsetType:
    """The timings of a request with one prompt; those of several prompts overlap and have no meaning."""
    if len(outputs) != 1:
        return UNSET
    output = outputs[0]
    metrics = output.metrics
    prompt_seconds = metrics.prefill_seconds or 0.0
    decode_seconds = metrics.decode_seconds or 0.0
    started = metrics.first_scheduled_time
    num_computed = len(output.prompt_token_ids) - output.num_cached_tokens
    num_predicted = sum(len(completion.token_ids) for completion in output.outputs)
    num_decoded = max(0, num_predicted - len(output.outputs))  # the first ones came with the prompt
    return Timings(
        queue_ms=0.0 if started is None else (started - metrics.arrival_time) * 1e3,
        cache_n=output.num_cached_tokens,
        prompt_n=num_computed,
        prompt_ms=prompt_seconds * 1e3,
        prompt_per_token_ms=_ratio(prompt_seconds * 1e3, num_computed),
        prompt_per_second=_ratio(num_computed, prompt_seconds),
        predicted_n=num_predicted,
        predicted_ms=decode_seconds * 1e3,
        predicted_per_token_ms=_ratio(decode_seconds * 1e3, num_decoded),
        predicted_per_second=_ratio(num_decoded, decode_seconds),
    )


def _ratio(amount: float, per: float) -> float:
    return amount / per if per else 0.0


def prompt_progress(progress: Progress) -> dict[str, Any]:
    """llama.cpp's object of progress, with the position in the queue."""
    return {
        "total": progress.total,
        "cache": progress.cache,
        "processed": progress.processed,
        "time_ms": progress.time_ms,
        "queue_position": progress.queue_position,
    }


def prompt_logprobs_of(output: RequestOutput) -> list[Any] | None:
    """vLLM's form: for each position a mapping from token ids."""
    if output.prompt_logprobs is None:
        return None
    return [
        at
        and {
            str(token_id): {
                "logprob": entry.logprob,
                "rank": entry.rank,
                "decoded_token": entry.decoded_token,
            }
            for token_id, entry in at.items()
        }
        for at in output.prompt_logprobs
    ]


class ReplyObject(msgspec.Struct, kw_only=True):
    """The object of a whole reply, and of each frame of a stream."""

    id: str
    object: str
    created: int
    model: str
    choices: list[Any]
    system_fingerprint: str = FINGERPRINT
    usage: Usage | UnsetType | None = UNSET
    timings: Timings | UnsetType = UNSET
    prompt_progress: dict[str, Any] | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET


class ChoiceWriter(Protocol):
    """Writes one choice: all of it, or what a delta adds to it."""

    def part(
        self, delta: CompletionDelta, frame: Callable[[msgspec.Struct], bytes]
    ) -> bytes | None:
        """The frame of what a delta adds, by `frame`. None: nothing that the client would see; never for the
        last delta."""

    def text_chunks(self, frame: Callable[[msgspec.Struct], bytes]) -> TextChunks | None:
        """As `StreamWriter.text_chunks`."""

    def whole(self, delta: CompletionDelta) -> msgspec.Struct: ...

    @property
    def num_tokens(self) -> int:
        """Tokens that were written so far."""

    @property
    def num_reasoning_tokens(self) -> int:
        """Of these, those that are reasoning."""


class ReplyWriter(StreamWriter):
    """Writes one reply, whole or as a stream.

    Args:
        generation: whose answers it writes.
        fields: what the client asked for.
        kind: of the objects' ids: "cmpl" or "chatcmpl".
        model: the name that the client gave it.
        object_names: of the whole reply and of a frame.
        make_choice: the writer of a choice, of its number and its request's output.
    """

    def __init__(
        self,
        generation: Generation,
        fields: SamplingFields,
        kind: str,
        model: str,
        object_names: tuple[str, str],
        make_choice: Callable[[int, RequestOutput], ChoiceWriter],
    ) -> None:
        self._generation = generation
        self._fields = fields
        self._id = f"{kind}-{generation.id}"
        self._created = int(time.time())
        self._model = model
        self._object_names = object_names
        self._make_choice = make_choice
        self._n = generation.request.params.n
        self._choices: dict[int, ChoiceWriter] = {}  # by number
        self._stream_options = fields.stream_options or StreamOptions()
        self._num_ended = 0

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
        frame = self._part_frame
        if delta.finish_reason is not None:
            self._num_ended += 1
            if self._num_ended == num_choices(self._generation.outputs):
                frame = self._last_part_frame
        return choice.part(delta, frame) or b""

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
        return self._frame([part], usage=self._frame_usage())

    def _last_part_frame(self, part: msgspec.Struct) -> bytes:
        """With timings and warnings; they stand beside the last choice, as clients expect one in every frame."""
        return self._frame(
            [part],
            usage=self._frame_usage(),
            timings=timings_of(self._generation.outputs),
            warnings=self._generation.call.warnings or UNSET,
        )

    def _frame_usage(self) -> Usage | UnsetType | None:
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
            model=self._model,
            choices=choices,
            **others,
        )

    def _usage(self) -> Usage:
        choices = self._choices.values()
        return usage_of(
            self._generation.outputs,
            sum(choice.num_tokens for choice in choices),
            sum(choice.num_reasoning_tokens for choice in choices),
        )

    def _new_choice(self, prompt_index: int, index: int, output: RequestOutput) -> ChoiceWriter:
        number = prompt_index * self._n + index
        self._choices[number] = choice = self._make_choice(number, output)
        return choice


def num_choices(outputs: Sequence[RequestOutput]) -> int:
    return sum(len(output.outputs) for output in outputs)
