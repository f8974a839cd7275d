"""A program of native kernels, and a decoder whose forward is one."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pellucid.backends.base import (
    Array,
    ForwardBatch,
    IntArray,
    KVCache,
    StepDecoder,
    StepLogits,
)
from pellucid.backends.batch_slices import slices
from pellucid.backends.cpu_kv_cache import CpuKVCache
from pellucid.backends.native import Program
from pellucid.backends.rope_frequencies import depends_on_length
from pellucid.backends.tracing import SymbolicArray, Trace, build
from pellucid.config import RopeConfig


def run_program(
    program: Program,
    frequencies: Sequence[Array],
    batch: ForwardBatch,
    kv_cache: CpuKVCache | None,
    output: Array,
    inputs: Sequence[Array] = (),
    stage_seconds: npt.NDArray[np.float64] | None = None,
) -> list[int]:
    """One call of `program`.

    Args:
        program: made from a trace.
        frequencies: of each of the trace's rotations.
        batch: at most as many rows as the program was made for.
        kv_cache: where the program's layers are.
        output: [T or R, width], is filled.
        inputs: [T, width] each.
        stage_seconds: [stages], is filled if given.

    Returns:
        [R] where each row of logits is largest; empty if the program does not note it.
    """
    return program.run(
        output,
        _int32(batch.token_ids),
        _int32(batch.positions),
        np.ascontiguousarray(batch.slot_mapping, np.int64),
        _int32(batch.query_start),
        _int32(batch.seq_lens),
        _int32(batch.block_tables),
        _int32(batch.logits_indices),
        frequencies,
        inputs,
        None if kv_cache is None else kv_cache.native,
        stage_seconds,
    )


class Frequencies(Protocol):
    """Radians per position."""

    def __call__(self, rope: RopeConfig, lengths: IntArray) -> Array:
        """[T, dim / 2], or [1, dim / 2] if the same for every length [T] of text."""
        ...


class CompiledDecoder(StepDecoder):
    """A decoder whose forward is a program; made by `CpuBackend.compile`.

    Args:
        trace: of the decoder's forward.
        logits: what it returned.
        program: empty; is made from the trace.
        frequencies: of a rotation.

    Attributes:
        weights: the matrices that a step multiplies with, in their order; the last one is the head.
    """

    def __init__(
        self, trace: Trace, logits: SymbolicArray, program: Program, frequencies: Frequencies
    ) -> None:
        self._frequencies = frequencies
        no_lengths = np.zeros(0, np.int32)
        # With the radians per position of those that are the same for texts of all lengths.
        self._ropes = tuple(
            (rope, None if depends_on_length(rope) else frequencies(rope, no_lengths))
            for rope in trace.ropes
        )
        self.weights = tuple(trace.weights)
        self._program = program
        build(trace, logits, program)

    @property
    def scratch_bytes(self) -> int:
        """Memory for what lies between ops."""
        return self._program.scratch_bytes

    def forward(self, batch: ForwardBatch, kv_cache: KVCache) -> Array:
        """Logits [R, V] of the rows `batch.logits_indices`."""
        return self.step(batch, kv_cache).rows

    def step(self, batch: ForwardBatch, kv_cache: KVCache) -> StepLogits:
        assert isinstance(kv_cache, CpuKVCache)
        logits = np.empty((len(batch.logits_indices), self._program.output_width), np.float32)
        if len(batch.token_ids) <= self._program.max_rows:
            return StepLogits(logits, self._run(batch, kv_cache, logits))
        largest = np.empty(len(logits), np.int64)
        for part in slices(batch, self._program.max_rows):
            rows = np.empty((len(part.logits_rows), logits.shape[1]), np.float32)
            largest[part.logits_rows] = self._run(part.batch, kv_cache, rows)
            logits[part.logits_rows] = rows
        return StepLogits(logits, largest.tolist())

    def profile(self, batch: ForwardBatch, kv_cache: CpuKVCache) -> list[tuple[str, float]]:
        """Runs a step of at most `max_rows` rows; the name and the seconds of each stage, that is of
        what runs between two meetings of the threads, in order."""
        names = self._program.stage_names
        seconds = np.zeros(len(names))
        logits = np.empty((len(batch.logits_indices), self._program.output_width), np.float32)
        self._run(batch, kv_cache, logits, seconds)
        return list(zip(names, seconds.tolist(), strict=True))

    def _run(
        self,
        batch: ForwardBatch,
        kv_cache: CpuKVCache,
        logits: Array,
        stage_seconds: npt.NDArray[np.float64] | None = None,
    ) -> list[int]:
        frequencies = [
            self._frequencies(rope, batch.rope_lens) if fixed is None else fixed
            for rope, fixed in self._ropes
        ]
        return run_program(
            self._program, frequencies, batch, kv_cache, logits, stage_seconds=stage_seconds
        )


def _int32(array: IntArray) -> npt.NDArray[np.int32]:
    return np.ascontiguousarray(array, np.int32)
