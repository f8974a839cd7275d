"""The worker process that renders chat templates.

`chat_template.py` runs this file as a script; docs/decisions explains why. It imports nothing of
pellucid. Standard input and output carry one JSON object per line: first the limits, answered by
{"text": ""}, then for each conversation {"template": its source, "variables": what it sees, "text_chars":
longest text, "seconds": of processor time}, answered by {"text": ...} or {"error": ...} with the "seconds" used.
"""

import json
import signal
import sys
import time
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

sys.path += sys.argv[1:]  # where the parent found the two packages: `python -I` may not look there

from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

MAX_ERROR_CHARS = 1000  # a template writes its own messages
MAX_COMPILED = 8  # templates: the model's own, and those of requests


class RefusedError(TemplateError):
    """The template called raise_exception: it does not take this conversation."""


class TooLongError(Exception):
    """The text is longer than allowed."""


class Generation(Extension):
    """{% generation %} marks what the assistant wrote, for training; here it only groups."""

    tags = {"generation"}  # noqa: RUF012 - the base class's own declaration

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def raise_exception(message: object) -> NoReturn:
    raise RefusedError(str(message))


def strftime_now(form: str) -> str:
    return datetime.now().strftime(form)  # noqa: DTZ005 - the user's own date, as transformers has it


def tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """transformers' filter: jinja2's own escapes for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


class GuardedNamespace(Namespace):
    """Takes no names that lead to Python's own attributes, as in transformers."""

    def __init__(*arguments: Any, **attributes: Any) -> None:  # `namespace(self=...)` is allowed
        self, *others = arguments
        given = dict(*others, **attributes)
        for name in given:
            refuse_underscore(name)
        Namespace.__init__(self, given)

    def __setitem__(self, name: str, value: Any) -> None:
        refuse_underscore(name)
        Namespace.__setitem__(self, name, value)


def refuse_underscore(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"attribute {name!r} of a namespace is unsafe")


class Environment(ImmutableSandboxedEnvironment):
    def unsafe_undefined(self, obj: object, attribute: str) -> NoReturn:
        """jinja2 returns an undefined value, which prints as nothing."""
        raise SecurityError(f"attribute {attribute!r} of {type(obj).__name__!r} is unsafe")


def environment() -> Environment:
    """What templates on the hub are written for: the environment that transformers gives them."""
    env = Environment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation])
    env.filters["tojson"] = tojson
    env.globals.update(
        namespace=GuardedNamespace, raise_exception=raise_exception, strftime_now=strftime_now
    )
    return env


def render(template: Template, variables: dict[str, Any], max_chars: int) -> str:
    pieces, num_chars = [], 0
    for piece in template.generate(variables):
        num_chars += len(piece)
        if num_chars > max_chars:
            raise TooLongError(f"writes more than {max_chars} characters")
        pieces.append(piece)
    text = "".join(pieces)
    text.encode()  # raises on lone surrogates, which are no text
    return text


def describe(error: Exception) -> str:
    """What went wrong, as the end of a sentence that begins with the template."""
    if isinstance(error, RefusedError):
        return f"refuses the conversation: {error}"
    if isinstance(error, TemplateSyntaxError):
        return f"has a syntax error in line {error.lineno}: {error.message}"
    if isinstance(error, SecurityError):
        return f"reaches outside the sandbox: {error}"
    if isinstance(error, MemoryError):
        return "needs too much memory"
    if isinstance(error, TooLongError):
        return str(error)
    return f"fails: {type(error).__name__}: {error}"


def limit(name: str, value: int) -> None:
    """Lowers a soft limit where the system has it."""
    if resource is None or not hasattr(resource, name):
        return
    kind = getattr(resource, name)
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    try:
        resource.setrlimit(kind, (value, hard))
    except (ValueError, OSError):  # macOS has RLIMIT_AS and refuses to set it
        return


def limit_cpu(seconds: float) -> None:
    """SIGPROF ends this process after so much processor time, also within C code; 0 switches that off."""
    if hasattr(signal, "setitimer"):  # Windows: the parent's clock remains
        signal.setitimer(signal.ITIMER_PROF, seconds)


def reply(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def main() -> None:
    limits = json.loads(sys.stdin.readline())
    limit("RLIMIT_AS", limits["memory_bytes"])
    limit("RLIMIT_CORE", 0)
    limit("RLIMIT_FSIZE", 0)
    compiled = lru_cache(MAX_COMPILED)(environment().from_string)
    reply({"text": ""})  # from here on the parent's clock runs
    for line in sys.stdin:
        begin = time.process_time()
        try:
            request = json.loads(line)
            limit_cpu(request["seconds"])
            template = compiled(request["template"])
            answer = {"text": render(template, request["variables"], request["text_chars"])}
        except Exception as error:  # whatever a template can raise is its author's error
            answer = {"error": describe(error)[:MAX_ERROR_CHARS]}
        limit_cpu(0)
        reply(answer | {"seconds": time.process_time() - begin})


if __name__ == "__main__":
    main()
