"""The verbs put together, and what every error becomes."""

import os
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Annotated

import typer
from typer.exceptions import TyperException
from typer.main import get_command

from pellucid import __version__
from pellucid.cli.options import takes_options
from pellucid.cli.status import EXIT_BROKEN_PIPE, EXIT_INTERRUPTED, EXIT_USAGE
from pellucid.cli.terminal import note

# Each is a function in a file of its name, with _ for -.
VERBS = ("run", "chat", "compare", "explain", "bench", "ablate", "eval-kv", "quantize", "serve")


def make_app(verbs: Iterable[str] = VERBS) -> typer.Typer:
    """The command line with these verbs. Only their files are imported."""
    app = typer.Typer(
        name="pellucid",
        add_completion=False,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
        rich_markup_mode="rich",
    )
    app.callback()(_pellucid)
    for verb in verbs:
        name = verb.replace("-", "_")
        app.command(verb)(takes_options(getattr(import_module(f"pellucid.cli.{name}"), name)))
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"pellucid {__version__}")
        raise typer.Exit


def _pellucid(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """An LLM inference engine that you can see through."""


def run_command_line(arguments: Sequence[str] | None = None) -> int:
    """Runs a verb and turns its errors into one line and an exit status.

    PELLUCID_TRACEBACK=1 lets errors through, for reports of bugs.
    """
    for stream in (sys.stdout, sys.stderr):
        # A locale without the characters of the text shows them as \u...: not a reason to fail.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        return _run(sys.argv[1:] if arguments is None else list(arguments))
    except KeyboardInterrupt:
        note("interrupted")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Nobody reads any more. The interpreter would fail again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except (TyperException, ValueError, OSError, MemoryError) as error:
        if os.environ.get("PELLUCID_TRACEBACK") == "1":
            raise
        if message := _one_line(error):  # empty: the help was shown instead
            note(f"error: {message}")
        return EXIT_USAGE


def _run(arguments: list[str]) -> int:
    asked = [verb for verb in VERBS if arguments[:1] == [verb]]
    command = get_command(make_app(asked or VERBS))
    try:
        with command.make_context("pellucid", arguments) as context:
            command.invoke(context)
    except typer.Exit as ended:
        return ended.exit_code
    return 0


def _one_line(error: Exception) -> str:
    if isinstance(error, TyperException):
        message = error.format_message()
        context = getattr(error, "ctx", None)
        if message and context is not None:
            message = f"{message.rstrip('.')} (see {context.command_path} --help)"
    elif isinstance(error, OSError) and error.strerror:
        message = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    else:
        message = str(error) or type(error).__name__
    return " ".join(message.split())
