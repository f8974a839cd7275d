"""A chat session: handles each line that the user types."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pellucid.cli.conversation import Conversation
from pellucid.cli.generation import stream_answer
from pellucid.cli.output.summary import answer_facts, formats, sampling
from pellucid.cli.output.terminal import AnswerWriter, note, note_facts
from pellucid.cli.output.units import counted
from pellucid.cli.parsing.model_and_prompt import check_conversation, conversation_prompt
from pellucid.cli.parsing.option_types import text_with_escapes
from pellucid.inputs.sampling_params import STAGE_NUMBERS, SamplingParams

if TYPE_CHECKING:
    from pellucid.llm import LLM
    from pellucid.outputs import RequestOutput


_LEAVE = ("exit", "quit", "bye", "/quit", "/bye")  # what leaves other programs
_ALIASES = {"/?": "/help", "/clear": "/reset"}  # of other programs
_QUOTES = '"""'  # around a message of several lines
# Parameters that /set takes, by their names here and in other programs: the field and its type.
_PARAMETERS: Mapping[str, tuple[str, Callable[[str], float]]] = {
    **{name: (name, float) for name in STAGE_NUMBERS},
    "max_tokens": ("max_tokens", int),
    "num_predict": ("max_tokens", int),
    "repeat_penalty": ("repetition_penalty", float),
    "seed": ("seed", int),
    "top_k": ("top_k", int),
}


@dataclass(frozen=True)
class Command:
    """A line that begins with /.

    Attributes:
        argument: the name of the argument in /help, in brackets if it is optional; empty: there is none.
        act: called with the argument, if the command has one.
    """

    argument: str
    help: str
    act: Callable[..., None]

    @property
    def needs_argument(self) -> bool:
        return bool(self.argument) and not self.argument.startswith("[")


class ChatSession:
    """Owns the conversation and the parameters of the next answer.

    Args:
        llm: with prefix caching, which finds the history again.
        params: of the first answer.
        think: whether the model reasons before it answers; None leaves it to the chat template.
        verbose: whether times and speeds follow each answer.
        quiet: whether the progress of a long prefill is not shown.

    Raises:
        ValueError: the model has no chat template.
    """

    def __init__(
        self,
        llm: "LLM",
        params: SamplingParams,
        system: str | None = None,
        *,
        think: bool | None = None,
        verbose: bool = False,
        quiet: bool = False,
    ) -> None:
        self.llm = llm
        self.params = params
        self.conversation = Conversation(system)
        self.think = think
        self.verbose = verbose
        self.quiet = quiet
        self.ended = False
        self.last_output: RequestOutput | None = None
        self._quoted: list[str] | None = None  # the lines since the quotes that are not closed yet
        self.commands = {
            "/help": Command("", "this list", self._help),
            "/set": Command(
                "NAME VALUE", "a parameter of the next answers, as in top_k 40", self._set_by_name
            ),
            "/show": Command("", "the model, and the parameters of the next answer", self._show),
            "/temperature": Command(
                "T",
                "randomness; 0 always takes the likeliest token",
                partial(self._set, "temperature"),
            ),
            "/top-p": Command("P", "1 is off", partial(self._set, "top_p")),
            "/max-tokens": Command(
                "N", "most tokens of an answer", partial(self._set, "max_tokens")
            ),
            "/seed": Command(
                "S", "the same seed gives the same answer", partial(self._set, "seed")
            ),
            "/stop": Command(
                "[TEXT]", "text that ends an answer, \\n is a newline; or none", self._stop
            ),
            "/think": Command("on|off", "whether the model reasons before it answers", self._think),
            "/system": Command(
                "[TEXT]", "system message, before the conversation; or none", self._system
            ),
            "/regen": Command("", "answer the last question again", self._regenerate),
            "/undo": Command("", "forget the last question and its answer", self._undo),
            "/reset": Command("", "forget the whole conversation", self._reset),
            "/save": Command("FILE", "write the conversation, one JSON message a line", self._save),
            "/load": Command("FILE", "continue a saved conversation", self._load),
            "/stats": Command("", "tokens, times, KV cache and parameters", self._stats),
            "/exit": Command("", "end the chat", self._exit),
        }
        check_conversation(llm, think)  # fails now, not at a turn
        llm.tokenizer.encode_chat(self.conversation.messages("hello"))

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the last answer."""
        last = self.last_output
        return last is not None and last.outputs[0].finish_reason == "abort"

    def handle(self, line: str) -> None:
        """Runs a line: a command, or a turn.

        Raises:
            ValueError: the command or the message cannot be served; nothing changed.
            OSError: a file cannot be read or written.
        """
        if self._quoted is not None or line.lstrip().startswith(_QUOTES):
            self._take_quoted(line)
            return
        line = line.strip()
        if not line:
            return
        if line.lower() in _LEAVE:
            self._exit()
            return
        if not line.startswith("/"):
            self.answer(line)
            return
        name, _, argument = line.partition(" ")
        name, argument = _ALIASES.get(name, name), argument.strip()
        if name not in self.commands:
            raise ValueError(f"{name}: no such command; there are {', '.join(self.commands)}")
        command = self.commands[name]
        if argument and not command.argument:
            raise ValueError(f"{name} {argument}: takes no argument")
        if not argument and command.needs_argument:
            raise ValueError(f"{name}: {command.argument} is missing")
        command.act(*[argument] if command.argument else [])

    def _take_quoted(self, line: str) -> None:
        """A line of a message that stands between quotes; the line with the second quotes sends it."""
        if self._quoted is None:
            self._quoted, line = [], line.lstrip().removeprefix(_QUOTES)
        is_closed = line.rstrip().endswith(_QUOTES)
        self._quoted.append(line.rstrip().removesuffix(_QUOTES) if is_closed else line)
        if is_closed:
            question, self._quoted = "\n".join(self._quoted).strip("\n"), None
            if question:
                self.answer(question)

    def answer(self, question: str) -> str:
        """Answers a question, which becomes a turn if there is any text. Returns the finish reason.

        Raises:
            ValueError: the question cannot be answered, or the answer failed.
        """
        messages = self.conversation.messages(question)
        num_tokens = len(self.llm.tokenizer.encode_chat(messages))
        limit = self.llm.engine.max_model_len
        if num_tokens >= limit:
            raise ValueError(
                f"the conversation would have {num_tokens} tokens, and the context holds {limit}:"
                " ask a shorter question, or make room with /undo or /reset"
            )
        prompt = conversation_prompt(messages, self.think)
        writer = AnswerWriter()
        output, answer = stream_answer(self.llm, prompt, self.params, writer, quiet=self.quiet)
        completion = output.outputs[0]
        writer.write("\n")
        if self.verbose:
            note_facts("done", answer_facts(self.llm.engine, output, self.params))
        self.last_output = output
        if completion.finish_reason == "error":
            raise ValueError(f"no answer: {completion.stop_reason}")
        if answer:
            self.conversation.turns.append((question, answer))
        else:
            note("the answer is empty: this turn is forgotten")
        if completion.stop_reason == "context_length":
            note(f"the context of {limit} tokens is full: make room with /undo or /reset")
        elif completion.stop_reason == "max_tokens":
            note(
                f"the answer was cut at {self.params.max_tokens} tokens: /max-tokens N allows more"
            )
        assert completion.finish_reason is not None
        return completion.finish_reason

    def _help(self) -> None:
        for name, command in self.commands.items():
            note(f"  {f'{name} {command.argument}':<20} {command.help}")

    def _set(self, name: str, argument: str) -> None:
        field, parse = _PARAMETERS[name]
        try:
            value = parse(argument)
        except ValueError:
            raise ValueError(f"{field}={argument!r}: must be a number") from None
        changed: dict[str, Any] = {field: value}
        self.params = replace(self.params, **changed)
        note(f"{field} {value}")

    def _set_by_name(self, argument: str) -> None:
        name, _, value = argument.removeprefix("parameter ").strip().partition(" ")
        if name == "system":
            self._system(value.strip())
        elif name == "stop":
            self._stop(value.strip())
        elif name in _PARAMETERS:
            self._set(name, value.strip())
        else:
            known = ", ".join(sorted((*_PARAMETERS, "stop", "system")))
            raise ValueError(f"/set {name}: no such parameter; there are {known}")

    def _show(self) -> None:
        engine = self.llm.engine
        note(f"{formats(engine.model.name, engine.config)}, context {engine.max_model_len} tokens")
        note(f"next answer: {sampling(self.params, self.params.seed)}")
        if self.params.stop:
            note(f"an answer ends at {', '.join(map(repr, self.params.stop))}")
        if self.conversation.system is not None:
            note(f"system: {self.conversation.system}")

    def _stop(self, argument: str) -> None:
        stop = (text_with_escapes(argument),) if argument else ()
        self.params = replace(self.params, stop=stop)
        note(f"an answer ends at {stop[0]!r}" if stop else "no stop string")

    def _think(self, argument: str) -> None:
        if argument not in ("on", "off"):
            raise ValueError(f"/think {argument}: must be on or off")
        think = argument == "on"
        check_conversation(self.llm, think)
        self.think = think
        note(f"thinking: {argument}")

    def _system(self, argument: str) -> None:
        self.conversation.system = argument or None
        note(f"system: {argument}" if argument else "no system message")

    def _regenerate(self) -> None:
        """Another answer: the next seed, where there is one, or a new one is drawn."""
        if not self.conversation.turns:
            raise ValueError("/regen: there is no answer yet")
        if self.params.temperature == 0:
            raise ValueError("/regen: the temperature is 0, so the answer would be the same")
        if self.params.seed is not None:
            self._set("seed", str(self.params.seed + 1))
        turns = list(self.conversation.turns)
        question, _ = self.conversation.turns.pop()
        try:
            self.answer(question)
        finally:
            if len(self.conversation.turns) < len(turns):  # no new answer: the old one stays
                self.conversation.turns[:] = turns

    def _undo(self) -> None:
        if not self.conversation.turns:
            raise ValueError("/undo: there is no turn to remove")
        question, _ = self.conversation.turns.pop()
        note(f"forgot: {question}")

    def _reset(self) -> None:
        self.conversation.turns.clear()
        note("forgot all turns")

    def _save(self, argument: str) -> None:
        self.conversation.save(Path(argument))
        note(f"saved {counted(len(self.conversation.turns), 'turn')} in {argument}")

    def _load(self, argument: str) -> None:
        self.conversation = Conversation.load(Path(argument))
        note(f"loaded {counted(len(self.conversation.turns), 'turn')} from {argument}")

    def _stats(self) -> None:
        messages = self.conversation.messages()
        num_tokens = 0
        if messages:
            tokenizer = self.llm.tokenizer
            num_tokens = len(tokenizer.encode_chat(messages, add_generation_prompt=False))
        limit = self.llm.engine.max_model_len
        turns = counted(len(self.conversation.turns), "turn")
        note(f"history: {turns}, {num_tokens} of {limit} tokens")
        if self.last_output is not None:
            note_facts("last answer", answer_facts(self.llm.engine, self.last_output, self.params))
        note(f"next answer: {sampling(self.params, self.params.seed)}")

    def _exit(self) -> None:
        self.ended = True
