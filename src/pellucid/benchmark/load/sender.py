"""Sends the requests of a load to an OpenAI-compatible server, and records the times of its replies."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from pellucid.benchmark.load.result import Outcome
from pellucid.benchmark.load.tasks import run_all, sleep_until
from pellucid.benchmark.load.traffic import (
    EXAMPLE_WORDS,
    PlannedRequest,
    PromptWriter,
    Traffic,
    words,
)
from pellucid.server_client import ServerClient, ServerError

PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


async def first_model(client: ServerClient) -> str:
    """The name of the first model that the server lists.

    Raises:
        ServerError: the server cannot be asked, or lists none.
    """
    reply = await client.get("/v1/models")
    listed = reply.get("data") if isinstance(reply, dict) else None
    for each in listed or ():
        if isinstance(each, dict) and isinstance(each.get("id"), str):
            return str(each["id"])
    raise ServerError("no model", f"{client.url}/v1/models lists no model; name one by --model")


@dataclass
class Reply:
    """A streamed answer so far."""

    chunk_times: list[float] = field(default_factory=list)
    has_ended: bool = False
    usage: dict[str, Any] = field(default_factory=dict)

    def take(self, data: str, now: float) -> None:
        """Records one event of the stream.

        Raises:
            ServerError: the event says that the request failed.
        """
        if data == "[DONE]":
            self.has_ended = True
            return
        try:
            chunk = json.loads(data)
        except ValueError:
            raise ServerError("not JSON", f"an event of the stream is not JSON: {data!r}") from None
        if error := chunk.get("error"):
            message = error.get("message", error) if isinstance(error, dict) else error
            raise ServerError("failed while streaming", str(message))
        for choice in chunk.get("choices") or ():
            if _has_text(choice):
                self.chunk_times.append(now)
            self.has_ended |= choice.get("finish_reason") is not None
        self.usage = chunk.get("usage") or self.usage

    @property
    def num_output_tokens(self) -> int:
        return self.usage.get("completion_tokens") or len(self.chunk_times)

    @property
    def num_prompt_tokens(self) -> int | None:
        return self.usage.get("prompt_tokens")

    @property
    def num_cached_tokens(self) -> int | None:
        return (self.usage.get("prompt_tokens_details") or {}).get("cached_tokens")


def _has_text(choice: dict[str, Any]) -> bool:
    """Whether a choice of a chunk carries tokens of any kind."""
    delta = choice.get("delta") or {}
    names = ("content", "reasoning_content", "reasoning", "tool_calls")
    return bool(choice.get("text")) or any(delta.get(name) for name in names)


@dataclass(frozen=True)
class Target:
    """A model of a server, and the form of requests to it.

    Attributes:
        api: a key of PATHS.
        ignore_eos: whether answers have all the tokens that were planned, in the words of vLLM, llama.cpp
            and ours; a server that does not know the field may refuse it.
        timeout: seconds for a whole reply.
    """

    client: ServerClient
    model: str
    api: str = "chat"
    ignore_eos: bool = True
    timeout: float = 600.0

    async def ask(self, prompt: str, num_output_tokens: int) -> AsyncGenerator[str, None]:
        """The data of each event of the streamed reply."""
        body = self._body(prompt, num_output_tokens)
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        async with aclosing(self.client.stream("POST", PATHS[self.api], body)) as events:
            async for _, data in events:
                yield data

    def _body(self, prompt: str, num_output_tokens: int) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": num_output_tokens,
            "temperature": 0,
        }
        if self.api == "chat":
            body["messages"] = [{"role": "user", "content": prompt}]
        else:
            body["prompt"] = prompt
        if self.ignore_eos:
            body["ignore_eos"] = True
        return body

    async def prompt_writer(self, traffic: Traffic) -> PromptWriter:
        """Asks two short questions: whether all is well, and how many tokens our words are. The replies are not
        streamed, because some servers count tokens in whole replies alone.

        Raises:
            ServerError: the server does not answer them.
        """
        examples = []
        for num_words in EXAMPLE_WORDS:
            body = self._body(words(f"{traffic.seed} example", num_words), 1)
            reply = await self.client.post(PATHS[self.api], body)
            usage = (reply.get("usage") if isinstance(reply, dict) else None) or {}
            examples.append((num_words, usage.get("prompt_tokens")))
        counted = [(num_words, count) for num_words, count in examples if count is not None]
        return PromptWriter.fitted(traffic, counted) if len(counted) == 2 else PromptWriter(traffic)


async def send_load(
    target: Target, traffic: Traffic, writer: PromptWriter, note: Callable[[Outcome], None]
) -> None:
    """Sends all requests as they are due and ends when the last reply has ended.

    If cancelled, it records the unfinished requests as aborted.

    Args:
        note: called with the outcome of each request when the request has ended.
    """
    # Prompts are written before the clock starts.
    planned = [(request, writer.write(request)) for request in traffic.requests()]
    start = time.perf_counter()

    def now() -> float:
        return time.perf_counter() - start

    if traffic.rate is None:
        queue = iter(planned)

        async def keep_asking() -> None:
            for request, prompt in queue:
                await _send(target, request, prompt, now(), now, note)

        await run_all([keep_asking() for _ in range(traffic.concurrency)])
    else:

        async def send_when_due(request: PlannedRequest, prompt: str) -> None:
            await sleep_until(request.due, now)
            await _send(target, request, prompt, request.due, now, note)

        await run_all([send_when_due(request, prompt) for request, prompt in planned])


async def _send(
    target: Target,
    request: PlannedRequest,
    prompt: str,
    due: float,
    now: Callable[[], float],
    note: Callable[[Outcome], None],
) -> None:
    reply, sent = Reply(), now()
    failure, message = "aborted", "this program was ended"

    async def read() -> None:
        async with aclosing(target.ask(prompt, request.num_output_tokens)) as events:
            async for data in events:
                reply.take(data, now())

    try:
        await asyncio.wait_for(read(), target.timeout)
        failure = "" if reply.has_ended else "ended early"
        message = "" if reply.has_ended else "the stream ended without a finish_reason"
    except asyncio.TimeoutError:  # another class than TimeoutError on Python 3.10
        failure, message = "timed out", f"no whole answer within {target.timeout:g} s"
    except ServerError as error:
        failure, message = error.reason, str(error)
    finally:
        note(
            Outcome(
                due=due,
                sent=sent,
                chunk_times=tuple(reply.chunk_times),
                ended=now(),
                num_output_tokens=reply.num_output_tokens,
                num_prompt_tokens=reply.num_prompt_tokens,
                num_cached_tokens=reply.num_cached_tokens,
                failure=failure or None,
                message=message,
            )
        )
