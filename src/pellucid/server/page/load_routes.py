"""/v1/load: a bounded load on this engine, with the arrivals of bench-serve; continuous or static batching."""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeAlias

from pellucid.benchmark.load.result import PERCENTILES, LoadResult, Outcome, ServiceLevel, Spread
from pellucid.benchmark.load.tasks import run_all, sleep_until
from pellucid.benchmark.load.traffic import (
    EXAMPLE_WORDS,
    Lengths,
    PlannedRequest,
    PromptWriter,
    Traffic,
    words,
)
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.server.completion_id import CompletionId
from pellucid.server.endpoint import Call, GeneratedReply
from pellucid.server.errors import error_of, overloaded, refused
from pellucid.server.generation import GenerationRequest
from pellucid.server.page.fields import LOAD_FIELDS, MAX_PROMPT_TOKENS, LoadBody
from pellucid.server.page.frames import event_frames
from pellucid.server.serving import Handlers, Serving

MAX_SECONDS = 300.0

Emit: TypeAlias = Callable[[dict[str, Any]], None]


@dataclass
class LoadRoutes(Handlers):
    """The handler of the route."""

    _running: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def load(self, call: Call) -> GeneratedReply:
        """Sends the requests of a load to this engine, where they are requests like all others, and reports
        what happens to each. Closing the connection ends them."""
        body = await self.service.read_body(call, LOAD_FIELDS)
        body.check()
        traffic = _traffic(body)
        level = ServiceLevel(body.ttft_slo, body.itl_slo)
        longest = self.model.max_model_len
        for request in traffic.requests():
            num_tokens = request.num_prompt_tokens + body.prefix_tokens
            if num_tokens > MAX_PROMPT_TOKENS or num_tokens + request.num_output_tokens > longest:
                raise refused(
                    f"prompt_tokens={body.prompt_tokens!r}: with prefix_tokens and output_tokens a request has"
                    f" {num_tokens} + {request.num_output_tokens} tokens; at most"
                    f" {min(longest, MAX_PROMPT_TOKENS)} are allowed",
                    "prompt_tokens",
                )
        if self._running.locked():
            raise overloaded("another load runs", 5)
        run = secrets.token_hex(4)
        events = self._run(call, body, traffic, level, run)
        return GeneratedReply(event_frames({"run": run}, "load.failed", events, self._running))

    async def _run(
        self, call: Call, body: LoadBody, traffic: Traffic, level: ServiceLevel, run: str
    ) -> AsyncGenerator[dict[str, Any], None]:
        events: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        load = _Load(self.serving, call, body, traffic, events.put_nowait, run)
        running = asyncio.create_task(load.run())
        running.add_done_callback(lambda _: events.put_nowait(None))
        try:
            yield load.begin()
            while (event := await events.get()) is not None:
                yield event
            running.result()
            yield _summary(LoadResult(load.outcomes, level))
        finally:
            running.cancel()
            with suppress(BaseException):
                await running


class _Load:
    """One load while it runs.

    Args:
        emit: gets an event for each change of a request.
        salt: the load's requests share cached prompts only with each other, so that a repeated load does not find
            the prompts of the first one.
    """

    def __init__(
        self, serving: Serving, call: Call, body: LoadBody, traffic: Traffic, emit: Emit, salt: str
    ) -> None:
        self.outcomes: list[Outcome] = []
        self._serving = serving
        self._call = call
        self._body = body
        self._traffic = traffic
        self._emit = emit
        self._salt = salt
        self._planned = traffic.requests()

    def begin(self) -> dict[str, Any]:
        return {
            "ev": "load.begin",
            "discipline": self._body.discipline,
            "requests": [asdict(request) for request in self._planned],
        }

    async def run(self) -> None:
        """Sends all requests, or as many as there is time for."""
        writer = await self._writer()
        prompts = [writer.write(request) for request in self._planned]
        self._start = time.monotonic()
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._send_all(prompts), MAX_SECONDS)

    async def _writer(self) -> PromptWriter:
        """Makes the writer of prompts. It fits the number of words to the model's tokens per word."""
        examples = []
        for count in EXAMPLE_WORDS:
            text = words(f"{self._traffic.seed} example", count)
            encoded = await self._serving.service.engine.encode(text)
            examples.append((count, len(encoded.token_ids)))
        return PromptWriter.fitted(self._traffic, examples)

    async def _send_all(self, prompts: list[str]) -> None:
        size = self._body.static_batch
        if self._body.discipline == "static":
            for first in range(0, len(self._planned), size):
                group = self._planned[first : first + size]
                await sleep_until(group[-1].due, self._now)  # until it is full
                await run_all([self._send(each, prompts[each.index]) for each in group])
        elif self._traffic.rate is None:
            queue = iter(self._planned)

            async def keep_asking() -> None:
                for request in queue:
                    await self._send(request, prompts[request.index])

            await run_all([keep_asking() for _ in range(self._traffic.concurrency)])
        else:

            async def send_when_due(request: PlannedRequest) -> None:
                await sleep_until(request.due, self._now)
                await self._send(request, prompts[request.index])

            await run_all([send_when_due(request) for request in self._planned])

    def _now(self) -> float:
        return time.monotonic() - self._start

    async def _send(self, request: PlannedRequest, prompt: str) -> None:
        """One request from its arrival to its end. Times count from its arrival: a static batch's requests
        have waited for the others."""
        # In a closed loop nothing is due before it is sent.
        due = request.due if self._traffic.rate is not None else self._now()
        times: list[float] = []
        counts: tuple[int | None, int | None] = (None, None)
        num_tokens, failure, message = 0, "aborted", "the load was ended"
        async with AsyncExitStack() as resources:
            call = replace(self._call, request_id=secrets.token_hex(12), resources=resources)
            name = str(CompletionId(call.request_id, 0, 0))

            def report(state: str, **facts: Any) -> None:
                self._emit(
                    {
                        "ev": "load.req",
                        "index": request.index,
                        "req": name,
                        "state": state,
                        "at_us": round(self._now() * 1e6),
                        **facts,
                    }
                )

            try:
                params = SamplingParams(
                    temperature=0, max_tokens=request.num_output_tokens, ignore_eos=True
                )
                report("sent", due_us=round(due * 1e6))
                generation = await self._serving.service.start(
                    GenerationRequest([prompt], params, cache_salt=self._salt), call
                )
                (stream,) = generation.streams
                async for delta in stream:
                    if delta.token_ids:
                        if not times:
                            report("first", cached_tok=stream.output.num_cached_tokens)
                        times.append(self._now())
                        num_tokens += len(delta.token_ids)
                output = stream.output
                counts = (len(output.prompt_token_ids), output.num_cached_tokens)
                ended_well = output.outputs[0].finish_reason in ("stop", "length")
                failure = "" if ended_well else str(output.outputs[0].finish_reason)
                message = ""
            except Exception as error:
                refusal = error_of(error)
                failure, message = f"HTTP {refusal.status}", refusal.message
            finally:
                self.outcomes.append(
                    Outcome(
                        due,
                        due,
                        tuple(times),
                        self._now(),
                        num_tokens,
                        *counts,
                        failure or None,
                        message,
                    )
                )
                report("failed" if failure else "done", n_tok=num_tokens, msg=message)


def _traffic(body: LoadBody) -> Traffic:
    """Raises ValueError, naming the field."""
    return Traffic(
        body.num_requests,
        Lengths.parse("prompt_tokens", body.prompt_tokens),
        Lengths.parse("output_tokens", body.output_tokens),
        body.rate,
        body.concurrency,
        body.prefix_tokens,
        body.num_prefixes,
        body.seed,
    )


def _summary(result: LoadResult) -> dict[str, Any]:
    """The figures of bench-serve, in seconds."""

    def facts(spread: Spread | None) -> dict[str, float] | None:
        if spread is None:
            return None
        percentiles = zip(PERCENTILES, spread.percentiles, strict=True)
        named = {f"p{percent}": value for percent, value in percentiles}
        return {"mean": spread.mean, **named, "max": spread.largest}

    return {
        "ev": "load.end",
        "seconds": result.seconds,
        "completed": len(result.completed),
        "failures": dict(result.failures),
        "good": result.num_good,
        "goodput_per_second": result.per_second(result.num_good),
        "prompt_tok": result.num_prompt_tokens,
        "cached_tok": result.num_cached_tokens,
        "output_tok": result.num_output_tokens,
        "output_tok_s": result.per_second(result.num_output_tokens),
        **{f"{name}_seconds": facts(spread) for name, spread in result.spreads().items()},
    }
