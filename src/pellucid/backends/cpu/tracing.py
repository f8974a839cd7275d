"""Traces a decoder's forward: records the ops on its arrays as a list of instructions for a program.

A forward is run once on symbolic arrays. They know their shape and what may be done with arrays in a
decoder: `+`, slicing, `.reshape`, and ops, which a backend records.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

import numpy as np
from msgspec import Struct

from pellucid.backends.native import (
    Exchange,
    LinearWeights,
    Program,
    ProgramAttention,
    ProgramExperts,
    RowSet,
)
from pellucid.backends.ops import ForwardBatch, HostArray
from pellucid.backends.rope_frequencies import rope_frequencies
from pellucid.backends.row_table import RowTable, embed_rows
from pellucid.facts.model_config import RopeConfig, RopeGrowth

BufferView: TypeAlias = tuple[int, int]  # buffer of a program, first column


class Value(Struct, frozen=True, eq=False):
    """Rows that one instruction writes."""

    rows: RowSet
    width: int  # floats


@dataclass(frozen=True)
class Operand:
    """Columns of a value: `width` from `column` on."""

    value: Value
    column: int
    width: int

    def overlaps(self, other: "Operand") -> bool:
        return (
            self.value is other.value
            and self.column < other.column + other.width
            and other.column < self.column + self.width
        )


class Heads(Struct, frozen=True):
    """The shape of an attention, and the longest sequence that it supports."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_seq_len: int


class ProgramBuilder:
    """A program that is being built, and its attention."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._attention: dict[Heads, ProgramAttention] = {}
        self._experts: dict[tuple[int, int], ProgramExperts] = {}

    def attention(self, heads: Heads) -> ProgramAttention:
        if heads not in self._attention:
            self._attention[heads] = ProgramAttention(
                self.program,
                max_requests=self.program.max_rows,  # each has a row
                max_seq_len=heads.max_seq_len,
                num_heads=heads.num_heads,
                num_kv_heads=heads.num_kv_heads,
                head_dim=heads.head_dim,
            )
        return self._attention[heads]

    def experts(
        self,
        num_experts: int,
        num_chosen: int,
        exchange: Exchange | None = None,
        starts: Sequence[int] = (),
    ) -> ProgramExperts:
        sizes = num_experts, num_chosen
        if sizes not in self._experts:
            self._experts[sizes] = ProgramExperts(self.program, *sizes, exchange, starts)
        return self._experts[sizes]


# Adds the instruction to a program, its inputs and its output being in these places.
Emit: TypeAlias = Callable[[ProgramBuilder, Sequence[BufferView], BufferView], None]


@dataclass(frozen=True)
class Instruction:
    """One op.

    Args:
        name: of the op.
        inputs: what it reads.
        output: what it writes; None where that is the KV cache.
        emit: appends it to a program.
        can_overwrite: whether the output may take the place of the first input.
        accumulate: as `emit`, but adds to the output instead of overwriting it; None if the op cannot.
    """

    name: str
    inputs: tuple[Operand, ...]
    output: Operand | None
    emit: Emit
    can_overwrite: bool = False
    accumulate: Emit | None = None


class SymbolicIndices(Struct, frozen=True, eq=False):
    """An array of a step's batch, which a decoder passes to ops without reading it."""

    trace: "Trace"
    name: str  # in ForwardBatch


class SymbolicArray(Struct, frozen=True, eq=False):
    """An array [T or R, *shape] of a forward that is being traced."""

    trace: "Trace"
    operand: Operand
    shape: tuple[int, ...]  # without the rows

    @property
    def rows(self) -> RowSet:
        return self.operand.value.rows

    def __add__(self, other: "SymbolicArray") -> "SymbolicArray":
        assert self.shape == other.shape and self.rows == other.rows
        rows, width = self.rows, self.operand.width
        return self.trace.record(
            "add",
            [self, other],
            self.shape,
            lambda to, x, y: to.program.add(rows, x[0], x[1], width, y),
            can_overwrite=True,
        )

    def __getitem__(self, key: Any) -> "SymbolicArray":
        """x[:, start:stop], or the rows `batch.logits_indices`."""
        if isinstance(key, SymbolicIndices):
            assert key.name == "logits_indices"
            if self.rows is RowSet.LOGITS:
                return self
            width = self.operand.width
            return self.trace.record(
                "gather",
                [self],
                self.shape,
                lambda to, x, y: to.program.gather(x[0], width, y),
                rows=RowSet.LOGITS,
            )
        all_rows, columns = key
        start, stop, step = columns.indices(self.shape[0])
        assert all_rows == slice(None) and step == 1
        size = self.operand.width // self.shape[0]  # floats of one index of the sliced axis
        part = replace(
            self.operand, column=self.operand.column + start * size, width=(stop - start) * size
        )
        return SymbolicArray(self.trace, part, (stop - start, *self.shape[1:]))

    def reshape(self, num_rows: int, *shape: int) -> "SymbolicArray":
        assert num_rows == -1 and math.prod(shape) == self.operand.width
        return SymbolicArray(self.trace, self.operand, shape)


class StepInput(Protocol):
    """Rows that a step gives to a program."""

    def rows(self, batch: ForwardBatch) -> HostArray:
        """[T, width] f32."""
        ...


class LookUp(Struct, frozen=True):
    """Rows of a table that a step needs, times `scale`.

    Args:
        indices: the array of `ForwardBatch` that has their numbers.
    """

    table: RowTable
    indices: str
    scale: float

    def rows(self, batch: ForwardBatch) -> HostArray:
        return embed_rows(self.table, getattr(batch, self.indices), self.scale)


class ReceivedRows:
    """Rows that the part of the model before this one has computed."""

    def rows(self, batch: ForwardBatch) -> HostArray:
        assert batch.received is not None
        return np.ascontiguousarray(batch.received[:], np.float32)


class Trace:
    """Instructions in the order in which a forward calls for them."""

    def __init__(self) -> None:
        self.instructions: list[Instruction] = []
        self.ropes: dict[RopeConfig, SymbolicArray] = {}  # cos and sin of each, in order of use
        self._ropes_of_logits: dict[RopeConfig, SymbolicArray] = {}
        # Of the products with these rows, in order of use.
        self.weights: dict[RowSet, list[LinearWeights]] = {RowSet.TOKENS: [], RowSet.LOGITS: []}
        self.experts: list[tuple[Sequence[LinearWeights], ...]] = []  # gate, up, down of each layer
        self.inputs: list[StepInput] = []  # of the program, in order

    def record(
        self,
        name: str,
        inputs: Iterable[SymbolicArray],
        shape: Sequence[int],
        emit: Emit,
        *,
        rows: RowSet | None = None,
        can_overwrite: bool = False,
        accumulate: Emit | None = None,
    ) -> SymbolicArray:
        """Adds an instruction and returns its result, [rows, *shape].

        Args:
            rows: left out, those of the first input.
        """
        operands = tuple(array.operand for array in inputs)
        value = Value(operands[0].value.rows if rows is None else rows, math.prod(shape))
        output = Operand(value, 0, value.width)
        self.instructions.append(
            Instruction(name, operands, output, emit, can_overwrite, accumulate)
        )
        return SymbolicArray(self, output, tuple(shape))

    def record_effect(self, name: str, inputs: Iterable[SymbolicArray], emit: Emit) -> None:
        """Adds an instruction that writes the KV cache."""
        operands = tuple(array.operand for array in inputs)
        self.instructions.append(Instruction(name, operands, None, emit))

    def input(self, source: StepInput, shape: tuple[int, ...]) -> SymbolicArray:
        """Rows that each step gives to the program, [T, *shape]."""
        width, index = math.prod(shape), len(self.inputs)
        self.inputs.append(source)
        return self.record(
            "input",
            [],
            shape,
            lambda to, _, y: to.program.input(index, width, y),
            rows=RowSet.TOKENS,
        )

    def look_up(self, table: RowTable, indices: str, scale: float) -> SymbolicArray:
        """Rows of a table outside of the program."""
        _, width = table.shape
        return self.input(LookUp(table, indices, scale), (width,))

    def rotations(self, rope: RopeConfig, rows: RowSet) -> SymbolicArray:
        """cos and sin [T or R, dim] of the positions of rows, computed once for all that rotate."""
        if rows is RowSet.LOGITS:
            if rope not in self._ropes_of_logits:
                all_rows = self.rotations(rope, RowSet.TOKENS)
                self._ropes_of_logits[rope] = all_rows[SymbolicIndices(self, "logits_indices")]
            return self._ropes_of_logits[rope]
        if rope not in self.ropes:
            index = len(self.ropes)
            _, factor = rope_frequencies(rope, 0)  # the factor is the same for all lengths
            growth = rope.growth or RopeGrowth(0.0, 1)
            beta, period = growth.beta, growth.period
            self.ropes[rope] = self.record(
                "rotations",
                [],
                (rope.dim,),
                lambda to, _, y: to.program.rotations(index, rope.dim, factor, beta, period, y),
                rows=RowSet.TOKENS,
            )
        return self.ropes[rope]


class SymbolicBatch(ForwardBatch):
    """The batch of a forward that is being traced: its arrays know which rows they have."""

    def logits_batch(self) -> ForwardBatch:
        return self


def symbolic_batch(trace: Trace) -> ForwardBatch:
    """The batch of a traced forward."""
    arrays: dict[str, Any] = {
        name: SymbolicIndices(trace, name) for name in ForwardBatch.__dataclass_fields__
    }
    return SymbolicBatch(**arrays)


# -- from instructions to a program ---------------------------------------------------------------

NOWHERE: BufferView = (-1, 0)


class Placed(Struct, frozen=True):
    """Instructions, some of which overwrite an array that no later instruction reads.

    Args:
        instructions: in order.
        places: for a value without its own memory, the columns of another value where it is stored.
    """

    instructions: tuple[Instruction, ...]
    places: Mapping[Value, Operand]

    def resolve(self, operand: Operand) -> Operand:
        """The columns in the value that owns the memory."""
        while (place := self.places.get(operand.value)) is not None:
            operand = Operand(place.value, place.column + operand.column, operand.width)
        return operand


def place(instructions: Sequence[Instruction], result: Value | None) -> Placed:
    """Lets residuals be added where products are written, and outputs take the place of inputs.

    Args:
        instructions: of a trace.
        result: the program's result, which has its own memory.
    """
    places: dict[Value, Operand] = {}
    kept: list[Instruction] = []
    reads = _Reads(instructions)
    for index, instruction in enumerate(instructions):
        if kept and (target := _residual(kept[-1], instruction, index, reads)) is not None:
            product = kept.pop()
            assert instruction.output is not None and product.accumulate is not None
            kept.append(replace(product, output=target, emit=product.accumulate))
            places[instruction.output.value] = target
            continue
        if _may_overwrite(instruction, index, reads):
            assert instruction.output is not None
            first, value = instruction.inputs[0], instruction.output.value
            if value is not result or first.value.width == value.width:
                places[value] = replace(first, width=value.width)
        kept.append(instruction)
    return Placed(tuple(kept), places)


class _Reads:
    """Which instructions read each value: a trace has thousands of operands, a value few readers."""

    def __init__(self, instructions: Sequence[Instruction]) -> None:
        self._of_value: dict[Value, list[tuple[int, Operand]]] = defaultdict(list)
        for index, instruction in enumerate(instructions):
            for operand in instruction.inputs:
                self._of_value[operand.value].append((index, operand))

    def is_read_after(self, index: int, columns: Operand) -> bool:
        """Whether an instruction behind the one at `index` reads any of these columns."""
        return any(
            reader > index and operand.overlaps(columns)
            for reader, operand in self._of_value.get(columns.value, ())
        )


def _residual(
    product: Instruction, instruction: Instruction, index: int, reads: _Reads
) -> Operand | None:
    """Where `product` may add itself, if `instruction` is x + product and both end there."""
    if instruction.name != "add" or product.accumulate is None or product.output is None:
        return None
    x, added = instruction.inputs
    dead = not (reads.is_read_after(index, x) or reads.is_read_after(index, added))
    reads_x = any(operand.overlaps(x) for operand in product.inputs)
    return x if added == product.output and dead and not reads_x else None


def _may_overwrite(instruction: Instruction, index: int, reads: _Reads) -> bool:
    if not instruction.can_overwrite:
        return False
    first, *others = instruction.inputs
    return not any(operand.overlaps(first) for operand in others) and not reads.is_read_after(
        index, first
    )


def build(trace: Trace, result: SymbolicArray | None, program: Program) -> None:
    """Puts a trace into an empty program, which gives the rows of `result`, if any."""
    placed = place(trace.instructions, None if result is None else result.operand.value)
    builder = ProgramBuilder(program)
    buffers: dict[Value, int] = {}

    def view(operand: Operand) -> BufferView:
        operand = placed.resolve(operand)
        value = operand.value
        if value not in buffers:
            buffers[value] = program.add_buffer(value.rows, value.width)
        return buffers[value], operand.column

    for instruction in placed.instructions:
        inputs = [view(operand) for operand in instruction.inputs]
        output = NOWHERE if instruction.output is None else view(instruction.output)
        instruction.emit(builder, inputs, output)
    if result is None:
        program.finish(None)
    else:
        buffer, column = view(result.operand)
        assert column == 0 and placed.resolve(result.operand).value.width == result.operand.width
        program.finish(buffer)
