"""A decoder whose first layers other machines compute."""

from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from pellucid.backends.base import (
    CompiledDecoder,
    LogitRows,
    RowQuestion,
    RowSummary,
    StepLogits,
    StepWeights,
)
from pellucid.backends.cpu.batch_slices import slices
from pellucid.backends.drawing import DrawTable
from pellucid.backends.ops import ForwardBatch, HostArray, KVCache, RowSource
from pellucid.facts.kv_groups import groups_of_part
from pellucid.facts.model_config import ModelConfig
from pellucid.stages.link import StageLink
from pellucid.stages.messages import (
    ROW_TYPE,
    ROWS_TOGETHER,
    FromStage,
    Loaded,
    Rows,
    compute_message,
    row_bytes,
)
from pellucid.stages.staged_kv_cache import StagedKVCache


@dataclass(frozen=True)
class Stage:
    """A part of a model on another machine.

    Args:
        config: of the part.
        sizes: in bytes, as the stage has counted them.
    """

    link: StageLink
    config: ModelConfig
    sizes: Loaded

    @property
    def groups(self) -> list[int]:
        """The groups of layers, of the whole model, of which the stage has some."""
        return [number for number, _ in groups_of_part(self.config)]


class StagedDecoder(CompiledDecoder):
    """Sends each step through the stages, and computes the last layers and the logits itself.

    Args:
        stages: in order of their layers.
        own: the decoder of the last part.
        own_config: of that part.
    """

    def __init__(
        self, stages: Sequence[Stage], own: CompiledDecoder, own_config: ModelConfig
    ) -> None:
        self._stages = stages
        self._groups = [stage.groups for stage in stages]
        self._own = own
        self._own_groups = [number for number, _ in groups_of_part(own_config)]
        self._own_config = own_config
        self.draws_tokens = own.draws_tokens
        self.num_machines = len(stages) + 1

    @property
    def vocab_size(self) -> int:
        return self._own.vocab_size

    @property
    def step_weights(self) -> StepWeights:
        """Of all machines together."""
        own, sizes = self._own.step_weights, [stage.sizes for stage in self._stages]
        return replace(
            own,
            layer_bytes=own.layer_bytes + sum(each.layer_bytes for each in sizes),
            expert_bytes=own.expert_bytes + sum(each.expert_bytes for each in sizes),
        )

    def scratch_bytes(self, max_num_batched_tokens: int) -> int:
        """Of all machines together."""
        elsewhere = sum(stage.sizes.scratch_bytes for stage in self._stages)
        received = row_bytes(self._own_config, max_num_batched_tokens)
        return self._own.scratch_bytes(max_num_batched_tokens) + received + elsewhere

    def send(self, batch: ForwardBatch, kv_cache: KVCache) -> ForwardBatch:
        """Sends a step to the stages. What it returns is the step of this machine, with the rows on their way."""
        assert isinstance(kv_cache, StagedKVCache)
        pieces = [batch]
        if len(batch.token_ids) > ROWS_TOGETHER:
            pieces = [each.batch for each in slices(batch, ROWS_TOGETHER)]
        received = _RowsOnTheirWay(
            [self._through_stages(piece, kv_cache.number) for piece in pieces],
            self._own_config.hidden_size,
        )
        return batch_of_part(batch, self._own_groups, received)

    def step(
        self, batch: ForwardBatch, kv_cache: KVCache, draws: DrawTable | None = None
    ) -> StepLogits:
        """As `CompiledDecoder.step`: waits for the rows.

        Raises:
            BlocksLostError: a stage has gone, and with it a part of every block.
            RuntimeError: a stage could not compute the step.
        """
        assert isinstance(kv_cache, StagedKVCache)
        received = batch.received
        assert isinstance(received, _RowsOnTheirWay)
        try:
            logits = self._own.step(batch, kv_cache.own, draws)
        except BaseException:
            received.wait()  # others may get the blocks of its requests
            raise
        return replace(logits, expert_bytes=logits.expert_bytes + received.expert_bytes)

    def give_up(self, batch: ForwardBatch) -> None:
        assert isinstance(batch.received, _RowsOnTheirWay)
        batch.received.wait()

    def summarize_rows(
        self, rows: LogitRows, questions: Sequence[tuple[int, RowQuestion]]
    ) -> list[RowSummary | None]:
        return self._own.summarize_rows(rows, questions)

    def _through_stages(self, piece: ForwardBatch, cache: int) -> "Future[list[Rows]]":
        """Sends rows through all stages. The future has what each of them has made of them."""
        result: Future[list[Rows]] = Future()
        self._send(piece, cache, [], result)
        return result

    def _send(
        self, piece: ForwardBatch, cache: int, made: "list[Rows]", result: "Future[list[Rows]]"
    ) -> None:
        number, before = len(made), made[-1].rows if made else None
        message = compute_message(piece, self._groups[number], before, cache)
        reply = self._stages[number].link.ask(message)
        reply.add_done_callback(partial(self._go_on, piece, cache, made, result))

    def _go_on(
        self,
        piece: ForwardBatch,
        cache: int,
        made: "list[Rows]",
        result: "Future[list[Rows]]",
        reply: "Future[FromStage]",
    ) -> None:
        """Sends the rows of one stage to the next one. Called on the thread that reads from the first of them, in the
        order of the pieces."""
        try:
            rows = reply.result()
            assert isinstance(rows, Rows)
            made = [*made, rows]
            if len(made) < len(self._stages):
                self._send(piece, cache, made, result)
            else:
                result.set_result(made)
        except Exception as error:
            result.set_exception(error)


def batch_of_part(
    batch: ForwardBatch, groups: Sequence[int], received: RowSource | None
) -> ForwardBatch:
    """A step as the part of a model computes it that has layers of these groups.

    Args:
        received: the rows of the part before.
    """
    own = list(groups)
    return replace(
        batch,
        slot_mapping=batch.slot_mapping[own],
        block_tables=batch.block_tables[own],
        received=received,
    )


class _RowsOnTheirWay:
    """The rows of a step [T, hidden] that the stages compute piece by piece: a `RowSource`.

    Args:
        pieces: in order, of `ROWS_TOGETHER` rows but for the last.
    """

    def __init__(self, pieces: "Sequence[Future[list[Rows]]]", hidden_size: int) -> None:
        self._pieces = pieces
        self._hidden_size = hidden_size

    def __getitem__(self, rows: slice, /) -> HostArray:
        """Waits for these rows."""
        start = rows.start or 0
        first = start // ROWS_TOGETHER
        last = len(self._pieces) if rows.stop is None else -(-rows.stop // ROWS_TOGETHER)
        found = [self._rows(each.result()) for each in self._pieces[first:last]]
        joined = found[0] if len(found) == 1 else np.concatenate(found)
        offset = first * ROWS_TOGETHER
        return joined[start - offset : None if rows.stop is None else rows.stop - offset]

    def wait(self) -> None:
        """Waits for all rows, or the errors in their place."""
        wait(self._pieces)

    @property
    def expert_bytes(self) -> int:
        """Of the experts' weights that the stages have read."""
        return sum(rows.expert_bytes for piece in self._pieces for rows in piece.result())

    def _rows(self, made: Sequence[Rows]) -> HostArray:
        rows: HostArray = np.frombuffer(made[-1].rows, ROW_TYPE).reshape(-1, self._hidden_size)
        return rows
