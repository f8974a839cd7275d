"""Bytes and operations: the one place where they are written.

A multiply and an add count as two FLOPs. Only matrix products and attention are counted: norms,
rotations and activations are under 1 % of a decoder's operations.
"""

from collections.abc import Sequence
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


def layer_matrix_parameters(shape: ModelShape) -> int:
    """Weights of one layer's matrices, biases and norms left out."""
    attention = (2 * shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
    mlp = (3 if shape.gated_mlp else 2) * shape.intermediate_size
    return shape.hidden_size * (attention + mlp)


def attention_pairs(start: int, end: int, window: int | None = None) -> int:
    """(query, key) pairs of the queries at positions start .. end - 1, each of which sees itself,
    everything before it, and at most `window` positions in all."""

    def pairs_before(position: int) -> int:
        within = min(position, window) if window is not None else position
        return within * (within + 1) // 2 + (position - within) * within

    return pairs_before(end) - pairs_before(start)


def forward_flops(shape: ModelShape, start: int, end: int, num_logits: int) -> int:
    """FLOPs of one request's tokens at positions start .. end - 1, of which `num_logits` rows go
    through the head."""
    matrices = 2 * shape.num_layers * layer_matrix_parameters(shape) * (end - start)
    # q.k and p.v: a multiply and an add each, per pair, head and component.
    pairs = sum(attention_pairs(start, end, window) for window in shape.sliding_windows)
    attention = 4 * shape.num_heads * shape.head_dim * pairs
    head = 2 * shape.hidden_size * shape.vocab_size * num_logits
    return matrices + attention + head


def kv_elements_per_token(shape: ModelShape) -> int:
    """Numbers that one position adds to the KV cache: K and V of every layer."""
    return 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim


def token_passes(num_prompt_tokens: int, num_output_tokens: int, use_kv_cache: bool) -> int:
    """Tokens that pass through the model to give `num_output_tokens`.

    With the cache every position passes once, the last output token not at all; without it each
    output token costs a pass over everything before it.
    """
    prompt, output = num_prompt_tokens, num_output_tokens
    if use_kv_cache:
        return prompt + output - 1
    return prompt * output + output * (output - 1) // 2
