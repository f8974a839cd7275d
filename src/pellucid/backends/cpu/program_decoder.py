"""A decoder whose forward is a native program."""

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from pellucid.backends.base import (
    CompiledDecoder,
    KeptTokens,
    LikelyToken,
    LogitRows,
    RowQuestion,
    RowSummary,
    StepLogits,
    StepWeights,
)
from pellucid.backends.cpu.batch_slices import slices
from pellucid.backends.cpu.kv_cache import CpuKVCache
from pellucid.backends.cpu.tracing import SymbolicArray, Trace, build
from pellucid.backends.drawing import DrawTable
from pellucid.backends.native import Draw, Program, RowSet, RowSummarizer
from pellucid.backends.ops import ForwardBatch, HostArray, IntArray, KVCache
from pellucid.backends.rope_frequencies import frequency_rows
from pellucid.facts.machine import Arithmetic
from pellucid.facts.model_config import RopeConfig


def run_program(
    program: Program,
    frequencies: Sequence[HostArray],
    batch: ForwardBatch,
    kv_cache: CpuKVCache | None,
    output: HostArray,
    inputs: Sequence[HostArray] = (),
    stage_seconds: npt.NDArray[np.float64] | None = None,
    draws: Sequence[tuple[int, Draw]] = (),
) -> tuple[list[int], list[int], int]:
    """One call of `program`.

    Args:
        program: made from a trace.
        frequencies: of each of the trace's rotations.
        batch: at most as many rows as the program was made for.
        kv_cache: where the program's layers are.
        output: [T or R, width], is filled.
        inputs: [T, width] each.
        stage_seconds: [stages], is filled if given.
        draws: in order of the rows of logits that they belong to.

    Returns:
        [R] where each row of logits is largest, empty if the program does not note it; the token of
        each draw, -1 where there is none; and the bytes of experts' weights that were read.
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
        _int32(batch.state_slots),
        frequencies,
        inputs,
        None if kv_cache is None else kv_cache.native,
        None if kv_cache is None else kv_cache.states,
        stage_seconds,
        draws,
    )


def radians(rope: RopeConfig, lengths: IntArray) -> HostArray:
    """Radians per position, [T, dim / 2], or [1, dim / 2] if the same for every length [T] of text."""
    return frequency_rows(rope, lengths, np.float32)[0]


class ProgramDecoder(CompiledDecoder):
    """A decoder whose forward is a program; made by `CpuBackend.compile`.

    Args:
        trace: of the decoder's forward.
        logits: what it returned: of a part of a model without the head, the rows of all tokens.
        program: an empty program, which is built from the trace.
        quantize_activations: whether rows are rounded where they meet weights of fewer bits.
        before_step: is called once before every step; None: nothing is.
        summarizer: summarizes rows of logits for observers.
    """

    draws_tokens = True

    def __init__(
        self,
        trace: Trace,
        logits: SymbolicArray,
        program: Program,
        quantize_activations: bool,
        before_step: Callable[[], None] | None,
        summarizer: RowSummarizer,
    ) -> None:
        no_lengths = np.zeros(0, np.int32)
        # With the radians per position of those that are the same for texts of all lengths.
        self._ropes = tuple(
            (rope, radians(rope, no_lengths) if rope.trained_length is None else None)
            for rope in trace.ropes
        )
        self._inputs = tuple(trace.inputs)
        self._gives_logits = logits.rows is RowSet.LOGITS
        self._layer_weights = tuple(trace.weights[RowSet.TOKENS])
        self._head_weights = tuple(trace.weights[RowSet.LOGITS])
        self._experts = tuple(
            weight for layer in trace.experts for stack in layer for weight in stack
        )
        self._program = program
        self._quantize_activations = quantize_activations
        self._before_step = before_step
        self._summarizer = summarizer
        build(trace, logits, program)

    @property
    def vocab_size(self) -> int:
        return self._program.output_width

    @property
    def step_weights(self) -> StepWeights:
        bytes_by_arithmetic = Counter[Arithmetic]()
        for weight in (*self._layer_weights, *self._head_weights, *self._experts):
            bytes_by_arithmetic[self._arithmetic(weight.format)] += weight.num_bytes
        [(arithmetic, _)] = bytes_by_arithmetic.most_common(1)
        return StepWeights(
            sum(weight.num_bytes for weight in self._layer_weights),
            sum(weight.num_bytes for weight in self._head_weights),
            arithmetic,
            sum(weight.num_bytes for weight in self._experts),
        )

    def _arithmetic(self, weight_format: str) -> Arithmetic:
        if not self._quantize_activations or weight_format in ("f32", "f16"):
            return "f32"
        return "bf16" if weight_format == "bf16" else "int8"

    def scratch_bytes(self, max_num_batched_tokens: int) -> int:
        """Bytes that the program has allocated; longer steps are cut."""
        return self._program.scratch_bytes

    def step(
        self, batch: ForwardBatch, kv_cache: KVCache, draws: DrawTable | None = None
    ) -> StepLogits:
        assert isinstance(kv_cache, CpuKVCache)
        if self._before_step is not None:
            self._before_step()
        logits = np.empty((self._num_rows(batch), self._program.output_width), np.float32)
        native = () if draws is None else native_draws(draws)
        if len(batch.token_ids) <= self._program.max_rows:
            largest, drawn, expert_bytes = self._run(batch, kv_cache, logits, native)
            return StepLogits(logits, largest, drawn, expert_bytes)
        largest, drawn, expert_bytes, end = [], [], 0, 0
        for part in slices(batch, self._program.max_rows):
            # Slices are in order, and so are their rows of logits and what is drawn from them.
            first, end = end, end + self._num_rows(part.batch)
            own = [(row - first, draw) for row, draw in native if first <= row < end]
            part_largest, part_drawn, part_bytes = self._run(
                part.batch, kv_cache, logits[first:end], own
            )
            largest += part_largest
            drawn += part_drawn
            expert_bytes += part_bytes
        return StepLogits(logits, largest, drawn, expert_bytes)

    def _num_rows(self, batch: ForwardBatch) -> int:
        """Of the result of a batch."""
        return len(batch.logits_indices if self._gives_logits else batch.token_ids)

    def profile(self, batch: ForwardBatch, kv_cache: CpuKVCache) -> list[tuple[str, float]]:
        """Runs a step of at most `max_rows` rows. Returns the name and the seconds of each stage (the work between
        two barriers of the threads), in order."""
        names = self._program.stage_names
        seconds = np.zeros(len(names))
        logits = np.empty((len(batch.logits_indices), self._program.output_width), np.float32)
        self._run(batch, kv_cache, logits, (), seconds)
        return list(zip(names, seconds.tolist(), strict=True))

    def summarize_rows(
        self, rows: LogitRows, questions: Sequence[tuple[int, RowQuestion]]
    ) -> list[RowSummary | None]:
        return [row_summary(self._summarizer, rows[row], question) for row, question in questions]

    def _run(
        self,
        batch: ForwardBatch,
        kv_cache: CpuKVCache,
        logits: HostArray,
        draws: Sequence[tuple[int, Draw]],
        stage_seconds: npt.NDArray[np.float64] | None = None,
    ) -> tuple[list[int], list[int | None], int]:
        frequencies = [
            radians(rope, batch.rope_lens) if fixed is None else fixed
            for rope, fixed in self._ropes
        ]
        inputs = [each.rows(batch) for each in self._inputs]
        largest, drawn, expert_bytes = run_program(
            self._program, frequencies, batch, kv_cache, logits, inputs, stage_seconds, draws
        )
        return largest, [None if token_id < 0 else token_id for token_id in drawn], expert_bytes


def row_summary(
    summarizer: RowSummarizer, logits: HostArray, question: RowQuestion
) -> RowSummary | None:
    """Summarizes a row of logits [V]; None if a logit is not finite."""
    found = summarizer.summarize(logits, *question)
    if found is None:
        return None
    peak, total, weighted, rank, is_kept, everything, top_k, top_p, min_p, likeliest = found
    return RowSummary(
        peak,
        total,
        weighted,
        float(logits[question.token]),
        rank,
        is_kept,
        KeptTokens(*everything),
        KeptTokens(*top_k),
        KeptTokens(*top_p),
        KeptTokens(*min_p),
        [LikelyToken(token, float(logits[token]), is_left) for token, is_left in likeliest],
    )


def native_draws(draws: DrawTable) -> list[tuple[int, Draw]]:
    """The draws of a step for a program, each with its row."""
    columns = (draws.positions, draws.allowed, draws.forbidden, draws.texts, draws.settings)
    return [
        (row, Draw(position=position, allowed=allowed, forbidden=forbidden, text=text, **settings))
        for row, position, allowed, forbidden, text, settings in zip(
            draws.rows, *columns, strict=True
        )
    ]


def _int32(array: IntArray) -> npt.NDArray[np.int32]:
    return np.ascontiguousarray(array, np.int32)
