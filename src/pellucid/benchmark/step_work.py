"""The work of a step by kinds, in units of which each takes the same time on a machine, whatever the model."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from pellucid.backends.quantization.formats import BF16, FORMATS
from pellucid.benchmark.workloads import Prefill, Workload
from pellucid.facts import formulas
from pellucid.facts.model_config import ModelConfig
from pellucid.inputs.config import EngineConfig

# Of matrix products, by the rows that a matrix meets: kernels compute so many together.
MOST_ROWS = {"one row": 1, "few rows": 4, "some rows": 16, "many rows": 64}
PROMPTS = "prompts"  # more rows
BYTES = ("weights", "KV cache")
OPERATIONS = (
    *MOST_ROWS,
    PROMPTS,
    "between products",
    "attention",
    "attention of prompts",
    "states",
)
# Seconds each, about: Python's work on a step and on a request; the barriers and norms of a layer.
COUNTS = {"steps": 100e-6, "requests": 10e-6, "layers": 10e-6}
KINDS = (*COUNTS, *BYTES, *OPERATIONS)

Work = Mapping[str, float]  # by kind: counts, bytes or operations


class Step(NamedTuple):
    """Computes positions start .. end - 1 of each of `num_requests` requests, and a row of logits of each."""

    start: int
    end: int
    num_requests: int


def steps_of(workload: Workload, max_num_batched_tokens: int) -> list[Step]:
    """The steps in which `Session` runs a workload."""
    if isinstance(workload, Prefill):
        end = workload.num_prompt_tokens
        starts = range(0, end, max_num_batched_tokens)
        return [Step(start, min(start + max_num_batched_tokens, end), 1) for start in starts]
    positions = range(workload.depth, workload.num_positions)
    return [Step(position, position + 1, workload.batch) for position in positions]


class StepWork:
    """The work of one model's steps.

    Args:
        matrix_bytes: of a matrix of (outputs, inputs).
        kv_position_bytes: of K and V of a position in all layers.
    """

    def __init__(
        self,
        model: ModelConfig,
        matrix_bytes: Callable[[int, int], float],
        kv_position_bytes: float,
    ) -> None:
        self._model = model
        self._matrix_bytes = matrix_bytes
        self._kv_bytes = formulas.KVBytes(model, kv_position_bytes)
        self._matrices = Counter(
            each
            for layer in model.layers
            for each in formulas.layer_matrices(layer, model.hidden_size)
        )
        self._numbers_by_window = Counter[int | None]()  # of all heads
        for attention in model.attentions:
            self._numbers_by_window[attention.window] += attention.num_heads * attention.head_dim
        states = [layer.recurrence.state for layer in model.layers if layer.recurrence is not None]
        self._state_flops = sum(map(formulas.state_flops, states))

    def of(self, steps: Iterable[Step]) -> Work:
        """The work of all steps together."""
        total = dict.fromkeys(KINDS, 0.0)
        for step in steps:
            num_tokens = step.num_requests * (step.end - step.start)
            for kind, amount in self.of_tokens(num_tokens, step.num_requests).items():
                total[kind] += amount
            for kind, amount in self.of_context(step.start, step.end).items():
                total[kind] += step.num_requests * amount
        return total

    def of_tokens(self, num_tokens: int, num_requests: int) -> Work:
        """What a step of so many tokens of so many requests does, wherever in their texts these are."""
        work = defaultdict[str, float](float)
        work.update(steps=1, requests=num_requests, layers=len(self._model.layers))
        work["states"] += num_tokens * self._state_flops
        for each, count in self._matrices.items():
            # Of n experts, of which each token chooses k, a step reads n (1 - (1 - k/n)^T).
            share = each.num_active / each.num_matrices
            met = each.num_matrices * (1 - (1 - share) ** num_tokens)
            size = each.num_outputs, each.num_inputs
            work["weights"] += count * met * self._matrix_bytes(*size)
            rows = num_tokens * each.num_active / met
            work[_products(rows)] += 2 * count * met * rows * size[0] * size[1]
            # Norms, activations and sums: of each row that goes in, and of each that comes out.
            work["between products"] += count * met * rows * sum(size)
        if self._model.is_last:
            head = self._model.vocab_size, self._model.hidden_size
            work["weights"] += self._matrix_bytes(*head)
            work[_products(num_requests)] += 2 * num_requests * head[0] * head[1]
        return work

    def of_context(self, start: int, end: int) -> Work:
        """What a step does besides for the texts before, of one request whose positions start .. end - 1 it
        computes."""
        is_decode = end - start == 1
        return {
            "KV cache": self._kv_bytes(start, end),
            "attention" if is_decode else "attention of prompts": self._attention_flops(start, end),
        }

    def _attention_flops(self, start: int, end: int) -> int:
        """q.k and p.v, a multiply and an add each, per pair, head and component."""
        return sum(
            4 * numbers * formulas.attention_pairs(start, end, window)
            for window, numbers in self._numbers_by_window.items()
        )


def _products(num_rows: float) -> str:
    """The kind of a product of a matrix with so many rows."""
    return next((kind for kind, most in MOST_ROWS.items() if num_rows <= most), PROMPTS)


def model_work(settings: EngineConfig, model: ModelConfig, weight_bytes: float) -> StepWork:
    """Of a model whose weights take so many bytes, in the formats that the settings say."""
    bytes_of = FORMATS.get(settings.quantization, BF16).num_bytes
    scale = weight_bytes / formulas.stored_weight_bytes(model, bytes_of)
    position = formulas.kv_position_bytes(model, settings.kv_cache_dtype)
    return StepWork(model, lambda *size: scale * bytes_of(*size), position)
