"""A decoder of which several processes compute a share of each matrix product."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from pellucid.backends.base import (
    Backend,
    BlocksLostError,
    CompiledDecoder,
    LogitRows,
    RowQuestion,
    RowSummary,
    StepLogits,
    StepWeights,
)
from pellucid.backends.drawing import DrawTable
from pellucid.backends.ops import ForwardBatch, KVCache
from pellucid.stages.divided_kv_cache import DividedKVCache
from pellucid.stages.link import StageLink, ask_all, reply_of
from pellucid.stages.messages import Compute, FromStage, Rows, compute_message
from pellucid.stages.repeated_kv_cache import RepeatedKVCache

Result = TypeVar("Result")


class DividedDecoder(CompiledDecoder):
    """Tells the other ranks of each step, and computes it together with them: what a rank has computed of a product
    the others get within the step.

    Args:
        links: to the other ranks.
        own: this process's, with its share of the weights.
        backend: its own.
    """

    def __init__(self, links: Sequence[StageLink], own: CompiledDecoder, backend: Backend) -> None:
        self._links = links
        self._own = own
        self._backend = backend
        self.draws_tokens = own.draws_tokens

    @property
    def vocab_size(self) -> int:
        return self._own.vocab_size

    @property
    def step_weights(self) -> StepWeights:
        """Of this process: the others read theirs at the same time."""
        return self._own.step_weights

    def scratch_bytes(self, max_num_batched_tokens: int) -> int:
        """Of each rank."""
        return self._own.scratch_bytes(max_num_batched_tokens)

    def step(
        self, batch: ForwardBatch, kv_cache: KVCache, draws: DrawTable | None = None
    ) -> StepLogits:
        """As `CompiledDecoder.step`.

        Raises:
            BlocksLostError: a rank has gone: no later step can be computed.
            RuntimeError: a rank could not compute the step.
        """
        assert isinstance(kv_cache, DividedKVCache | RepeatedKVCache)
        message = compute_message(batch, range(len(batch.block_tables)), None, kv_cache.number)
        own = partial(self._own.step, batch, kv_cache.own, draws)
        return compute_together(self._links, message, self._backend, own)

    def summarize_rows(
        self, rows: LogitRows, questions: Sequence[tuple[int, RowQuestion]]
    ) -> list[RowSummary | None]:
        return self._own.summarize_rows(rows, questions)


def compute_together(
    links: Sequence[StageLink], message: Compute, backend: Backend, own: Callable[[], Result]
) -> Result:
    """What this process computes of a step while the other ranks compute theirs.

    Args:
        links: to the other ranks.
        message: the step.
        backend: of this process.
        own: computes the step here.

    Raises:
        BlocksLostError: a rank has gone.
        RuntimeError: a rank could not compute the step.
    """

    def stop_if_failed(reply: "Future[FromStage]") -> None:
        if reply.exception() is not None:
            backend.stop_waiting()

    asked = ask_all(links, lambda _: message)
    for each in asked:
        each.add_done_callback(stop_if_failed)
    try:
        result = own()
    except BaseException:
        backend.stop_waiting()
        for link, each in zip(links, asked, strict=True):
            if not each.done():
                link.close()  # which ends that rank's step
        _raise_loss(asked)
        raise
    for each in asked:
        reply_of(each, Rows)
    return result


def _raise_loss(asked: "Sequence[Future[FromStage]]") -> None:
    """Says which rank has gone, where that is why this process could not go on."""
    for each in asked:
        if each.done() and isinstance(error := each.exception(), BlocksLostError):
            raise error
