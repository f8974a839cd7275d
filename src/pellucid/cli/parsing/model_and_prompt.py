"""Finds the model and the prompt among the words after `run`, `chat`, `compare` and `explain`."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from pellucid.cli.conversation import Conversation
from pellucid.cli.parsing.models import (
    MAX_MODEL_LEN,
    complete_model,
    exists,
    looks_like_model,
    resolve_model,
)
from pellucid.cli.parsing.options import MODEL_HELP, EngineOptions
from pellucid.cli.parsing.panels import MODEL, PROMPT, Options, argument
from pellucid.cli.parsing.settings import origin
from pellucid.facts.model_names import find_short_name
from pellucid.inputs.prompts import ChatPrompt

if TYPE_CHECKING:
    from pellucid.inputs.prompts import Prompt
    from pellucid.llm import LLM

_Model = Annotated[str | None, MODEL.option("MODEL", "The same as MODEL.", "--model", "-m")]
System = Annotated[str | None, PROMPT.option("TEXT", "System message, before the conversation.")]
Think = Annotated[
    bool | None,
    PROMPT.flag(
        "Whether a model that can reason does so before it answers.",
        "--think/--no-think",
        show_default="the chat template's own choice",
    ),
]
_WORDS_OF_A_TEXT = 3  # at least, for the bundled model to go on with it


@dataclass(frozen=True)
class Words(Options):
    """The words after a verb, the first of which may be the model."""

    context: typer.Context
    first: str | None = argument("MODEL", MODEL_HELP, autocompletion=complete_model)

    def settings(self, *options: EngineOptions) -> dict[str, Any]:
        """The settings of the engine, with the context that the model was chosen for."""
        settings = {name: value for each in options for name, value in each.settings().items()}
        longest = self.context.meta.get(MAX_MODEL_LEN)
        return settings if longest is None else {**settings, "max_model_len": longest}


@dataclass(frozen=True)
class ModelName(Words):
    """`MODEL` or `-m MODEL`."""

    model: _Model = None

    def short_name(self) -> tuple[str, ...]:
        """The name as it was given, if it is a short one that stands for another."""
        word = self.first or self.model
        is_short = word is not None and not exists(word) and find_short_name(word) is not None
        return (word,) if word is not None and is_short else ()

    def name(self, *, is_needed: bool = True, must_fit: bool = True) -> str | None:
        """None for the bundled model.

        Args:
            is_needed: if not, a model that only the settings name is not taken.
            must_fit: as in `resolve_model`.

        Raises:
            ValueError: the model is named twice, or there is none.
        """
        if self.first is not None and _typed(self.context, "model"):
            raise ValueError(f"the model is named twice: {self.first} and -m {self.model}")
        if self.first is not None:
            return resolve_model(self.first, must_fit=must_fit, context=self.context)
        is_set = is_needed or _typed(self.context, "model")
        return _resolve_option(self.context, self.model, must_fit=must_fit) if is_set else None


@dataclass(frozen=True)
class ModelAndPrompt(Words):
    """`[MODEL] [PROMPT]` in any of the forms that users type.

    A single word is a model if it looks like one, else it is the prompt. Where nothing else is the
    prompt, stdin is.
    """

    second: str | None = argument(
        "PROMPT", "The text. Left out or -: read from stdin, without the newline at its end."
    )
    more: Annotated[list[str] | None, typer.Argument(hidden=True)] = None
    model: _Model = None
    prompt: str | None = PROMPT.option("TEXT", "The same as PROMPT.", "--prompt", "-p")
    file: Path | None = PROMPT.option("FILE", "Read the prompt from a file.", "--file", "-f")

    def read(self) -> tuple[str | None, str]:
        """The model, None for the bundled one, and the prompt; waits for stdin if it is there.

        Raises:
            ValueError: there is no such model, no prompt, or the prompt is not text.
            OSError: the prompt's file cannot be read, or the hub cannot be reached.
        """
        word, prompt = self.typed()
        if prompt is None and sys.stdin.isatty():
            self._refuse_to_guess(word or self.model)
        return self._resolved(word), _checked_text(prompt)

    def given(self) -> tuple[str | None, str | None]:
        """As `read`, but the prompt is None if only stdin is left and `-` was not given."""
        word, prompt = self.typed()
        return self._resolved(word), None if prompt is None else _checked_text(prompt)

    def typed(self) -> tuple[str | None, str | None]:
        """The word that names the model, and the prompt, which is - for stdin; None for what is not given."""
        words = [word for word in (self.first, self.second, *(self.more or ())) if word is not None]
        model_typed = _typed(self.context, "model")
        prompt = self._prompt_option()
        if len(words) > 2 - model_typed - (prompt is not None):
            self._refuse_words(words, model_typed, prompt is not None)
        if len(words) == 2:
            return words[0], words[1]
        if words and (prompt is not None or (not model_typed and looks_like_model(words[0]))):
            return words[0], prompt
        return None, words[0] if words else prompt

    def _resolved(self, word: str | None) -> str | None:
        quiet = bool(self.context.params.get("quiet"))
        if word is None:
            return _resolve_option(self.context, self.model, quiet=quiet)
        return resolve_model(word, quiet=quiet, context=self.context)

    def _prompt_option(self) -> str | None:
        if self.file is None:
            return self.prompt
        if self.prompt is not None:
            raise ValueError(f"--prompt and --file {self.file}: only one can be the prompt")
        return "-" if str(self.file) == "-" else _decoded(self.file.read_bytes(), str(self.file))

    def _refuse_words(self, words: list[str], model_typed: bool, prompt_typed: bool) -> NoReturn:
        if prompt_typed:
            raise ValueError(f"{words[-1]!r}: the prompt is given already, by --prompt or --file")
        text = words if model_typed or not looks_like_model(words[0]) else words[1:]
        raise ValueError(f'put a prompt of several words in quotes: "{" ".join(text)}"')

    def _refuse_to_guess(self, model: str | None) -> NoReturn:
        verb = self.context.command_path
        if model is None:
            raise ValueError(f'the prompt is missing; for example: {verb} "Once upon a time"')
        conversation = (
            f"; for a conversation: pellucid chat {model}" if verb.endswith("run") else ""
        )
        raise ValueError(
            f'the prompt is missing; for example: {verb} {model} "Why is the sky blue?"{conversation}'
        )


@dataclass(frozen=True)
class PromptOptions(Options):
    """How a prompt is put to the model: as a question, through its chat template, or as text."""

    system: System = None
    think: Think = None
    raw: bool | None = PROMPT.flag(
        "Continue the prompt as text, or answer it through the model's chat template.",
        "--raw/--chat",
        show_default="--chat if the model has a chat template; the bundled model only answers questions and"
        f" texts of less than {_WORDS_OF_A_TEXT} words",
    )

    def __post_init__(self) -> None:
        for option, value in (("--system", self.system), ("--think", self.think)):
            if value is not None and self.raw:
                raise ValueError(f"{option}: has no effect with --raw")

    def prompt(self, llm: "LLM", text: str, *, is_bundled: bool) -> "Prompt":
        """The prompt for the engine: text to continue, or a conversation of one question.

        Raises:
            ValueError: an option is for conversations, and the model cannot have this one.
        """
        is_conversation = self.system is not None or self.think is not None
        if self.raw is None and not is_conversation:
            raw = not llm.tokenizer.has_chat_template or (is_bundled and _is_text_to_continue(text))
        else:
            raw = bool(self.raw)
        if raw:
            return text
        check_conversation(llm, self.think)
        return conversation_prompt(Conversation(self.system).messages(text), self.think)


def _is_text_to_continue(text: str) -> bool:
    """Whether the bundled model goes on with `text`; a greeting or a question it answers."""
    words = text.split()
    return not words or (len(words) >= _WORDS_OF_A_TEXT and not words[-1].endswith("?"))


def check_conversation(llm: "LLM", think: bool | None) -> None:
    """Raises ValueError if the model has no conversations, or its reasoning cannot be switched."""
    if not llm.tokenizer.has_chat_template:
        raise ValueError(
            f"{llm.engine.model.name} has no chat template, so it cannot chat; pellucid run --raw continues"
            " a text"
        )
    if think is not None and not llm.tokenizer.chat_template_mentions("enable_thinking"):
        raise ValueError(
            f"{llm.engine.model.name}: reasoning cannot be switched on or off; its chat template has no"
            " enable_thinking"
        )


def conversation_prompt(messages: list[dict[str, str]], think: bool | None) -> ChatPrompt:
    """The conversation for the engine; where `think` is None, the chat template decides."""
    variables: dict[str, Any] = {} if think is None else {"enable_thinking": think}
    return ChatPrompt(messages, chat_template_kwargs=variables)


def _resolve_option(
    context: typer.Context, model: str | None, *, must_fit: bool = True, quiet: bool = False
) -> str | None:
    """The model of -m, of a variable or of the configuration file; None for the bundled one."""
    try:
        if model is None:
            return None
        return resolve_model(model, must_fit=must_fit, quiet=quiet, context=context)
    except ValueError as error:
        raise ValueError(f"{error}{origin(context, 'model')}") from None


def _typed(context: typer.Context, name: str) -> bool:
    """Whether an option stands on the command line itself, not in a variable or a file."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _checked_text(prompt: str | None) -> str:
    """The prompt, or what stdin holds."""
    if prompt is None or prompt == "-":
        return _decoded(sys.stdin.buffer.read(), "stdin")
    try:
        prompt.encode()
    except UnicodeEncodeError:  # the shell's bytes, escaped by Python
        raise ValueError(f"PROMPT: {prompt!r} is not valid UTF-8") from None
    return prompt


def _decoded(content: bytes, name: str) -> str:
    try:
        # utf-8-sig: editors on Windows begin a file with a mark that is no text.
        return content.decode("utf-8-sig").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise ValueError(f"PROMPT: {name} is not UTF-8 at byte {error.start}") from None
