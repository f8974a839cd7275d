"""An answer as the blocks that Anthropic's and OpenAI's Responses protocols have: texts, reasoning, calls."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum


class BlockKind(Enum):
    TEXT = "text"
    REASONING = "reasoning"
    CALL = "call"


@dataclass(frozen=True)
class Part:
    """What a delta adds to one block.

    Attributes:
        kind: of the block.
        text: of a call, of its arguments in JSON.
        call_id: of a call's first part; it begins a block.
        name: of the function, with `call_id`.
    """

    kind: BlockKind
    text: str
    call_id: str | None = None
    name: str | None = None


@dataclass
class Block:
    """One block of an answer, so far."""

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
    """Makes blocks of parts: one ends where a part of another kind, or another call, begins.

    Attributes:
        blocks: all, in their order.
    """

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._open: Block | None = None

    def push(self, parts: Iterable[Part]) -> Iterator[BlockEvent]:
        for part in parts:
            block = self._open
            if block is None or block.kind is not part.kind or part.call_id is not None:
                yield from self.close()
                block = Block(len(self.blocks), part.kind, "", part.call_id, part.name)
                self.blocks.append(block)
                self._open = block
                yield BlockEvent(Change.OPENED, block)
            if part.text:
                block.text += part.text
                yield BlockEvent(Change.GREW, block, part.text)

    def close(self) -> Iterator[BlockEvent]:
        """Ends the block that is open, if any."""
        if self._open is not None:
            yield BlockEvent(Change.CLOSED, self._open)
            self._open = None


def text_parts(text: str) -> list[Part]:
    """The parts of an answer that is nothing but text."""
    return [Part(BlockKind.TEXT, text)] if text else []
