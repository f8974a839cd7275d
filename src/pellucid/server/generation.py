"""The generation service, the only way from a route to the engine: limits, admission, encoding, streams."""

import asyncio
import hashlib
import math
import time
from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TypeVar

from pellucid.async_engine import AsyncTokenStream, TextThreads
from pellucid.inputs.config import PRIORITY_SECONDS
from pellucid.inputs.prompts import EncodedPrompt, Prompt
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.observing.event_feed import EventFeed
from pellucid.outputs import CompletionDelta, CompletionOutput, RequestOutput
from pellucid.server.admission import Admission, Place
from pellucid.server.api_keys import ANYONE, Caller
from pellucid.server.completion_id import CompletionId
from pellucid.server.config import Limits
from pellucid.server.endpoint import Call
from pellucid.server.errors import ApiError, not_serving, refused, rule_refused
from pellucid.server.fields import Body, FieldTable
from pellucid.server.metrics import Metrics
from pellucid.server.request_records import CallRecord, PromptRecord, RequestRecords
from pellucid.server.served_engine import ServedEngine
from pellucid.server.visibility import Visibility
from pellucid.server.waiting_line import RequestsAhead, Waiting, WaitingLine

Result = TypeVar("Result")

MAX_READ_IN_PLACE = 16 << 10  # bytes of a body: some thousand objects, read within milliseconds


@dataclass(frozen=True)
class GenerationRequest:
    """The completions that a call of any protocol asks for.

    Attributes:
        prompts: each gets its own completions.
        params: how to choose and when to stop; n completions for each prompt.
        priority: lower is sooner.
        cache_salt: the client's; callers with different keys never share cached prompts anyway.
        aspects: see `CallRecord`.
        rule_field: the client's field that became `params.structured_outputs`.
        continues: as in `LLMEngine.add_prepared`.
    """

    prompts: Sequence[Prompt | EncodedPrompt]
    params: SamplingParams
    priority: int = 0
    cache_salt: str | None = None
    aspects: Mapping[str, bytes] = field(default_factory=dict)
    rule_field: str = "structured_outputs"
    continues: tuple[str, int] | None = None

    @property
    def num_completions(self) -> int:
        return len(self.prompts) * self.params.num_results

    def check(self, limits: Limits) -> None:
        """Raises an ApiError for a request beyond the limits. The engine checks everything else."""
        params = self.params
        if not self.prompts:
            raise refused("prompt: must not be an empty list", "prompt")
        _check_count("prompt", len(self.prompts), limits.max_prompts, "prompts")
        _check_count("n", self.num_completions, limits.max_completions, "completions (prompts x n)")
        for name, strings in (("stop", params.stop), ("bad_words", params.bad_words)):
            _check_count(name, len(strings), limits.max_strings, "strings")
            longest = max(map(len, strings), default=0)
            _check_count(name, longest, limits.max_string_chars, "characters in a string")
        for name, entries in (
            ("logit_bias", params.logit_bias),
            ("allowed_token_ids", params.allowed_token_ids or ()),
            ("stop_token_ids", params.stop_token_ids),
        ):
            _check_count(name, len(entries), limits.max_logit_bias, "entries")


def _check_count(name: str, count: int, limit: int, what: str) -> None:
    if count > limit:
        raise refused(f"{name}: has {count} {what}; at most {limit} are allowed", name)


class GenerationService:
    """Admits requests, encodes their prompts, and runs them on the engine.

    Args:
        engine: used by this server alone.
        limits: see `Limits`.
        callers: all callers; empty: there are no keys.
        isolates: see `ServerConfig.isolate_keys`.

    Attributes:
        records: what happened to the latest calls.
        visibility: what callers learn of each other's requests.
        feed: the engine's events for readers at their own pace.
        under_way: by the id of their call.
        metrics: of requests that have ended.
        on_ended: called with each request that has ended.
        is_draining: new requests are refused; unfinished ones run to their ends.
    """

    def __init__(
        self,
        engine: ServedEngine,
        limits: Limits,
        callers: Collection[Caller],
        isolates: bool,
    ) -> None:
        self.engine = engine
        self.limits = limits
        self.admission = Admission(limits, time.monotonic, callers, isolates)
        self.records = RequestRecords(engine.events, max(1, len(callers)))
        self.visibility = Visibility(self.records, isolates)
        self.feed = EventFeed(engine.events)
        self.under_way: dict[str, Generation] = {}
        self.metrics = Metrics()
        self.on_ended: list[Callable[[Generation], None]] = []
        self.is_draining = False
        self._line: WaitingLine  # as it was at this time
        self._line_time = -math.inf
        self._texts = TextThreads(limits.max_waiting_texts, limits.text_workers)
        # Of each key, one text is read or encoded at a time
        self._turns = {caller.name: asyncio.Semaphore(1) for caller in callers}

    async def start(self, request: GenerationRequest, call: Call) -> "Generation":
        """Queues a request, which ends with its call at the latest.

        Raises:
            ApiError: it is refused; nothing was queued.
            ValueError: the engine refuses it; nothing is queued any more.
        """
        self._check_open()
        request.check(self.limits)
        place = self.admission.admit(call.caller, request.num_completions)
        generation = Generation(self, call, request, place)
        call.resources.push_async_callback(generation.aclose)
        self.under_way[generation.id] = generation
        async with self._turn(call.caller):
            for prompt in request.prompts:
                if not isinstance(prompt, EncodedPrompt):
                    prompt = await self.engine.encode(prompt)
                generation.prompts.append(prompt)
            lengths = sum(len(prompt.token_ids) for prompt in generation.prompts)
            generation.place.add_tokens(lengths)
            try:
                prepared = [
                    await self.engine.prepare(prompt, request.params)
                    for prompt in generation.prompts
                ]
            except ValueError as error:
                raise rule_refused(error, request.rule_field) from None
        call.held_body.release()
        salt = cache_salt_of(call.caller, request.cache_salt)
        self.records.add(
            CallRecord(
                generation.id,
                call.caller,
                call.path,
                [
                    PromptRecord(array("I", prompt.token_ids), prompt.is_chat, prompt.end_token_ids)
                    for prompt in generation.prompts
                ],
                request.params,
                salt,
                request.aspects,
            )
        )
        for index, each in enumerate(prepared):
            stream = await self.engine.add_request(
                each,
                request_id=CompletionId(generation.id, index).request_id,
                priority=request.priority,
                cache_salt=salt,
                continues=request.continues,
                caller=call.caller.name,
                caller_weight=call.caller.weight,
            )
            generation.add(stream)
            if generation.is_cancelled:  # while it was being queued
                self.engine.abort(stream.request_id)
        return generation

    def check_room(self, caller: Caller) -> None:
        """Raises an ApiError if no request of this caller would be admitted now, whatever it asks for."""
        self._check_open()
        self.admission.check_room(caller)

    def check_text_room(self, caller: Caller) -> None:
        """Raises an ApiError if no text of this caller would be worked on now."""
        self._check_open()
        self.admission.check_text_room(caller)

    async def read(
        self, call: Call, table: FieldTable[Body], reader: Callable[[Body, Call], Result]
    ) -> Result:
        """What a call's body asks for; the body itself is dropped. A large one is read on a thread, so that the event
        loop goes on.

        Args:
            table: of the call's fields.
            reader: checks the decoded body, and makes of it what the route needs.

        Raises:
            ApiError: it is refused.
            ValueError: likewise.
        """

        def read() -> Result:
            return reader(table.decode(call.body, call.warnings), call)

        is_small = len(call.body) <= MAX_READ_IN_PLACE
        found = read() if is_small else await self.work_on_text(call, read)
        call.body = b""
        return found

    async def read_body(self, call: Call, table: FieldTable[Body]) -> Body:
        """As `read`, for a route that needs the fields alone."""
        return await self.read(call, table, lambda body, call: body)

    async def work_on_text(self, call: Call, work: Callable[[], Result]) -> Result:
        """Runs work that takes long for a long text on a thread, off the event loop. Work that has not begun when the
        call is cancelled is left out.

        Raises:
            ApiError: too many texts wait, or the server is shutting down.
        """
        self._check_open()
        with self.admission.hold(self.admission.texts, call.caller):
            async with self._turn(call.caller):
                return await self._texts.run(work)

    def _check_open(self) -> None:
        if self.is_draining:
            raise not_serving("the server is shutting down")

    def _turn(self, caller: Caller) -> AbstractAsyncContextManager[object]:
        return self._turns.get(caller.name, nullcontext())

    def waiting_line(self, max_age: float = 0.0) -> WaitingLine:
        """The requests that wait, in their order.

        Args:
            max_age: seconds; many readers share one line that is not older.
        """
        now = time.monotonic()
        if now - self._line_time > max_age:
            self._line_time = now
            self._line = WaitingLine(
                Waiting(each.place_in_line, each.id, each.call.caller.name)
                for each in self.under_way.values()
                if not each.has_started
            )
        return self._line


@dataclass(eq=False)
class Generation:
    """An unfinished request.

    Attributes:
        prompts: encoded, in their order.
        streams: the deltas of each prompt's completions.
        is_cancelled: whether a call has cancelled it.
    """

    _service: GenerationService
    call: Call
    request: GenerationRequest
    place: Place
    prompts: list[EncodedPrompt] = field(default_factory=list)
    streams: list[AsyncTokenStream] = field(default_factory=list)
    is_cancelled: bool = False

    @property
    def id(self) -> str:
        return self.call.request_id

    @property
    def place_in_line(self) -> float:
        """The key by which the scheduler orders the waiting requests of a caller."""
        arrivals = (prompt.arrival_time for prompt in self.prompts)
        return min(arrivals, default=math.inf) + PRIORITY_SECONDS * self.request.priority

    @property
    def outputs(self) -> list[RequestOutput]:
        return [stream.output for stream in self.streams]

    @property
    def block_size(self) -> int:
        return self._service.engine.config.block_size

    @property
    def has_started(self) -> bool:
        """Whether a step has computed a part of it."""
        return any(
            stream.output.metrics.first_scheduled_time is not None for stream in self.streams
        )

    def requests_ahead(self, line: WaitingLine, viewer: Caller) -> RequestsAhead | None:
        """The requests that are admitted before it, as a caller sees them; None: it runs or has run."""
        if self.has_started:
            return None
        ahead = line.ahead_of(self.id, self.call.caller.name)
        return self._service.visibility.ahead(ahead, viewer)

    def queue_position(self, max_age: float) -> int | None:
        """How many requests are admitted before it, an estimate; None: it runs or has run.

        Args:
            max_age: of the estimate, in seconds.
        """
        ahead = self.requests_ahead(self._service.waiting_line(max_age), self.call.caller)
        return None if ahead is None else ahead.num

    def add(self, stream: AsyncTokenStream) -> None:
        """Adds the stream of the next prompt. When all have ended, others may have the place: a client that reads
        slowly holds no place in the engine."""
        self.streams.append(stream)
        stream.when_ended(self._leave_if_ended)

    def _leave_if_ended(self) -> None:
        is_queued = len(self.streams) == len(self.prompts)
        if is_queued and all(stream.has_all_deltas for stream in self.streams):
            self.place.leave()

    async def finish(self) -> list[RequestOutput]:
        """Waits for the ends of all completions.

        Raises:
            ApiError: an answer failed.
            EngineStoppedError: the engine failed.
        """
        for stream in self.streams:
            await stream.complete()
        for output in self.outputs:
            for completion in output.outputs:
                check_ended_well(completion.finish_reason, completion.stop_reason)
        return self.outputs

    def cancel(self) -> None:
        """Ends the completions after the current step, with finish_reason "abort"."""
        self.is_cancelled = True
        for stream in self.streams:
            self._service.engine.abort(stream.request_id)

    async def aclose(self) -> None:
        self._service.under_way.pop(self.id, None)
        self.place.leave()
        for stream in self.streams:
            await stream.aclose()
        self._service.records.read()
        self._service.records.keep_outputs(self.id, self.outputs)
        self._service.metrics.count(self.outputs)
        for on_ended in self._service.on_ended:
            on_ended(self)


def check_ended_well(finish_reason: str | None, stop_reason: object) -> None:
    """Raises an ApiError for an answer that failed while it was generated."""
    if finish_reason == "error":
        raise ApiError(500, f"the request failed: {stop_reason}", code="generation_failed")


def whole_delta(request_id: str, completion: CompletionOutput) -> CompletionDelta:
    """A finished answer as a single delta."""
    return CompletionDelta(
        request_id,
        completion.index,
        completion.text,
        completion.token_ids,
        completion.logprobs,
        completion.finish_reason,
        completion.stop_reason,
    )


def cache_salt_of(caller: Caller, salt: str | None) -> str | None:
    """The salt with which only callers of one name share cached prompts, where there are keys: the time to the
    first token would otherwise reveal the prompts of other callers."""
    if caller is ANYONE:
        return salt
    own = "" if salt is None else hashlib.sha256(salt.encode()).hexdigest()
    return f"{caller.name}\n{own}"
