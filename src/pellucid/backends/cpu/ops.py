"""The ops on native kernels.

Given the symbolic arrays of a trace, an op records itself (`cpu/traced_ops.py`). Given arrays, it runs at once, as a
program of its own.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from inspect import Signature, signature
from typing import Any

import numpy as np
from msgspec import Struct

from pellucid.backends.cpu.kv_cache import CpuKVLayer, CpuStateLayer
from pellucid.backends.cpu.program_decoder import radians, run_program
from pellucid.backends.cpu.traced_ops import TracedOps
from pellucid.backends.cpu.tracing import SymbolicArray, SymbolicIndices, Trace, build
from pellucid.backends.native import Exchange, Program
from pellucid.backends.ops import Array, ForwardBatch, HostArray, IntArray, Ops


class CpuOps(TracedOps):
    """The ops on native kernels, in f32 between ops.

    Args:
        new_program: makes an empty program for steps of at most so many tokens.
        exchange: as in `TracedOps`.
    """

    def __init__(
        self, new_program: Callable[[int], Program], exchange: Exchange | None = None
    ) -> None:
        self._new_program = new_program
        self.exchange = exchange
        for name in Ops.__abstractmethods__:
            record = getattr(self, name)
            setattr(self, name, partial(self._call, record, signature(getattr(Ops, name))))

    def _call(
        self, record: Callable[..., Any], contract: Signature, /, *args: Any, **options: Any
    ) -> Any:
        """Calls an op, whose parameters in the contract say which arguments are rows of a step."""
        if any(
            isinstance(value, SymbolicArray | SymbolicIndices)
            for value in (*args, *options.values())
        ):
            return record(*args, **options)
        values = contract.bind(self, *args, **options).arguments
        del values["self"]
        types = {name: contract.parameters[name].annotation for name in values}
        rows = {name: value for name, value in values.items() if types[name] == Array}
        indices = {name: value for name, value in values.items() if types[name] == IntArray}
        return self._run_alone(partial(record, **values), rows, indices, values)

    def _run_alone(
        self,
        record: Callable[..., SymbolicArray | None],
        rows: Mapping[str, Array],
        indices: Mapping[str, IntArray],
        values: Mapping[str, Any],
    ) -> Array:
        """Runs a program of one op.

        Args:
            record: the op with its arguments, of which symbolic arrays replace those of a step.
            rows: arrays [T, ...], which become f32.
            indices: arrays of a batch, by their names in `ForwardBatch`.
            values: all arguments.
        """
        num_rows = len(next(iter({**rows, **indices}.values())))
        batch = values.get("batch") or _batch_of_rows(num_rows, **indices)
        layers = [each for each in values.values() if isinstance(each, CpuKVLayer | CpuStateLayer)]
        trace = Trace()
        inputs = {
            name: trace.input(_GivenRows(array), array.shape[1:]) for name, array in rows.items()
        }
        result = record(**inputs, **{name: SymbolicIndices(trace, name) for name in indices})
        program = self._new_program(max(num_rows, 1))
        build(trace, result, program)
        output = np.empty((num_rows, program.output_width), np.float32)
        run_program(
            program,
            [radians(rope, batch.rope_lens) for rope in trace.ropes],
            batch,
            layers[0].cache if layers else None,
            output,
            [each.rows(batch) for each in trace.inputs],
        )
        return output if result is None else output.reshape(num_rows, *result.shape)


class _GivenRows(Struct, frozen=True):
    """Rows [T, ...] that an op is called on."""

    array: Array

    def rows(self, batch: ForwardBatch) -> HostArray:
        """[T, width] of f32."""
        shape = len(self.array), math.prod(self.array.shape[1:])
        return np.ascontiguousarray(self.array, np.float32).reshape(shape)


def _batch_of_rows(num_rows: int, **arrays: Any) -> ForwardBatch:
    """A batch that is only rows, for ops that look at one of its arrays or none."""
    zeros, none = np.zeros(num_rows, np.int32), np.zeros(0, np.int32)
    slot_mapping = arrays.get("slot_mapping", zeros[None])
    defaults = ForwardBatch(
        token_ids=zeros,
        positions=zeros,
        rope_lens=zeros,
        slot_mapping=slot_mapping,
        query_start=np.zeros(1, np.int32),
        seq_lens=none,
        block_tables=np.zeros((len(slot_mapping), 0, 0), np.int32),
        logits_indices=none,
        state_slots=none,
    )
    return replace(defaults, **arrays)
