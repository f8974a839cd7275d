"""Parses answers for the protocols that separate text, reasoning and tool calls."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import msgspec

from pellucid.inputs.conversation import argument_object
from pellucid.outputs import CompletionDelta
from pellucid.server.streaming import TextChunks
from pellucid.text.reasoning_tokens import ReasoningState, ReasoningTokens
from pellucid.text.responses import deltas
from pellucid.text.responses.parser import ResponseParser


class BlockKind(Enum):
    TEXT = "text"
    REASONING = "reasoning"
    CALL = "call"


@dataclass(eq=False, slots=True)
class Block:
    """A text, a reasoning or a call of an answer, so far.

    Args:
        call_id: of a call.
        name: of a call's function.

    Attributes:
        parts: of its text; joined on demand, because appending to a string copies it.
    """

    index: int
    kind: BlockKind
    call_id: str | None = None
    name: str | None = None
    parts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Of a call, its arguments in JSON."""
        return "".join(self.parts)

    @property
    def arguments(self) -> dict[str, Any]:
        """Of a call, as an object. One that a limit cut off may be no JSON: nothing of it is lost."""
        return argument_object(self.text)


class Change(Enum):
    """How a block changes."""

    OPENED = "opened"
    GREW = "grew"
    CLOSED = "closed"


class BlockEvent(msgspec.Struct, gc=False):
    """One change of one block. Every token makes one: a struct is made in less time than a tuple with names.

    Attributes:
        text: the added text.
    """

    change: Change
    block: Block
    text: str = ""


@dataclass(eq=False, slots=True)
class AnswerBlocks:
    """Splits one answer into blocks while it arrives: a block ends where a part of another kind begins.

    Args:
        parser: None: all of it is text.
        reasoning: tells which tokens are reasoning; None: none.

    Attributes:
        blocks: all, in their order.
        open_block: the last one, until it ends.
    """

    _parser: ResponseParser | None
    _reasoning: ReasoningTokens | None = None
    blocks: list[Block] = field(default_factory=list)
    open_block: Block | None = None
    _reasoning_state: ReasoningState | None = field(init=False)
    _num_read_tokens: int = 0
    _text_chunks: TextChunks | None = None

    def __post_init__(self) -> None:
        self._reasoning_state = None if self._reasoning is None else self._reasoning.first

    @property
    def num_tokens(self) -> int:
        """Of the deltas that were read, and of those whose chunks were made."""
        chunks = self._text_chunks
        return self._num_read_tokens + (0 if chunks is None else chunks.num_tokens)

    @property
    def has_calls(self) -> bool:
        return any(block.kind is BlockKind.CALL for block in self.blocks)

    @property
    def num_reasoning_tokens(self) -> int:
        """Of what was read so far. The texts around reasoning do not count."""
        state = self._reasoning_state
        return 0 if state is None else state.num_reasoning_tokens

    def call_index(self, call: Block) -> int:
        """The number of calls before it."""
        return sum(block.kind is BlockKind.CALL for block in self.blocks[: call.index])

    def text_of(self, kind: BlockKind) -> str:
        """All blocks of a kind, joined."""
        return "".join(block.text for block in self.blocks if block.kind is kind)

    def text_chunks(self, make: Callable[[Block], TextChunks]) -> TextChunks | None:
        """Makes the chunks of the next deltas, which are not read then, and whose text the blocks lack. None: a delta
        may do more than add text to the open block, as the answer is parsed.

        Args:
            make: of the chunks by which a block grows; called once.
        """
        if self.open_block is None or self._parser is not None or self._reasoning is not None:
            return None
        if self._text_chunks is None:
            self._text_chunks = make(self.open_block)
        return self._text_chunks

    def read(self, delta: CompletionDelta) -> list[BlockEvent]:
        """The certain changes of a delta; the last delta also releases all text that was held back."""
        events: list[BlockEvent] = []
        self._num_read_tokens += len(delta.token_ids)
        if self._reasoning is not None:
            for token_id in delta.token_ids:
                assert self._reasoning_state is not None
                self._reasoning_state = self._reasoning.after(self._reasoning_state, token_id)
        if self._parser is None:
            if delta.text:
                self._grow(BlockKind.TEXT, delta.text, events)
            return events
        parsed = self._parser.push(delta.text)
        if delta.finish_reason is not None:
            parsed += self._parser.flush()
        for part in parsed:
            if isinstance(part, deltas.ContentText):
                self._grow(BlockKind.TEXT, part.text, events)
            elif isinstance(part, deltas.ReasoningText):
                self._grow(BlockKind.REASONING, part.text, events)
            elif isinstance(part, deltas.ToolCallStart):
                self._begin(BlockKind.CALL, events, new_call_id(), part.name)
            elif isinstance(part, deltas.ToolCallArguments):
                self._grow(BlockKind.CALL, part.text, events)
            elif isinstance(part, deltas.ToolCallEnd):
                events += self.close()
        return events

    def close(self) -> list[BlockEvent]:
        """Ends the block that is open, if any."""
        block, self.open_block = self.open_block, None
        return [] if block is None else [BlockEvent(Change.CLOSED, block)]

    def _grow(self, kind: BlockKind, text: str, events: list[BlockEvent]) -> None:
        block = self.open_block
        if block is None or block.kind is not kind:
            block = self._begin(kind, events)
        block.parts.append(text)
        events.append(BlockEvent(Change.GREW, block, text))

    def _begin(
        self,
        kind: BlockKind,
        events: list[BlockEvent],
        call_id: str | None = None,
        name: str | None = None,
    ) -> Block:
        events += self.close()
        self.open_block = Block(len(self.blocks), kind, call_id, name)
        self.blocks.append(self.open_block)
        events.append(BlockEvent(Change.OPENED, self.open_block))
        return self.open_block


def new_call_id() -> str:
    """Nine letters and digits: the form that the strictest templates (Mistral's) ask for."""
    return f"c{secrets.token_hex(4)}"
