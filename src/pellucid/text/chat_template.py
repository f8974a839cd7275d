"""Chat templates: untrusted programs of a model, rendered in worker processes with limits."""

import json
import os
import re
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pellucid.conversation import Message, Tool

_WORKER = Path(__file__).with_name("chat_template_worker.py")
_WORKER_START_SECONDS = (
    30.0  # Python's own start, nothing of the template: long, for a busy machine
)
_WORKER_ENVIRONMENT = ("DYLD_LIBRARY_PATH", "LD_LIBRARY_PATH", "SYSTEMROOT", "TZ")  # no secrets


@dataclass(frozen=True)
class ChatTemplateLimits:
    """What templates may use.

    Args:
        seconds: wall-clock time for one conversation. With the model's load and a worker's start, a refusal
            stays below 2 s.
        memory_bytes: address space of a worker, where the system has such a limit.
        source_chars: length of a template.
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


class ChatTemplate:
    """One chat template.

    Threads may share a template. Each rendering has a worker process to itself.

    Args:
        source: the template, in Jinja as transformers understands it.
        special_tokens: what the template sees by names such as `bos_token` and `eos_token`.
        model: the model's name for error messages.
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
        """Whether a word stands in the template: a variable that does not changes nothing."""
        return re.search(rf"\b{re.escape(name)}\b", self.source) is not None

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[Tool] | None = None,
        variables: Mapping[str, Any] | None = None,
        *,
        until: float | None = None,
    ) -> str:
        """The conversation as the model's prompt.

        Args:
            messages: as the template is to see them, the oldest first.
            add_generation_prompt: end with what opens the assistant's answer.
            tools: functions that the model may call.
            variables: what else the template is to see.
            until: when the rendering must have ended, by `time.monotonic`; at most the limits' seconds from now.

        Raises:
            ValueError: the template refuses the conversation, fails, reaches outside the sandbox or exceeds a
                limit: for time, a `TemplateTimeoutError`.
        """
        seconds = self.limits.seconds
        if until is not None:
            seconds = min(seconds, until - time.monotonic())
        request = {
            "template": self.source,
            "text_chars": self.limits.text_chars,
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
            if seconds <= 0:
                raise TimeoutError
            reply = self.workers.render(request, seconds)
        except TimeoutError:
            raise TemplateTimeoutError(
                self._sentence(f"took longer than {self.limits.seconds:g} s")
            ) from None
        except EOFError:
            raise ValueError(self._sentence("ended the process that rendered it")) from None
        if "error" in reply:
            raise ValueError(self._sentence(reply["error"]))
        return reply["text"]

    def _sentence(self, predicate: str) -> str:
        return f"chat template of {self._model} {predicate}"


class TemplateWorkers:
    """The processes that render a tokenizer's templates: its own and those that requests bring.

    A process starts when all others are busy, stays for later conversations, and is replaced after a template that
    had to be ended.

    Args:
        limits: what a rendering may use.
    """

    def __init__(self, limits: ChatTemplateLimits = DEFAULT_LIMITS) -> None:
        self.limits = limits
        self._idle: list[_Worker] = []
        self._places = threading.BoundedSemaphore(limits.num_workers)

    def render(self, request: Mapping[str, Any], seconds: float) -> dict[str, str]:
        """A worker's reply to a request; `chat_template_worker.py` defines both.

        Args:
            request: what to render.
            seconds: time for it, from when a worker is free.

        Raises:
            TimeoutError: it took longer.
            EOFError: it ended the worker.
        """
        with self._places:
            try:
                worker = self._idle.pop()
            except IndexError:
                worker = self._start_worker()
            try:
                reply = worker.ask(request, seconds)
            except (
                BaseException
            ):  # KeyboardInterrupt too: a late reply must not meet the next request
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

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, str]:
        """Sends one line and waits for the reply.

        Raises:
            TimeoutError: no reply in time; the worker was ended.
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
            raise TimeoutError if self._timed_out else EOFError
        reply: dict[str, str] = json.loads(line)
        return reply

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
