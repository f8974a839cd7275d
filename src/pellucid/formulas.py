"""Formulas for bytes, operations and speed-ups: no other file repeats them.

A multiply and an add count as two FLOPs. Only matrix products and attention are counted: norms,
rotations and activations are under 1 % of a decoder's operations. Likewise bytes are those of matrices
and of the KV cache, each read or written once: the least that a step can move.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol


class ModelShape(Protocol):
    """The facts that the formulas take; `ModelConfig` has them."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def gated_mlp(self) -> bool: ...
    @property
    def sliding_windows(self) -> Sequence[int | None]: ...


def layer_matrices(shape: ModelShape) -> tuple[tuple[int, int], ...]:
    """(outputs, inputs) of one layer's matrices: attention's in and out, the MLP's in and out."""
    queries = shape.num_heads * shape.head_dim
    keys_and_values = 2 * shape.num_kv_heads * shape.head_dim
    inner = shape.intermediate_size
    return (
        (queries + keys_and_values, shape.hidden_size),
        (shape.hidden_size, queries),
        ((2 if shape.gated_mlp else 1) * inner, shape.hidden_size),
        (shape.hidden_size, inner),
    )


def layer_matrix_parameters(shape: ModelShape) -> int:
    """Weights of one layer's matrices, biases and norms left out."""
    return sum(num_outputs * num_inputs for num_outputs, num_inputs in layer_matrices(shape))


def attention_pairs(start: int, end: int, window: int | None = None) -> int:
    """(query, key) pairs of the queries at positions start .. end - 1, each of which sees itself,
    everything before it, and at most `window` positions in all."""

    def pairs_before(position: int) -> int:
        within = min(position, window) if window is not None else position
        return within * (within + 1) // 2 + (position - within) * within

    return pairs_before(end) - pairs_before(start)


class ForwardFlops:
    """FLOPs of requests on one model; what does not depend on the request is computed once.

    Args:
        shape: the model's.
    """

    def __init__(self, shape: ModelShape) -> None:
        self._per_token = 2 * shape.num_layers * layer_matrix_parameters(shape)
        # q.k and p.v: a multiply and an add each, per pair, head and component.
        self._per_pair = 4 * shape.num_heads * shape.head_dim
        self._layers_by_window = tuple(Counter(shape.sliding_windows).items())
        self._per_logits = 2 * shape.hidden_size * shape.vocab_size

    def __call__(self, start: int, end: int, num_logits: int) -> int:
        """Of one request's tokens at positions start .. end - 1, of which `num_logits` rows go through
        the head."""
        pairs = 0
        for window, num_layers in self._layers_by_window:
            if end - start == 1:  # decode, once for each request and step
                pairs += num_layers * (end if window is None else min(end, window))
            else:
                pairs += num_layers * attention_pairs(start, end, window)
        matrices = self._per_token * (end - start)
        return matrices + self._per_pair * pairs + self._per_logits * num_logits


def forward_flops(shape: ModelShape, start: int, end: int, num_logits: int) -> int:
    """`ForwardFlops` of one request, once."""
    return ForwardFlops(shape)(start, end, num_logits)


def weight_bytes(
    shape: ModelShape, matrix_bytes: Callable[[int, int], int], with_head: bool = True
) -> int:
    """Bytes of weights that a step reads, however many tokens it has.

    The embedding is left out, of which a step reads a row per token; where it is the head as well,
    it counts as the head.

    Args:
        matrix_bytes: bytes of a matrix of (outputs, inputs) in its format, scales included.
        with_head: whether the step computes logits at all.
    """
    layer = sum(matrix_bytes(*matrix) for matrix in layer_matrices(shape))
    head = matrix_bytes(shape.vocab_size, shape.hidden_size)
    return shape.num_layers * layer + (head if with_head else 0)


def kv_positions(start: int, end: int, window: int | None = None) -> int:
    """Positions whose K and V a layer touches for the queries at start .. end - 1: it reads those
    before `start` that some query sees, and writes those of the queries themselves."""
    first = 0 if window is None else max(0, start - window + 1)
    return end - first


def kv_bytes(shape: ModelShape, start: int, end: int, bytes_per_position: float) -> float:
    """Bytes of K and V that all layers read and write for one request's tokens at start .. end - 1.

    Args:
        bytes_per_position: of one layer, K and V, scales included.
    """
    positions = sum(kv_positions(start, end, window) for window in shape.sliding_windows)
    return positions * bytes_per_position


def expected_tokens(acceptance: float, num_drafts: int) -> float:
    """Tokens that a step gives a request whose drafts are right with probability `acceptance` each, given
    that those before are: E = (1 - a^(k + 1)) / (1 - a) (Leviathan et al. 2023)."""
    return sum(acceptance**count for count in range(num_drafts + 1))


def draft_speedup(
    acceptance: float, num_drafts: int, draft_cost: float, verify_cost: float
) -> float:
    """How many times as fast decode is with drafts: S = E / (k c + v).

    Args:
        acceptance: a, as in `expected_tokens`.
        num_drafts: k.
        draft_cost: c, of drafting one token, in steps without drafts.
        verify_cost: v, of a step that verifies k drafts, in steps without drafts.
    """
    return expected_tokens(acceptance, num_drafts) / (num_drafts * draft_cost + verify_cost)


def token_passes(num_prompt_tokens: int, num_output_tokens: int, use_kv_cache: bool) -> int:
    """Tokens that pass through the model to give `num_output_tokens`.

    With the cache every position passes once, the last output token not at all; without it each
    output token costs a pass over everything before it.
    """
    prompt, output = num_prompt_tokens, num_output_tokens
    if use_kv_cache:
        return prompt + output - 1
    return prompt * output + output * (output - 1) // 2
