"""Which model, and what it reads: the positional arguments of `run` and `compare`."""

import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from pellucid.cli.options import MODEL_ARGUMENT


@dataclass(frozen=True)
class PromptArguments:
    """`[MODEL] PROMPT`, where a single argument is the prompt, and `-` or a pipe stands for stdin."""

    first: Annotated[str | None, MODEL_ARGUMENT] = None
    second: Annotated[
        str | None,
        typer.Argument(
            metavar="PROMPT",
            help="Text to go on from; a single argument is the prompt. Left out or -: stdin,"
            " without its last newline.",
            show_default=False,
        ),
    ] = None

    @property
    def model(self) -> str | None:
        return self.first if self.second is not None else None

    def read_prompt(self) -> str:
        """The prompt; waits for stdin if it is there.

        Raises:
            ValueError: there is none, or it is not text.
        """
        prompt = self.second if self.second is not None else self.first
        if prompt is None and sys.stdin.isatty():
            raise ValueError("PROMPT: is missing; give one in quotes, or - to type it")
        if prompt is None or prompt == "-":
            return _read_stdin()
        if self.second is None and _is_model(prompt):
            raise ValueError(f"PROMPT: is missing; {prompt} is a model, a prompt must follow it")
        try:
            prompt.encode()
        except UnicodeEncodeError:  # the shell's bytes, escaped by Python
            raise ValueError(f"PROMPT: {prompt!r} is not valid UTF-8") from None
        return prompt


def _is_model(argument: str) -> bool:
    with suppress(OSError, ValueError):  # a prompt can be too long or too odd for a path
        return (Path(argument) / "config.json").is_file()
    return False


def _read_stdin() -> str:
    content = sys.stdin.buffer.read()
    try:
        return content.decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"PROMPT: stdin is not UTF-8 at byte {error.start}") from None
