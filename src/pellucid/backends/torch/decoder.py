"""A decoder on a device, run op by op."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pellucid.backends.base import LogitRows, RowQuestion, RowSummary, StepLogits
from pellucid.backends.drawing import DrawTable
from pellucid.backends.eager_decoder import EagerDecoder
from pellucid.backends.ops import Decoder, ForwardBatch, KVCache
from pellucid.backends.torch.batch import TorchBatch
from pellucid.backends.torch.device import has_doubles
from pellucid.backends.torch.draws import DRAWS_TOGETHER, NUMBERS_PER_TOKEN, draw_tokens
from pellucid.backends.torch.graphs import GraphRunner, Graphs
from pellucid.backends.torch.kv_cache import TorchKVCache
from pellucid.backends.torch.largest import ROWS_TOGETHER
from pellucid.backends.torch.memory import to_host
from pellucid.backends.torch.ops import TorchOps
from pellucid.backends.torch.summaries import SUMMARIES_TOGETHER, summarize_rows
from pellucid.backends.torch.weights import MAX_WIDENED
from pellucid.facts.model_config import ModelConfig

_F32_BYTES = 4


@dataclass(frozen=True)
class TorchLogits:
    """Rows of logits that stay on the device until they are asked for: a `LogitRows`.

    Args:
        rows: [R, V].
        largest: of each row, and the logit there.
        drawn: logits of tokens that have been drawn, by row and token.
    """

    rows: Tensor
    largest: tuple[list[int], list[float]]
    drawn: Mapping[tuple[int, int], float] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int | slice | tuple[int, int]) -> Any:
        if isinstance(index, slice):
            token_ids, logits = self.largest
            return TorchLogits(self.rows[index], (token_ids[index], logits[index]))
        if isinstance(index, int):
            return to_host(self.rows[index])
        row, token_id = index
        if self.largest[0][row] == token_id:
            return self.largest[1][row]
        if (logit := self.drawn.get(index)) is not None:
            return logit
        return float(self.rows[index])


def _on_host(largest: Tensor, num_rows: int) -> tuple[list[int], list[float]]:
    """What `find_largest` has found in the first rows, in one copy."""
    token_ids, bits = largest.cpu()[:, :num_rows]
    return token_ids.tolist(), bits.view(torch.float32).tolist()


class TorchDecoder(EagerDecoder):
    """A decoder over `TorchOps`. Tokens are drawn, and rows summarized, where the logits are; on devices without f64 by
    the sampler.

    Args:
        ops: of the decoder.
        graphs: of the device; None: it has none, or the ops ask the host.
    """

    draws_tokens = True

    def __init__(
        self,
        decoder: Decoder,
        config: ModelConfig,
        bytes_per_number: float,
        ops: TorchOps,
        graphs: Graphs | None = None,
    ) -> None:
        super().__init__(decoder, config, bytes_per_number)
        self._device = ops.device
        self._has_doubles = has_doubles(ops.device)
        self._ops = ops
        self._graphs = None if graphs is None else GraphRunner(self._computed, graphs)

    def scratch_bytes(self, max_num_batched_tokens: int) -> int:
        """An estimate of the tensors that exist at once: in the MLP; of a matrix' widened part; of a range of keys;
        and where tokens are drawn."""
        config = self._config
        per_token = 8 * self._mlp_width + 6 * config.hidden_size
        rows_together = max(DRAWS_TOGETHER, SUMMARIES_TOGETHER)
        per_vocab = max(3 * ROWS_TOGETHER, NUMBERS_PER_TOKEN * rows_together * self._has_doubles)
        per_range = max(
            (self._ops.attention_numbers(each) for each in config.attentions), default=0
        )
        numbers = (
            max_num_batched_tokens * per_token
            + 2 * MAX_WIDENED
            + per_range
            + per_vocab * config.vocab_size
        )
        return numbers * _F32_BYTES

    def step(
        self, batch: ForwardBatch, kv_cache: KVCache, draws: DrawTable | None = None
    ) -> StepLogits:
        with torch.inference_mode():
            if not self._config.is_last:
                return StepLogits(to_host(self._decoder.forward(self._there(batch), kv_cache)))
            logits, largest = self._forward(batch, kv_cache)
            if draws is None or not self._has_doubles:
                return StepLogits(
                    TorchLogits(logits, largest), largest[0], [None] * len(draws or ())
                )
            tokens = draw_tokens(logits, draws, self._ops.draws)
        known = {
            (row, each.token_id): each.logit
            for row, each in zip(draws.rows, tokens, strict=True)
            if each is not None
        }
        drawn = [None if each is None else each.token_id for each in tokens]
        return StepLogits(TorchLogits(logits, largest, known), largest[0], drawn)

    def _forward(
        self, batch: ForwardBatch, kv_cache: KVCache
    ) -> tuple[Tensor, tuple[list[int], list[float]]]:
        """Logits [R, V], and which are largest."""
        if self._graphs is not None and isinstance(kv_cache, TorchKVCache):
            results = self._graphs.run(batch, kv_cache, self._device)
            if results is not None:
                logits, found = results
                largest = _on_host(found, len(logits))
                # The next step overwrites them. The device copies while the host goes on.
                return logits.clone(), largest
        logits, found = self._computed(self._there(batch), kv_cache)
        return logits, _on_host(found, len(logits))

    def _computed(self, batch: TorchBatch, kv_cache: KVCache) -> tuple[Tensor, Tensor]:
        logits: Tensor = self._decoder.forward(batch, kv_cache)
        return logits, self._ops.find_largest(logits)

    def _there(self, batch: ForwardBatch) -> TorchBatch:
        return TorchBatch.of(batch, self._device)

    def summarize_rows(
        self, rows: LogitRows, questions: Sequence[tuple[int, RowQuestion]]
    ) -> list[RowSummary | None]:
        assert isinstance(rows, TorchLogits)
        if not self._has_doubles:
            return [None] * len(questions)
        with torch.inference_mode():
            return summarize_rows(rows.rows, questions, self._ops.draws)
