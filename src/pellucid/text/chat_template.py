"""Chat templates: programs that come with a model, run in a worker process with limits."""

import json
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

# What callers may set for a template, besides the conversation itself
TEMPLATE_VARIABLES = {"date_string": str, "enable_thinking": bool, "reasoning_effort": str}

_WORKER = Path(__file__).with_name("chat_template_worker.py")
_WORKER_START_SECONDS = (
    30.0  # Python's own start, nothing of the template: long, for a busy machine
)
_WORKER_ENVIRONMENT = ("DYLD_LIBRARY_PATH", "LD_LIBRARY_PATH", "SYSTEMROOT", "TZ")  # no secrets


@dataclass(frozen=True)
class ChatTemplateLimits:
    """What one template may use.

    Args:
        seconds: wall-clock time for one conversation.
        memory_bytes: address space of the worker, where the system has such a limit.
        source_chars: length of the template.
        text_chars: length of the text that it writes.
    """

    seconds: float = 2.0
    memory_bytes: int = 512 << 20
    source_chars: int = 256 << 10
    text_chars: int = 16 << 20


DEFAULT_LIMITS = ChatTemplateLimits()


class ChatTemplate:
    """One model's chat template, and the worker that renders it. Owned by the tokenizer.

    The worker starts with the first conversation and is kept for the next ones; it is replaced after a
    template that had to be ended. Threads may share a template.

    Args:
        source: the template, in Jinja as transformers understands it.
        special_tokens: what the template sees by names such as `bos_token` and `eos_token`.
        model: the model's name for error messages.
        limits: what a rendering may use.

    Raises:
        ValueError: the template is longer than `limits.source_chars`.
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str],
        model: str = "the model",
        limits: ChatTemplateLimits = DEFAULT_LIMITS,
    ) -> None:
        self.source = source
        self._special_tokens = dict(special_tokens)
        self._model = model
        self._limits = limits
        self._lock = threading.Lock()
        self._worker: _Worker | None = None
        self._stop_worker: Callable[[], object] = lambda: None
        if len(source) > limits.source_chars:
            raise self._error(
                f"has {len(source)} characters; at most {limits.source_chars} are allowed"
            )

    def render(
        self,
        messages: Sequence[Mapping[str, str]],
        add_generation_prompt: bool = True,
        **variables: str | bool,
    ) -> str:
        """The conversation as the model's prompt.

        Args:
            messages: [{"role": ..., "content": ...}, ...], oldest first.
            add_generation_prompt: end with what opens the assistant's answer.
            variables: those of `TEMPLATE_VARIABLES` that the template is to see.

        Raises:
            ValueError: a message or variable has another form, or the template refuses the
                conversation, fails, reaches outside the sandbox or exceeds a limit.
        """
        check_messages(messages)
        check_variables(variables)
        request = {
            "messages": [dict(message) for message in messages],
            "add_generation_prompt": add_generation_prompt,
            "tools": None,  # templates test these two; transformers always passes them
            "documents": None,
            **self._special_tokens,
            **variables,
        }
        try:
            with self._lock:
                reply = self._ask_worker(request)
        except TimeoutError:
            raise self._error(f"took longer than {self._limits.seconds:g} s") from None
        except EOFError:
            raise self._error("ended the process that rendered it") from None
        if "error" in reply:
            raise self._error(reply["error"])
        return reply["text"]

    def _ask_worker(self, request: Mapping[str, Any]) -> dict[str, str]:
        if self._worker is None:
            self._worker = self._start_worker()
        try:
            return self._worker.ask(request, self._limits.seconds)
        except BaseException:  # KeyboardInterrupt too: a late answer must not meet the next request
            self._worker = None
            self._stop_worker()
            raise

    def _start_worker(self) -> "_Worker":
        worker = _Worker()
        self._stop_worker = weakref.finalize(self, worker.stop)
        try:
            worker.ask({"template": self.source, **asdict(self._limits)}, _WORKER_START_SECONDS)
        except (EOFError, TimeoutError):
            raise RuntimeError(f"{sys.executable} did not start {_WORKER}") from None
        return worker

    def _error(self, what: str) -> ValueError:
        return ValueError(f"chat template of {self._model} {what}")


class _Worker:
    """The process, and the lines to and from it."""

    def __init__(self) -> None:
        self._timed_out = False
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(_WORKER), *_package_folders("jinja2", "markupsafe")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in _WORKER_ENVIRONMENT if name in os.environ},
            start_new_session=True,  # Ctrl-C in a terminal is for us
        )

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, str]:
        """Sends one line and waits for the answer.

        Raises:
            TimeoutError: no answer in time; the worker was ended.
            EOFError: the worker has ended by itself.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        timer = threading.Timer(seconds, self._time_out)
        timer.daemon = True
        timer.start()
        line = b""
        try:
            with suppress(BrokenPipeError):
                self._process.stdin.write(json.dumps(request).encode() + b"\n")
                self._process.stdin.flush()
                line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if not line.endswith(b"\n"):
            raise TimeoutError if self._timed_out else EOFError
        reply: dict[str, str] = json.loads(line)
        return reply

    def stop(self) -> None:
        self._process.kill()
        with suppress(BrokenPipeError), self._process:  # closes the pipes and waits
            pass

    def _time_out(self) -> None:
        self._timed_out = True
        self._process.kill()


def check_messages(messages: Sequence[Mapping[str, str]]) -> None:
    """Raises ValueError unless `messages` is a non-empty list of {"role": str, "content": str}."""
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence) or not messages:
        raise ValueError(f"messages must be a non-empty list of messages, got {messages!r}")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or set(message) != {"role", "content"}:
            raise ValueError(
                f"messages[{index}] must have exactly the keys 'role' and 'content', got {message!r}"
            )
        for key, value in message.items():
            if not isinstance(value, str):
                raise ValueError(f"messages[{index}][{key!r}] must be a string, got {value!r}")
            check_text(value, f"messages[{index}][{key!r}]")
        if not message["role"]:
            raise ValueError(f"messages[{index}]['role'] must not be empty")


def check_text(text: str, name: str) -> None:
    """Raises ValueError if `text` has surrogates, which Python's strings may hold and UTF-8 not."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} is not Unicode text: {error}") from None


def check_variables(variables: Mapping[str, object]) -> None:
    """Raises ValueError for a variable that is not one of `TEMPLATE_VARIABLES`."""
    for name, value in variables.items():
        if name not in TEMPLATE_VARIABLES:
            raise ValueError(
                f"{name!r} is no variable of chat templates; allowed: {sorted(TEMPLATE_VARIABLES)}"
            )
        if type(value) is not TEMPLATE_VARIABLES[name]:
            raise ValueError(f"{name} must be a {TEMPLATE_VARIABLES[name].__name__}, got {value!r}")


def _package_folders(*packages: str) -> list[str]:
    """Where our own interpreter finds these packages, without importing them."""
    folders = []
    for package in packages:
        spec = find_spec(package)
        assert spec is not None and spec.origin is not None
        folders.append(str(Path(spec.origin).parents[1]))
    return sorted(set(folders))
