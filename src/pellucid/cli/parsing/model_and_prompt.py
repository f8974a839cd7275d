"""Finds the model and the prompt among the words after `run`, `chat`, `compare` and `explain`."""

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from pellucid.cli.parsing.options import MODEL, MODEL_HELP
from pellucid.cli.parsing.settings import origin
from pellucid.prompts import ChatPrompt

if TYPE_CHECKING:
    from pellucid.llm import LLM
    from pellucid.prompts import Prompt

PROMPT = "Prompt"
System = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT", rich_help_panel=PROMPT, help="System message, before the conversation."
    ),
]
Think = Annotated[
    bool | None,
    typer.Option(
        "--think/--no-think",
        rich_help_panel=PROMPT,
        help="Whether a model that can reason does so before it answers.",
        show_default="the chat template's own choice",
    ),
]
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(:[\w./-]+)?")
_WORDS_OF_A_TEXT = 3  # at least, for the bundled model to go on with it
_GGUF_MAGIC = b"GGUF"
# Names that Ollama's and other libraries' users type: a word that begins like this is no prompt.
_FAMILY = re.compile(
    r"(codellama|deepseek|falcon|gemma|gpt-?2|gpt-oss|llama|mistral|mixtral|phi|qwen|smollm|tinyllama)"
    r"[\w.-]*(:[\w.-]+)?",
    re.IGNORECASE,
)


def looks_like_model(word: str) -> bool:
    """Whether a single word is meant as a model, not as a prompt."""
    if not word or any(character.isspace() for character in word):
        return (path := _path(word)) is not None and (path.is_dir() or path.suffix == ".gguf")
    return (
        _exists(word)
        or word.lower().endswith(".gguf")
        or word.startswith(("./", "../", "~/", "/"))
        or _HUB_ID.fullmatch(word) is not None
        or _FAMILY.fullmatch(word) is not None
    )


def check_model(model: str) -> str:
    """The model, if there is such a file or directory here, or if the hub may have it.

    Raises:
        ValueError: it can be neither.
    """
    path = _path(model)
    if path is not None:
        if path.suffix == ".safetensors":
            raise ValueError(
                f"{model}: is a file of weights without a configuration; name its directory: {path.parent}"
            )
        if path.is_file() and not _is_gguf(path):
            raise ValueError(
                f"{model}: is not a model: a model is a directory with config.json, a .gguf file or"
                f" owner/name on the hub. To read a prompt from it: -f {model}"
            )
        return model
    if _HUB_ID.fullmatch(model) and not model.lower().endswith(".gguf"):
        return model
    hint = ""
    if "/" not in model and not model.lower().endswith(".gguf"):
        hint = "; models of the Hugging Face hub are named owner/name, as in Qwen/Qwen3-0.6B"
    raise ValueError(f"no such file or directory: {model}{hint}")


@dataclass(frozen=True)
class ModelName:
    """`MODEL` or `-m MODEL`."""

    context: typer.Context
    first: Annotated[
        str | None, typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default=False)
    ] = None
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", metavar="MODEL", rich_help_panel=MODEL, help="The same as MODEL."
        ),
    ] = None

    def name(self, *, is_needed: bool = True) -> str | None:
        """None for the bundled model.

        Args:
            is_needed: if not, a model that only the settings name is not taken.

        Raises:
            ValueError: the model is named twice, or there is none.
        """
        if self.first is not None and _typed(self.context, "model"):
            raise ValueError(f"the model is named twice: {self.first} and -m {self.model}")
        if self.first is not None:
            return check_model(self.first)
        is_set = is_needed or _typed(self.context, "model")
        return _check_option(self.context, self.model) if is_set else None


@dataclass(frozen=True)
class ModelAndPrompt:
    """`[MODEL] [PROMPT]` in any of the forms that users type.

    A single word is a model if it looks like one, else it is the prompt. Where nothing else is the
    prompt, stdin is.
    """

    context: typer.Context
    first: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default=False),
    ] = None
    second: Annotated[
        str | None,
        typer.Argument(
            metavar="PROMPT",
            help="The text. Left out or -: read from stdin, without the newline at its end.",
            show_default=False,
        ),
    ] = None
    more: Annotated[list[str] | None, typer.Argument(hidden=True)] = None
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", metavar="MODEL", rich_help_panel=MODEL, help="The same as MODEL."
        ),
    ] = None
    prompt: Annotated[
        str | None,
        typer.Option(
            "--prompt", "-p", metavar="TEXT", rich_help_panel=PROMPT, help="The same as PROMPT."
        ),
    ] = None
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            "-f",
            metavar="FILE",
            rich_help_panel=PROMPT,
            help="Read the prompt from a file.",
        ),
    ] = None

    def read(self) -> tuple[str | None, str]:
        """The model, None for the bundled one, and the prompt; waits for stdin if it is there.

        Raises:
            ValueError: there is no such model, no prompt, or the prompt is not text.
            OSError: the prompt's file cannot be read.
        """
        model, prompt = self.given()
        if prompt is None:
            if sys.stdin.isatty():
                self._refuse_to_guess(model)
            prompt = _read_stdin()
        return model, prompt

    def given(self) -> tuple[str | None, str | None]:
        """As `read`, but the prompt is None if only stdin is left and `-` was not given."""
        words = [word for word in (self.first, self.second, *(self.more or ())) if word is not None]
        model_typed = _typed(self.context, "model")
        prompt = self._prompt_option()
        if len(words) > 2 - model_typed - (prompt is not None):
            self._refuse_words(words, model_typed, prompt is not None)
        word: str | None = None
        if len(words) == 2:
            word, prompt = words
        elif len(words) == 1:
            if prompt is not None or (not model_typed and looks_like_model(words[0])):
                word = words[0]
            else:
                prompt = words[0]
        model = _check_option(self.context, self.model) if word is None else check_model(word)
        if prompt == "-":
            return model, _read_stdin()
        return model, None if prompt is None else _checked_text(prompt)

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
class PromptOptions:
    """How a prompt is put to the model: as a question, through its chat template, or as text."""

    system: System = None
    think: Think = None
    raw: Annotated[
        bool | None,
        typer.Option(
            "--raw/--chat",
            rich_help_panel=PROMPT,
            help="Continue the prompt as text, or answer it through the model's chat template.",
            show_default="--chat if the model has a chat template; the bundled model only answers questions and"
            f" texts of less than {_WORDS_OF_A_TEXT} words",
        ),
    ] = None

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
        return conversation_prompt(messages(self.system, text), self.think)


def _is_text_to_continue(text: str) -> bool:
    """Whether the bundled model goes on with `text`; a greeting or a question it answers."""
    words = text.split()
    return not words or (len(words) >= _WORDS_OF_A_TEXT and not words[-1].endswith("?"))


def messages(system: str | None, question: str) -> list[dict[str, str]]:
    """A conversation of one question."""
    first = [] if system is None else [{"role": "system", "content": system}]
    return [*first, {"role": "user", "content": question}]


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
    """The conversation for the engine.

    Args:
        think: None leaves it to the chat template.
    """
    variables: dict[str, Any] = {} if think is None else {"enable_thinking": think}
    return ChatPrompt(messages, chat_template_kwargs=variables)


def _check_option(context: typer.Context, model: str | None) -> str | None:
    """The model of -m, of a variable or of the configuration file, checked; None for the bundled one."""
    try:
        return None if model is None else check_model(model)
    except ValueError as error:
        raise ValueError(f"{error}{origin(context, 'model')}") from None


def _typed(context: typer.Context, name: str) -> bool:
    """Whether an option stands on the command line itself, not in a variable or a file."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _path(word: str) -> Path | None:
    """The path, if it exists."""
    try:
        path = Path(word).expanduser()
        return path if word and path.exists() else None
    except (OSError, RuntimeError, ValueError):  # too long, no such user, a null byte
        return None


def _is_gguf(path: Path) -> bool:
    """By its name or, for a file such as Ollama's that has another name, by how it begins."""
    if path.suffix.lower() == ".gguf":
        return True
    with path.open("rb") as file:
        return file.read(len(_GGUF_MAGIC)) == _GGUF_MAGIC


def _exists(word: str) -> bool:
    return _path(word) is not None


def _checked_text(prompt: str) -> str:
    try:
        prompt.encode()
    except UnicodeEncodeError:  # the shell's bytes, escaped by Python
        raise ValueError(f"PROMPT: {prompt!r} is not valid UTF-8") from None
    return prompt


def _read_stdin() -> str:
    return _decoded(sys.stdin.buffer.read(), "stdin")


def _decoded(content: bytes, name: str) -> str:
    try:
        # utf-8-sig: editors on Windows begin a file with a mark that is no text.
        return content.decode("utf-8-sig").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise ValueError(f"PROMPT: {name} is not UTF-8 at byte {error.start}") from None
