"""`pellucid chat`: a conversation whose history stays in the KV cache."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated

import typer

from pellucid.cli.chat_session import ChatSession
from pellucid.cli.generation import load
from pellucid.cli.options import (
    MAX_TOKENS,
    MODEL_ARGUMENT,
    ModelOptions,
    PrefixCacheOptions,
    SamplingOptions,
)
from pellucid.cli.status import EXIT_INTERRUPTED
from pellucid.cli.terminal import note

PROMPT = "> "


def chat(
    *,
    model: Annotated[str | None, MODEL_ARGUMENT] = None,
    system: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="What the model is told before the first turn."),
    ] = None,
    max_tokens: Annotated[int | None, MAX_TOKENS] = None,
    sampling_options: SamplingOptions,
    model_options: ModelOptions,
    prefix_cache_options: PrefixCacheOptions,
) -> None:
    """Talk with a model.

    Every answer goes on from the KV cache of the conversation so far. Lines that begin with / are
    commands; /help lists them. An answer ends when the model ends it, or the context is full.
    Without a terminal, each line of stdin is a turn.
    """
    llm, params = load(
        model,
        # One answer at a time: room for one context.
        {**model_options.knobs(), **prefix_cache_options.knobs(), "max_num_seqs": 1},
        {**sampling_options.given(), "max_tokens": max_tokens},
    )
    session = ChatSession(llm, params, system)
    if not sys.stdin.isatty():
        for line in sys.stdin:
            session.handle(line.rstrip("\n"))
            if session.interrupted:
                raise typer.Exit(EXIT_INTERRUPTED)
            if session.ended:
                break
        return

    note("/help lists the commands; Ctrl-C stops an answer, Ctrl-D ends the chat")
    for line in _typed_lines():
        try:
            session.handle(line)
        except (ValueError, OSError) as error:
            note(f"error: {error}")
        if session.ended:
            break


def _typed_lines() -> Iterator[str]:
    """Lines from the terminal, with editing and history; ends at Ctrl-D."""
    with suppress(ImportError):  # not on every platform: there, lines cannot be edited
        import readline  # noqa: F401 (input() uses it once it is imported)
    while True:
        try:
            if sys.stdout.isatty():
                yield input(PROMPT)
            else:  # stdout is for answers: it may be a file
                print(PROMPT, end="", file=sys.stderr, flush=True)
                yield input()
        except KeyboardInterrupt:  # noqa: PERF203 (people type slower)
            note("")
        except EOFError:
            note("")
            return
