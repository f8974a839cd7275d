"""`pellucid chat`: a conversation whose history stays in the KV cache."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from pellucid.cli.chat_session import ChatSession
from pellucid.cli.generation import load
from pellucid.cli.output.terminal import EXIT_BY_FINISH_REASON, EXIT_INTERRUPTED, note
from pellucid.cli.parsing import options
from pellucid.cli.parsing.model_and_prompt import ModelAndPrompt, System, Think
from pellucid.cli.parsing.panels import argument
from pellucid.progress import understands_escapes

PROMPT = "> "
HISTORY_FILE = "pellucid/chat_history"


@dataclass(frozen=True)
class ModelAndQuestion(ModelAndPrompt):
    """`[MODEL] [PROMPT]`, where no prompt means a conversation."""

    second: str | None = argument(
        "PROMPT", "A question; - reads it from stdin. Left out: a conversation."
    )


def chat(
    words: ModelAndQuestion,
    *,
    system: System = None,
    think: Think = None,
    max_tokens: Annotated[int | None, options.MAX_TOKENS] = None,
    answer_options: options.AnswerOptions,
    model_options: options.ModelOptions,
    prefix_cache_options: options.PrefixCacheOptions,
    stages_options: options.StagesOptions,
    speculation_options: options.SpeculationOptions,
    verbose: options.Verbose = False,
    quiet: options.Quiet = False,
) -> None:
    """Talk with a model.

    With a question, answers it and ends. Without one, reads questions until Ctrl-D or exit; each answer
    continues from the conversation in the KV cache. Lines that begin with / are commands; /help lists them.
    A message of several lines stands between \"\"\" and \"\"\". Without a terminal, each line of stdin is a question.
    """
    model, question = words.given()
    llm, params = load(
        model,
        # One answer at a time: room for one context.
        {
            **words.settings(
                model_options, prefix_cache_options, speculation_options, stages_options
            ),
            "max_num_seqs": 1,
        },
        {**answer_options.given(), "max_tokens": options.token_limit(max_tokens)},
        quiet=quiet,
        shows_memory=verbose,
    )
    session = ChatSession(llm, params, system, think=think, verbose=verbose, quiet=quiet)
    if question is not None:
        raise typer.Exit(EXIT_BY_FINISH_REASON[session.answer(question)])
    if not sys.stdin.isatty():
        for line in sys.stdin:
            session.handle(line.rstrip("\n"))
            if session.interrupted:
                raise typer.Exit(EXIT_INTERRUPTED)
            if session.ended:
                break
        return

    note(
        f"{llm.engine.model.name}; /help lists commands, Ctrl-C stops an answer, Ctrl-D or exit leaves"
    )
    for line in _typed_lines(list(session.commands)):
        try:
            session.handle(line)
        except (ValueError, OSError) as error:
            note(f"error: {error}")
        if session.ended:
            break


def _typed_lines(commands: list[str]) -> Iterator[str]:
    """What is typed or pasted, a message at a time; ends at Ctrl-D."""
    read = _line_editor(commands) if understands_escapes(sys.stdout) else _plain_input()
    while True:
        try:
            yield read()
        except KeyboardInterrupt:  # noqa: PERF203 (people type slower)
            note("")
        except EOFError:
            note("")
            return


def _plain_input() -> Callable[[], str]:
    """One line at a time, without a history."""
    with suppress(ImportError):  # not on every platform: there, lines cannot be edited
        import readline  # noqa: F401 (input() uses it once it is imported)

    def read() -> str:
        if sys.stdout.isatty():
            return input(PROMPT)
        # stdout is for answers: it may be a file
        print(PROMPT, end="", file=sys.stderr, flush=True)
        return input()

    return read


def _line_editor(commands: list[str]) -> Callable[[], str]:
    """Lines with editing, completion of commands and a history that outlives the chat. Pasted lines are one
    message; Alt-Enter begins a new line."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.history import FileHistory, History, InMemoryHistory
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    keys = KeyBindings()

    @keys.add("enter")
    def _send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    history: History = InMemoryHistory()
    path = history_path()
    with suppress(OSError):  # a home that cannot be written: the history ends with the chat
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        history = FileHistory(path)
    session: PromptSession[str] = PromptSession(
        PROMPT,
        multiline=True,
        key_bindings=keys,
        history=history,
        completer=WordCompleter(commands, sentence=True),
        complete_while_typing=False,
        auto_suggest=AutoSuggestFromHistory(),
        prompt_continuation="  ",
    )
    return session.prompt


def history_path() -> Path:
    """Where the lines of earlier chats are: $XDG_STATE_HOME or ~/.local/state."""
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path("~/.local/state").expanduser()) / HISTORY_FILE
