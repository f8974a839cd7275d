"""Chat templates: untrusted programs of a model, rendered in worker processes with limits."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pellucid.inputs.conversation import Message, Tool

_WORKER = Path(__file__).with_name("chat_template_worker.py")
# Python's own start, nothing of the template: long, for a busy machine.
_WORKER_START_SECONDS = 30.0
# A worker limits its own processor time where the system can (not on Windows). The clock then only guards
# against a worker that hangs, and leaves a good template its time on a busy machine.
_CLOCK_SECONDS_PER_PROCESSOR_SECOND = 20.0 if hasattr(signal, "setitimer") else 1.0
_WORKER_ENVIRONMENT = ("DYLD_LIBRARY_PATH", "LD_LIBRARY_PATH", "SYSTEMROOT", "TZ")  # no secrets


@dataclass(frozen=True)
class ChatTemplateLimits:
    """Limits for templates.

    Args:
        seconds: processor time for one conversation; on Windows time by the clock. With the model's load and a
            worker's start, a refusal takes less than 2 s of an idle machine.
        memory_bytes: address space of a worker, where the system has such a limit.
        text_chars: length of the text that it writes.
        num_workers: renderings at a time; further ones wait.
    """

    seconds: float = 1.5
    memory_bytes: int = 384 << 20
    source_chars: int = 256 << 10
    text_chars: int = 16 << 20
    num_workers: int = 4


DEFAULT_LIMITS = ChatTemplateLimits()


class TemplateTimeoutError(ValueError):
    """A chat template took longer than it may."""


@dataclass
class RenderingTime:
    """The time that is left for the renderings of one conversation.

    Args:
        seconds: processor time of workers; `ChatTemplate.render` subtracts what it used.
    """

    seconds: float


class ChatTemplate:
    """One chat template.

    Threads may share a template. Each rendering has a worker process to itself.

    Args:
        source: the template, in Jinja as transformers understands it.
        special_tokens: the template's variables `bos_token`, `eos_token` and so on.
        workers: render it; left out, it has workers of its own.

    Raises:
        ValueError: the template is longer than the workers' limit.
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str],
        model: str = "the model",
        workers: "TemplateWorkers | None" = None,
    ) -> None:
        self.source = source
        self.workers = TemplateWorkers() if workers is None else workers
        self._special_tokens = dict(special_tokens)
        self._model = model
        if len(source) > self.limits.source_chars:
            raise ValueError(
                self._sentence(
                    f"has {len(source)} characters; at most {self.limits.source_chars} are allowed"
                )
            )

    @property
    def limits(self) -> ChatTemplateLimits:
        return self.workers.limits

    def mentions(self, name: str) -> bool:
        """Whether the template contains a word: a variable that it does not mention has no effect."""
        return re.search(rf"\b{re.escape(name)}\b", self.source) is not None

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[Tool] | None = None,
        variables: Mapping[str, Any] | None = None,
        *,
        time_left: RenderingTime | None = None,
    ) -> str:
        """The conversation as the model's prompt.

        Args:
            messages: in the template's form, the oldest first.
            add_generation_prompt: end with the text that opens the assistant's answer.
            time_left: shared with earlier renderings of the conversation; left out, the limits' seconds.

        Raises:
            ValueError: the template refuses the conversation, fails, reaches outside the sandbox or exceeds a
                limit: for time, a `TemplateTimeoutError`.
        """
        if time_left is None:
            time_left = RenderingTime(self.limits.seconds)
        request = {
            "template": self.source,
            "text_chars": self.limits.text_chars,
            "seconds": time_left.seconds,
            "variables": {
                **self._special_tokens,
                "documents": None,  # templates test for it; transformers always passes it
                **(variables or {}),
                "messages": messages,
                "add_generation_prompt": add_generation_prompt,
                "tools": tools,
            },
        }
        try:
            if time_left.seconds <= 0:
                raise TimeoutError
            reply = self.workers.render(
                request, _CLOCK_SECONDS_PER_PROCESSOR_SECOND * time_left.seconds
            )
        except TimeoutError:
            raise TemplateTimeoutError(
                self._sentence(f"took longer than {self.limits.seconds:g} s")
            ) from None
        except EOFError:
            raise ValueError(self._sentence("ended the process that rendered it")) from None
        time_left.seconds -= reply["seconds"]
        if "error" in reply:
            raise ValueError(self._sentence(reply["error"]))
        text: str = reply["text"]
        return text

    def _sentence(self, predicate: str) -> str:
        return f"chat template of {self._model} {predicate}"


class TemplateWorkers:
    """The processes that render a tokenizer's template, and templates that requests bring.

    A process starts when all others are busy, and stays for later conversations. It is replaced if a template had
    to be killed.
    """

    def __init__(self, limits: ChatTemplateLimits = DEFAULT_LIMITS) -> None:
        self.limits = limits
        self._idle: list[_Worker] = []
        self._places = threading.BoundedSemaphore(limits.num_workers)

    def render(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """A worker's reply to a request; `chat_template_worker.py` defines both.

        Args:
            seconds: by the clock, from when a worker is free.

        Raises:
            TimeoutError: the template took longer, or more than the request's seconds of processor time.
            EOFError: the template ended the worker.
        """
        with self._places:
            try:
                worker = self._idle.pop()
            except IndexError:
                worker = self._start_worker()
            try:
                reply = worker.ask(request, seconds)
            except BaseException:
                # KeyboardInterrupt too: the next request must not read this one's reply.
                worker.stop()
                raise
            self._idle.append(worker)
            return reply

    def _start_worker(self) -> "_Worker":
        worker = _Worker()
        try:
            worker.ask(asdict(self.limits), _WORKER_START_SECONDS)
        except BaseException as error:
            worker.stop()
            if isinstance(error, EOFError | TimeoutError):
                raise RuntimeError(f"{sys.executable} did not start {_WORKER}") from None
            raise
        return worker


class _Worker:
    """A process, and the lines to and from it."""

    def __init__(self) -> None:
        self._timed_out = False
        self.process = subprocess.Popen(
            [sys.executable, "-I", str(_WORKER), *_package_folders("jinja2", "markupsafe")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in _WORKER_ENVIRONMENT if name in os.environ},
            start_new_session=True,  # Ctrl-C in a terminal is for us
        )
        self.stop = weakref.finalize(self, _end_process, self.process)

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Sends one line and waits for the reply, at most `seconds` by the clock.

        Raises:
            TimeoutError: no reply in time, and the worker was ended; or its own timer ended it.
            EOFError: the worker has ended by itself.
        """
        assert self.process.stdin is not None and self.process.stdout is not None
        timer = threading.Timer(seconds, self._time_out)
        timer.daemon = True
        timer.start()
        line = b""
        try:
            with suppress(BrokenPipeError):
                self.process.stdin.write(json.dumps(request).encode() + b"\n")
                self.process.stdin.flush()
                line = self.process.stdout.readline()
        finally:
            timer.cancel()
        if not line.endswith(b"\n"):
            raise TimeoutError if self._timed_out or self._ended_by_its_timer() else EOFError
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _ended_by_its_timer(self) -> bool:
        """Whether a worker whose output ended was ended by its timer of processor time."""
        with suppress(subprocess.TimeoutExpired):
            return hasattr(signal, "SIGPROF") and self.process.wait(10) == -signal.SIGPROF
        return False

    def _time_out(self) -> None:
        self._timed_out = True
        self.process.kill()


def _end_process(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    with suppress(BrokenPipeError), process:  # closes the pipes and waits
        pass


def _package_folders(*packages: str) -> list[str]:
    """Where our own interpreter finds these packages, without importing them."""
    folders = []
    for package in packages:
        spec = find_spec(package)
        assert spec is not None and spec.origin is not None
        folders.append(str(Path(spec.origin).parents[1]))
    return sorted(set(folders))
