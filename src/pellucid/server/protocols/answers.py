"""Parses answers for the protocols that separate text, reasoning and tool calls."""

import json
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from pellucid.conversation import Tool
from pellucid.outputs import CompletionDelta
from pellucid.prompts import ChatPrompt
from pellucid.sampling_params import SamplingParams
from pellucid.server.generation import Generation
from pellucid.server.protocols.answer_rules import AnswerRule
from pellucid.text.responses.deltas import (
    ContentText,
    ReasoningText,
    ResponseDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from pellucid.text.responses.parser import ResponseParser
from pellucid.text.tokenizer import Tokenizer

PROMPT_TAIL = 512  # tokens in which the opening of an answer is looked for


@dataclass(frozen=True)
class AnswerForm:
    """How the answers of one request are read.

    Attributes:
        tokenizer: the model's: it knows the form of its answers.
        tools: those that the model was offered.
        is_continued: the answer continues a message, which may be long.
        is_plain: all of it is text.
        rule: what the text must be.
    """

    tokenizer: Tokenizer
    tools: Sequence[Tool] | None = None
    is_continued: bool = False
    is_plain: bool = False
    rule: AnswerRule | None = None

    @classmethod
    def of(
        cls,
        tokenizer: Tokenizer,
        prompt: ChatPrompt,
        rule: AnswerRule | None = None,
        is_plain: bool = False,
    ) -> "AnswerForm":
        has_format = rule is not None and not rule.has_calls
        is_plain = is_plain or has_format or tokenizer.response_format.template is None
        return cls(tokenizer, prompt.tools, prompt.continue_final_message, is_plain, rule)

    @property
    def rule_field(self) -> str:
        """See `GenerationRequest`."""
        return "structured_outputs" if self.rule is None else self.rule.field

    def adapt(self, params: SamplingParams) -> SamplingParams:
        """With the rule; with special tokens in the text where they tell parts of an answer apart; and
        without stop strings in reasoning, which a client does not see as text."""
        if self.rule is not None:
            params = replace(params, structured_outputs=self.rule.params)
        if not self.is_plain and params.stop:
            params = replace(params, stop_in_reasoning=False)
        if self.is_plain or self.tokenizer.response_format.skip_special_tokens:
            return params
        return replace(params, skip_special_tokens=False)

    def reader(self, generation: Generation) -> "AnswerReader":
        """The reader of one answer of a request with one prompt."""
        if self.is_plain:
            return AnswerReader(None)
        if self.rule is not None and self.rule.begins_anew:
            return AnswerReader(self.tokenizer.response_format.parser("", self.tools))
        token_ids = generation.prompts[0].token_ids
        tail = token_ids if self.is_continued else token_ids[-PROMPT_TAIL:]
        text = self.tokenizer.decode(tail, skip_special_tokens=False)
        return AnswerReader(self.tokenizer.response_format.parser(text, self.tools))


class AnswerReader:
    """Reads one answer as it comes.

    Args:
        parser: None: all of it is text.
    """

    def __init__(self, parser: ResponseParser | None) -> None:
        self._parser = parser

    def read(self, delta: CompletionDelta) -> list[ResponseDelta]:
        """What a delta adds for certain; the last one brings all that was held back."""
        if self._parser is None:
            return [ContentText(delta.text)] if delta.text else []
        deltas = self._parser.push(delta.text)
        if delta.finish_reason is not None:
            deltas += self._parser.flush()
        return deltas


class BlockKind(Enum):
    TEXT = "text"
    REASONING = "reasoning"
    CALL = "call"


@dataclass
class Block:
    """A text, a reasoning or a call of an answer, so far.

    Attributes:
        text: of a call, its arguments in JSON.
        call_id: of a call.
        name: of a call's function.
    """

    index: int
    kind: BlockKind
    text: str = ""
    call_id: str | None = None
    name: str | None = None


class Change(Enum):
    """What happens to a block."""

    OPENED = "opened"
    GREW = "grew"
    CLOSED = "closed"


@dataclass(frozen=True)
class BlockEvent:
    """One change of one block.

    Attributes:
        text: what it grew by.
    """

    change: Change
    block: Block
    text: str = ""


class AnswerBlocks:
    """Makes blocks of what a reader gives: one ends where something of another kind begins.

    Attributes:
        blocks: all, in their order.
    """

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._open: Block | None = None

    @property
    def has_calls(self) -> bool:
        return any(block.kind is BlockKind.CALL for block in self.blocks)

    def text_of(self, kind: BlockKind) -> str:
        """All blocks of a kind, joined."""
        return "".join(block.text for block in self.blocks if block.kind is kind)

    def push(self, deltas: Iterable[ResponseDelta]) -> Iterator[BlockEvent]:
        for delta in deltas:
            if isinstance(delta, ContentText):
                yield from self._grow(BlockKind.TEXT, delta.text)
            elif isinstance(delta, ReasoningText):
                yield from self._grow(BlockKind.REASONING, delta.text)
            elif isinstance(delta, ToolCallStart):
                yield from self._begin(BlockKind.CALL, new_call_id(), delta.name)
            elif isinstance(delta, ToolCallArguments):
                yield from self._grow(BlockKind.CALL, delta.text)
            elif isinstance(delta, ToolCallEnd):
                yield from self.close()

    def close(self) -> Iterator[BlockEvent]:
        """Ends the block that is open, if any."""
        if self._open is not None:
            yield BlockEvent(Change.CLOSED, self._open)
            self._open = None

    def _grow(self, kind: BlockKind, text: str) -> Iterator[BlockEvent]:
        if self._open is None or self._open.kind is not kind:
            yield from self._begin(kind)
        assert self._open is not None
        self._open.text += text
        yield BlockEvent(Change.GREW, self._open, text)

    def _begin(
        self, kind: BlockKind, call_id: str | None = None, name: str | None = None
    ) -> Iterator[BlockEvent]:
        yield from self.close()
        self._open = Block(len(self.blocks), kind, "", call_id, name)
        self.blocks.append(self._open)
        yield BlockEvent(Change.OPENED, self._open)


def new_call_id() -> str:
    """Nine letters and digits: the form that the strictest templates (Mistral's) ask for."""
    return f"c{secrets.token_hex(4)}"


def arguments_of(call: Block) -> Any:
    """The arguments of a call as an object. A call that a limit cut off may be no JSON: nothing of it is
    lost."""
    try:
        return json.loads(call.text) if call.text else {}
    except (RecursionError, ValueError):
        return {"incomplete_arguments": call.text}
