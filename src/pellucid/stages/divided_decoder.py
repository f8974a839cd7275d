"""A decoder of which several processes compute a share of each matrix product."""

from collections.abc import Sequence
from concurrent.futures import Future

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
from pellucid.stages.messages import FromStage, Rows, compute_message
from pellucid.stages.repeated_kv_cache import RepeatedKVCache


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
        message = compute_message(batch, range(len(batch.block_tables)), None)
        asked = ask_all(self._links, lambda _: message)
        for each in asked:
            each.add_done_callback(self._stop_if_failed)
        try:
            logits = self._own.step(batch, kv_cache.own, draws)
        except BaseException:
            self._backend.stop_waiting()
            for link, each in zip(self._links, asked, strict=True):
                if not each.done():
                    link.close()  # which ends that rank's step
            self._raise_loss(asked)
            raise
        for each in asked:
            reply_of(each, Rows)
        return logits

    def summarize_rows(
        self, rows: LogitRows, questions: Sequence[tuple[int, RowQuestion]]
    ) -> list[RowSummary | None]:
        return self._own.summarize_rows(rows, questions)

    def _stop_if_failed(self, reply: "Future[FromStage]") -> None:
        if reply.exception() is not None:
            self._backend.stop_waiting()

    def _raise_loss(self, asked: "Sequence[Future[FromStage]]") -> None:
        """Says which rank has gone, where that is why this process could not go on."""
        for each in asked:
            if each.done() and isinstance(error := each.exception(), BlocksLostError):
                raise error
