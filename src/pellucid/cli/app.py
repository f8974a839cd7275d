"""The command `pellucid`: its verbs, and how errors become messages and exit statuses."""

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import typer
from typer.exceptions import TyperException
from typer.main import get_command

from pellucid import __version__
from pellucid.cli.output.terminal import (
    EXIT_BROKEN_PIPE,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    give_up_stdout,
    note,
    open_missing_streams,
)
from pellucid.cli.parsing.help_page import FrontPage, Verb, option_names
from pellucid.cli.parsing.options import takes_options
from pellucid.cli.parsing.other_engines import VERBS as VERBS_OF_OTHERS
from pellucid.cli.parsing.other_engines import instead_of_option, instead_of_verb
from pellucid.cli.parsing.panels import OTHERS
from pellucid.cli.parsing.settings import config_path, read_config, settings_kind, settings_of

# By what they are for. Each is a function in a file of its name, with _ for -.
VERBS = {
    "Generate text": ("run", "chat", "serve", "stage"),
    "Look inside": ("compare", "explain", "top", "page", "trace"),
    "Measure and plan": ("bench", "bench-serve", "ablate", "eval-kv", "plan", "check"),
    "Models on disk": ("pull", "list", "rm", "quantize"),
}
_ALIASES = {"ls": "list"}
_NEEDS_NO_SETTINGS = {"--help", "-h", "--version", "-V", "-v"}
_NUMBERS = {
    "a valid integer": "a whole number",
    "a valid number": "a number",
}  # by pydantic's words
_COMPLETION = "_PELLUCID_COMPLETE"  # what a shell asks for with the Tab key


def make_command(verbs: Sequence[str] | None = None) -> Any:
    """The command line with these verbs, or with all. Only their files are imported."""
    app = typer.Typer(
        name="pellucid",
        cls=FrontPage,
        add_completion=True,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_pellucid)
    functions = {verb: _function(verb) for verb in verbs or all_verbs()}
    for verb, function in functions.items():
        app.command(verb, cls=Verb)(function)
    command: Any = get_command(app)
    command.groups = VERBS
    for verb, function in functions.items():
        settings = settings_of(function)
        for option in command.commands[verb].params:
            if option.name in settings and (variable := settings[option.name].variable):
                option.envvar = variable
    return command


def all_verbs() -> list[str]:
    return [verb for names in VERBS.values() for verb in names]


def _function(verb: str) -> Callable[..., None]:
    name = verb.replace("-", "_")
    return takes_options(getattr(import_module(f"pellucid.cli.{name}"), name))


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"pellucid {__version__}")
        raise typer.Exit


def _pellucid(
    version: bool = OTHERS.flag(
        "Print the version.",
        "--version",
        "-V",
        "-v",
        default=False,
        callback=_print_version,
        is_eager=True,
    ),
) -> None:
    """An LLM inference engine that you can see through."""


def run_command_line(arguments: Sequence[str] | None = None) -> int:
    """Runs a verb and turns its errors into one line and an exit status.

    PELLUCID_TRACEBACK=1 lets errors through, for reports of bugs.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        open_missing_streams()
        status = _run(words)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        note("interrupted")
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of stdout has gone
        give_up_stdout()
        return EXIT_BROKEN_PIPE
    except (TyperException, ValueError, OSError, MemoryError) as error:
        if os.environ.get("PELLUCID_TRACEBACK") == "1":
            raise
        note(f"error: {_one_line(error, words)}")
        if isinstance(error, OSError):
            give_up_stdout()
        return EXIT_USAGE


def _run(words: list[str]) -> int:
    if _COMPLETION in os.environ:
        make_command()(words, prog_name="pellucid")  # ends the process
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    if words:
        words[0] = _ALIASES.get(words[0], words[0])
    verb = words[0] if words else ""
    if (phrase := " ".join(words[:2])) in VERBS_OF_OTHERS:
        raise ValueError(instead_of_verb(phrase, all_verbs()))
    if verb and not verb.startswith("-") and verb not in all_verbs():
        raise ValueError(instead_of_verb(verb, all_verbs()))
    # Before parsing: -hf would be -h and -f.
    if instead := instead_of_option(words[1:], (), short_only=True):
        raise ValueError(instead)
    command = make_command([verb] if verb in all_verbs() else None)
    try:
        with command.make_context(
            "pellucid", list(words) or ["--help"], default_map=_defaults(words)
        ) as context:
            command.invoke(context)
    except typer.Exit as ended:
        return ended.exit_code if words else EXIT_USAGE
    return 0


def _defaults(words: Sequence[str]) -> dict[str, Any]:
    """Of options, by verb, from the configuration file. Help can be had even if that is wrong."""
    if not _NEEDS_NO_SETTINGS.isdisjoint(words) or (path := config_path()) is None:
        return {}
    return read_config(path, {verb: settings_of(_function(verb)) for verb in all_verbs()})


def _one_line(error: Exception, words: Sequence[str]) -> str:
    if isinstance(error, TyperException):
        message = _usage_error(error, words)
    elif isinstance(error, OSError) and error.strerror:
        message = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    else:
        message = str(error) or type(error).__name__
    return " ".join(message.split())


def _usage_error(error: Any, words: Sequence[str]) -> str:
    """What is wrong with the words of a command line, or with a variable's value."""
    context = getattr(error, "ctx", None)
    if context is None:
        message = str(error.format_message())
        is_switch = "does not take a value" in message
        return message.rstrip(".") + ": a switch's opposite begins with --no-" * is_switch
    options = {name: option for option in context.command.params for name in option.opts}
    opposites = [name for option in context.command.params for name in option.secondary_opts]
    if instead := instead_of_option(words[1:], [*options, *opposites]):
        return instead
    option: Any = getattr(error, "param", None)
    if (
        isinstance(error, typer.BadParameter)
        and error.message  # empty if the value is missing
        and option in options.values()
        and option.param_type_name == "option"
    ):
        kind = settings_kind(option, _function(context.command.name))
        kind = kind or next(
            (own for theirs, own in _NUMBERS.items() if theirs in error.message), None
        )
        wrong = error.message if kind is None else f"must be {kind}"
        return f"{_as_given(option, words)}: {wrong}"
    message = error.format_message().rstrip(".").replace("Value error, ", "")
    return f"{message} (see {context.command_path} --help)"


def _as_given(option: Any, words: Sequence[str]) -> str:
    """An option and its value as they were typed, or as they stand in the environment."""
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in option.opts:
            return f"{name} {value if equals else ''.join(words[index + 1 : index + 2])}".rstrip()
    if option.envvar is not None and option.envvar in os.environ:
        return f"{option.envvar}={os.environ[option.envvar]}"
    return option_names(option)
