"""One chat: what a line that the user typed does."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pellucid.cli.conversation import Conversation
from pellucid.cli.generation import stream_text
from pellucid.cli.summary import done_line, sampling
from pellucid.cli.terminal import note, write_text
from pellucid.cli.units import num_bytes
from pellucid.prompts import ChatPrompt
from pellucid.sampling_params import SamplingParams

if TYPE_CHECKING:
    from pellucid.llm import LLM
    from pellucid.outputs import RequestOutput


@dataclass(frozen=True)
class Command:
    """A line that begins with /.

    Attributes:
        argument: how /help names what follows, in brackets if it may be left out; empty for nothing.
        act: gets what follows, if something may.
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
        system: what the model is told before the first turn.

    Raises:
        ValueError: the model has no chat template.
    """

    def __init__(self, llm: "LLM", params: SamplingParams, system: str | None = None) -> None:
        self.llm = llm
        self.params = params
        self.conversation = Conversation(system)
        self.ended = False
        self.last_output: RequestOutput | None = None
        self.commands = {
            "/help": Command("", "this list", self._help),
            "/temperature": Command("T", "0 is greedy", partial(self._set, "temperature", float)),
            "/top-p": Command("P", "1 is off", partial(self._set, "top_p", float)),
            "/max-tokens": Command(
                "N", "most tokens of an answer", partial(self._set, "max_tokens", int)
            ),
            "/seed": Command(
                "S", "the same seed, the same answer", partial(self._set, "seed", int)
            ),
            "/system": Command("[TEXT]", "what the model is told first; or nothing", self._system),
            "/undo": Command("", "forget the last turn", self._undo),
            "/reset": Command("", "forget all turns", self._reset),
            "/save": Command("FILE", "write the conversation, a message a line", self._save),
            "/load": Command("FILE", "go on from a saved conversation", self._load),
            "/stats": Command("", "tokens, KV cache and parameters", self._stats),
            "/quit": Command("", "end the chat", self._quit),
        }
        llm.tokenizer.encode_chat(self.conversation.messages("hello"))  # fails now, not at a turn

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the last answer."""
        last = self.last_output
        return last is not None and last.outputs[0].finish_reason == "abort"

    def handle(self, line: str) -> None:
        """Does what a line says: a command, or a turn.

        Raises:
            ValueError: the command or the message cannot be served; nothing changed.
            OSError: a file cannot be read or written.
        """
        if not line.strip():
            return
        if not line.startswith("/"):
            self._answer(line)
            return
        name, _, argument = line.strip().partition(" ")
        argument = argument.strip()
        if name not in self.commands:
            raise ValueError(f"{name}: no such command; there are {', '.join(self.commands)}")
        command = self.commands[name]
        if argument and not command.argument:
            raise ValueError(f"{name} {argument}: takes nothing more")
        if not argument and command.needs_argument:
            raise ValueError(f"{name}: {command.argument} is missing")
        command.act(*[argument] if command.argument else [])

    def _answer(self, question: str) -> None:
        messages = self.conversation.messages(question)
        num_tokens, limit = (
            len(self.llm.tokenizer.encode_chat(messages)),
            self.llm.engine.max_model_len,
        )
        if num_tokens >= limit:
            raise ValueError(
                f"the conversation would have {num_tokens} tokens, and the context holds {limit}:"
                " say it shorter, or make room with /undo or /reset"
            )
        output = stream_text(self.llm.engine, ChatPrompt(messages), self.params)
        completion = output.outputs[0]
        write_text("\n")
        note(done_line(self.llm.engine, output, self.params))
        self.last_output = output
        if completion.finish_reason == "error":
            raise ValueError(f"no answer: {completion.stop_reason}")
        if completion.text:
            self.conversation.turns.append((question, completion.text))
        else:
            note("no text was made: this turn is forgotten")
        if completion.stop_reason == "context_length":
            note(f"the context of {limit} tokens is full: make room with /undo or /reset")

    def _help(self) -> None:
        for name, command in self.commands.items():
            note(f"  {f'{name} {command.argument}':<20} {command.help}")

    def _set(self, field: str, parse: Callable[[str], float], argument: str) -> None:
        try:
            value = parse(argument)
        except ValueError:
            raise ValueError(f"{field}={argument!r}: must be a number") from None
        changed: dict[str, Any] = {field: value}
        self.params = replace(self.params, **changed)
        note(f"{field} {value}")

    def _system(self, argument: str) -> None:
        self.conversation.system = argument or None
        note(f"system: {argument}" if argument else "no system message")

    def _undo(self) -> None:
        if not self.conversation.turns:
            raise ValueError("/undo: there is no turn to forget")
        question, _ = self.conversation.turns.pop()
        note(f"forgot: {question}")

    def _reset(self) -> None:
        self.conversation.turns.clear()
        note("forgot all turns")

    def _save(self, argument: str) -> None:
        self.conversation.save(Path(argument))
        note(f"saved {len(self.conversation.turns)} turns in {argument}")

    def _load(self, argument: str) -> None:
        self.conversation = Conversation.load(Path(argument))
        note(f"loaded {len(self.conversation.turns)} turns from {argument}")

    def _stats(self) -> None:
        messages = self.conversation.messages()
        num_tokens = 0
        if messages:
            tokenizer = self.llm.tokenizer
            num_tokens = len(tokenizer.encode_chat(messages, add_generation_prompt=False))
        limit = self.llm.engine.max_model_len
        note(f"history: {len(self.conversation.turns)} turns, {num_tokens} of {limit} tokens")
        if self.last_output is not None:
            note(
                f"last turn: {self.last_output.num_cached_tokens} of"
                f" {len(self.last_output.prompt_token_ids)} prompt tokens found in the KV cache,"
                f" {num_bytes(self.last_output.metrics.kv_cache_bytes)} held"
            )
        note(f"next answer: {sampling(self.params, self.params.seed)}")

    def _quit(self) -> None:
        self.ended = True
