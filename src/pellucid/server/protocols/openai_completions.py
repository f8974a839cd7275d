"""OpenAI's /v1/completions: text and token ids, lists of both, echo and log-probabilities.

https://platform.openai.com/docs/api-reference/completions, with vLLM's additions.
"""

import codecs
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from pellucid.outputs import CompletionDelta, CompletionOutput, LogprobsAt, RequestOutput
from pellucid.prompts import Prompt
from pellucid.server.endpoint import Call, Reply, StreamedReply
from pellucid.server.errors import refused
from pellucid.server.fields import FieldTable, honoured, not_served
from pellucid.server.generation import Generation, GenerationRequest
from pellucid.server.protocols.openai_common import (
    DONE,
    SAMPLING_FIELDS,
    ReplyFacts,
    SamplingFields,
    Timings,
    Usage,
    failure_frame,
    prompt_logprobs_of,
    prompt_progress,
    timings_of,
    usage_of,
)
from pellucid.server.served_model import FINGERPRINT
from pellucid.server.serving import Serving
from pellucid.server.streaming import (
    SSE_KEEPALIVE,
    Progress,
    failing_with_a_frame,
    sse,
    with_progress,
)
from pellucid.text.tokenizer import Tokenizer

DEFAULT_MAX_TOKENS = 16  # OpenAI's


class CompletionBody(SamplingFields, kw_only=True):
    prompt: str | list[Any]
    max_tokens: int | None = None
    best_of: int | None = None
    echo: bool | None = None
    logprobs: int | None = None


COMPLETION_FIELDS = FieldTable(
    "POST /v1/completions",
    CompletionBody,
    (
        *honoured(
            prompt="a string, token ids, or a list of strings and lists of token ids",
            max_tokens="left out, 16; what the context does not hold is not generated; 0 with echo"
            " gives the prompt alone",
            best_of="answers to make, of which the n best are given",
            echo="the prompt stands before the answer, and its log-probabilities too",
            logprobs="0..20 likeliest tokens at each position, the chosen one always with them",
        ),
        *SAMPLING_FIELDS,
        *not_served(suffix="no model with a fill-in-the-middle form is supported"),
    ),
)


class Logprobs(msgspec.Struct):
    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class TextChoice(msgspec.Struct):
    index: int
    text: str
    logprobs: Logprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: list[Any] | UnsetType | None = UNSET


class TextCompletion(msgspec.Struct):
    id: str
    created: int
    model: str
    choices: list[TextChoice]
    object: str = "text_completion"
    system_fingerprint: str = FINGERPRINT
    usage: Usage | UnsetType | None = UNSET
    timings: Timings | UnsetType = UNSET
    prompt_progress: dict[str, Any] | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET


@dataclass
class Completions:
    """The handler of the route."""

    serving: Serving

    async def __call__(self, call: Call) -> Reply | StreamedReply:
        body = COMPLETION_FIELDS.decode(call.body, call.warnings)
        model = self.serving.model
        name = model.check_name(body.model)
        max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
        prompt_only = max_tokens == 0 and bool(body.echo)
        params = body.sampling_params(
            model.default_sampling_params,
            max_tokens=1 if prompt_only else max_tokens,  # the engine computes a prompt to go on
            best_of=body.best_of,
            logprobs=body.logprobs,
            prompt_logprobs=_prompt_logprobs(body),
        )
        request = GenerationRequest(
            prompts_of(body.prompt), params, body.priority or 0, body.cache_salt
        )
        generation = await self.serving.service.start(request, call)
        facts = ReplyFacts.of("cmpl", call.request_id, name)
        writer = _Writer(body, facts, generation, model.tokenizer, prompt_only)
        if body.stream:
            frames = failing_with_a_frame(writer.frames(), failure_frame, call.request_id)
            return StreamedReply(frames, SSE_KEEPALIVE)
        return Reply(msgspec.json.encode(writer.whole(await generation.finish())))


def _prompt_logprobs(body: CompletionBody) -> int | None:
    """How many the engine must compute at each position of the prompt: echo wants as many as logprobs."""
    wanted = [body.prompt_logprobs, body.logprobs if body.echo else None]
    return max((number for number in wanted if number is not None), default=None)


def prompts_of(prompt: str | list[Any]) -> list[Prompt]:
    """The prompts of a call: one, unless it is a list of strings and of lists of token ids."""
    if isinstance(prompt, str):
        return [prompt]
    if all(type(element) is int for element in prompt) and prompt:
        return [prompt]
    for index, element in enumerate(prompt):
        if isinstance(element, list) and all(type(token_id) is int for token_id in element):
            continue
        if not isinstance(element, str):
            raise refused(
                f"prompt[{index}]: must be a string or a list of token ids", f"prompt[{index}]"
            )
    return list(prompt)


@dataclass
class _Writer:
    """Writes one reply."""

    body: CompletionBody
    facts: ReplyFacts
    generation: Generation
    tokenizer: Tokenizer
    prompt_only: bool
    _choices: dict[int, "_ChoiceWriter"] = field(default_factory=dict)
    _num_tokens: int = 0

    def whole(self, outputs: Sequence[RequestOutput]) -> TextCompletion:
        choices = []
        for prompt_index, output in enumerate(outputs):
            for completion in output.outputs:
                writer = self._choice(prompt_index, completion.index, output)
                choices.append(writer.whole(completion))
                self._num_tokens += writer.num_tokens
        return self._object(
            choices,
            usage=usage_of(outputs, self._num_tokens),
            timings=timings_of(outputs),
            warnings=self.generation.call.warnings or UNSET,
        )

    async def frames(self) -> AsyncGenerator[bytes, None]:
        options = self.body.stream_options
        include_usage = options is not None and options.include_usage
        continuous = include_usage and options is not None and options.continuous_usage_stats
        generation = self.generation
        usage: Usage | UnsetType | None = None if include_usage else UNSET
        source = with_progress(generation) if self.body.return_progress else generation.deltas()
        async for item in source:
            if isinstance(item, Progress):
                yield self._frame([], prompt_progress=prompt_progress(item))
                continue
            prompt_index, delta = item
            output = generation.outputs[prompt_index]
            writer = self._choice(prompt_index, delta.index, output)
            choice = writer.part(delta)
            self._num_tokens += writer.num_tokens_of(delta)
            if continuous:
                usage = usage_of(generation.outputs, self._num_tokens)
            if generation.is_finished:  # with the last choice: clients expect one in every frame
                last = {
                    "timings": timings_of(generation.outputs),
                    "warnings": generation.call.warnings or UNSET,
                }
            else:
                last = {}
            yield self._frame([choice], usage=usage, **last)
        if include_usage:
            yield self._frame([], usage=usage_of(generation.outputs, self._num_tokens))
        yield DONE

    def _frame(self, choices: list[TextChoice], **others: Any) -> bytes:
        return sse(msgspec.json.encode(self._object(choices, **others)))

    def _object(self, choices: list[TextChoice], **others: Any) -> TextCompletion:
        facts = self.facts
        return TextCompletion(facts.id, facts.created, facts.model, choices, **others)

    def _choice(self, prompt_index: int, index: int, output: RequestOutput) -> "_ChoiceWriter":
        number = prompt_index * self.generation.request.params.n + index
        if number not in self._choices:
            self._choices[number] = _ChoiceWriter(
                number, self.body, self.tokenizer, output, self.prompt_only
            )
        return self._choices[number]


class _ChoiceWriter:
    """Writes one choice, whole or in parts."""

    def __init__(
        self,
        number: int,
        body: CompletionBody,
        tokenizer: Tokenizer,
        output: RequestOutput,
        prompt_only: bool,
    ) -> None:
        self._number = number
        self._body = body
        self._tokenizer = tokenizer
        self._output = output
        self._prompt_only = prompt_only
        self._offsets = _TextOffsets(tokenizer, body.skip_special_tokens is not False)
        self._is_first = True
        self.num_tokens = 0

    def whole(self, completion: CompletionOutput) -> TextChoice:
        return self.part(
            CompletionDelta(
                self._output.request_id,
                completion.index,
                completion.text,
                completion.token_ids,
                completion.logprobs,
                completion.finish_reason,
                completion.stop_reason,
            )
        )

    def num_tokens_of(self, delta: CompletionDelta) -> int:
        return 0 if self._prompt_only else len(delta.token_ids)

    def part(self, delta: CompletionDelta) -> TextChoice:
        """What a delta adds; the first one brings the prompt, if it is to be echoed."""
        is_first, self._is_first = self._is_first, False
        echoes = is_first and bool(self._body.echo)
        output = self._output
        token_ids: list[int] = []
        logprobs: list[LogprobsAt | None] = []
        text = ""
        if echoes:
            text = self._prompt_text()
            token_ids += output.prompt_token_ids
            logprobs += output.prompt_logprobs or []
        elif is_first and self._body.logprobs is not None:
            self._offsets.skip(output.prompt_token_ids)
        if not self._prompt_only:
            text += delta.text
            token_ids += delta.token_ids
            logprobs += delta.logprobs or []
            self.num_tokens += len(delta.token_ids)
        choice = TextChoice(self._number, text)
        if self._body.logprobs is not None:
            choice.logprobs = self._logprobs(token_ids, logprobs)
        if delta.finish_reason is not None:
            choice.finish_reason = "length" if self._prompt_only else delta.finish_reason
            choice.stop_reason = None if self._prompt_only else delta.stop_reason
        if self._body.return_token_ids:
            choice.token_ids = [] if self._prompt_only else delta.token_ids
            if is_first:
                choice.prompt_token_ids = output.prompt_token_ids
        if is_first and self._body.prompt_logprobs is not None:
            choice.prompt_logprobs = prompt_logprobs_of(output)
        return choice

    def _prompt_text(self) -> str:
        if self._output.prompt is not None:
            return self._output.prompt
        skip = self._body.skip_special_tokens is not False
        return self._tokenizer.decode(self._output.prompt_token_ids, skip)

    def _logprobs(
        self, token_ids: Sequence[int], logprobs: Sequence[LogprobsAt | None]
    ) -> Logprobs:
        written = Logprobs([], [], [], [])
        for token_id, at in zip(token_ids, logprobs, strict=True):
            written.text_offset.append(self._offsets.next(token_id))
            if at is None:  # before the first token there is nothing that could predict it
                written.tokens.append(self._tokenizer.token_text(token_id))
                written.token_logprobs.append(None)
                written.top_logprobs.append(None)
            else:
                written.tokens.append(at[token_id].decoded_token)
                written.token_logprobs.append(at[token_id].logprob)
                written.top_logprobs.append(_by_text(token_id, at))
        return written


def _by_text(chosen_id: int, at: LogprobsAt) -> dict[str, float]:
    """Log-probabilities by the tokens' texts. Of tokens with the same text the chosen one has it, or
    else the likeliest; the others are called token_id:N, so that none is lost."""
    named = {at[chosen_id].decoded_token: chosen_id}
    for token_id, entry in at.items():
        named.setdefault(entry.decoded_token, token_id)
    return {
        entry.decoded_token
        if named[entry.decoded_token] == token_id
        else f"token_id:{token_id}": entry.logprob
        for token_id, entry in at.items()
    }


class _TextOffsets:
    """Where in the text each token begins, in characters."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_token_ids if skip_special_tokens else frozenset()
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._bytes = tokenizer.first_token_bytes
        self._offset = 0

    def next(self, token_id: int) -> int:
        offset = self._offset
        if token_id not in self._skipped:
            self._offset += len(self._utf8.decode(self._bytes(token_id)))
            self._bytes = self._tokenizer.token_bytes
        return offset

    def skip(self, token_ids: Sequence[int]) -> None:
        """Counts a prompt that is not echoed, as OpenAI does."""
        for token_id in token_ids:
            self.next(token_id)
