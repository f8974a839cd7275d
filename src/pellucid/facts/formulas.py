"""Formulas for bytes, operations and speed-ups: no other file repeats them.

A multiply and an add count as two FLOPs. Only matrix products and attention are counted: norms,
rotations and activations are under 1 % of a decoder's operations. Likewise bytes are those of matrices
and of the KV cache, each read or written once: the least that a step can move.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from msgspec import Struct

from pellucid.facts.kv_formats import find_kv_format
from pellucid.facts.model_config import AttentionConfig, LayerConfig, ModelConfig, StateShape

# Rows of a matrix that native kernels compute together: a matrix is cut between them.
PANEL_OUTPUTS = 32


class LayerMatrices(NamedTuple):
    """Matrices of one shape in a layer.

    Attributes:
        num_outputs: rows of each.
        num_inputs: columns of each.
        num_matrices: of this shape; more than one are experts.
        num_active: how many of them a token passes.
    """

    num_outputs: int
    num_inputs: int
    num_matrices: int = 1
    num_active: int = 1


def layer_matrices(layer: LayerConfig, hidden_size: int) -> Iterator[LayerMatrices]:
    """One layer's matrices: those of attention or of the recurrence, the MLP's in and out, the router, the
    experts' in and out, those of its own embeddings."""
    attention, mlp, experts = layer.attention, layer.mlp, layer.experts
    if attention is not None:
        queries = attention.num_heads * attention.head_dim
        keys = attention.num_kv_heads * attention.head_dim
        keys_and_values = keys if attention.values_are_keys else 2 * keys
        if attention.shared_kv_layer is not None:
            keys_and_values = 0
        gates = queries if attention.gated_output else 0
        yield LayerMatrices(queries + gates + keys_and_values, hidden_size)
        yield LayerMatrices(hidden_size, queries)
    if layer.recurrence is not None:
        for shape in layer.recurrence.matrix_shapes(hidden_size):
            yield LayerMatrices(*shape)
    if mlp is not None:
        yield LayerMatrices((2 if mlp.gated else 1) * mlp.intermediate_size, hidden_size)
        yield LayerMatrices(hidden_size, mlp.intermediate_size)
    if experts is not None:
        counts = experts.num_experts, experts.num_chosen
        yield LayerMatrices(experts.num_experts, hidden_size)
        if experts.shared_gate:
            yield LayerMatrices(1, hidden_size)
        yield LayerMatrices(2 * experts.intermediate_size, hidden_size, *counts)
        yield LayerMatrices(hidden_size, experts.intermediate_size, *counts)
    if layer.embedding_size:
        # Its part of the projection that all layers' embeddings share, its gate, and the way back.
        yield LayerMatrices(2 * layer.embedding_size, hidden_size)
        yield LayerMatrices(hidden_size, layer.embedding_size)


def matrix_parameters(shape: ModelConfig) -> int:
    """Weights of the matrices of all layers, biases and norms left out."""
    return sum(
        each.num_matrices * each.num_outputs * each.num_inputs
        for layer in shape.layers
        for each in layer_matrices(layer, shape.hidden_size)
    )


def embedding_parameters(shape: ModelConfig) -> int:
    """Numbers of the embedding, of the head where that is another matrix, and of the layers' own embeddings."""
    num_matrices = 1 if shape.tie_word_embeddings else 2
    of_layers = shape.layer_vocab_size * sum(layer.embedding_size for layer in shape.layers)
    return num_matrices * shape.vocab_size * shape.hidden_size + of_layers


def active_matrix_parameters(shape: ModelConfig) -> int:
    """Of the `matrix_parameters` those that a token passes: of the experts, the chosen ones."""
    return _active_parameters(shape, shape.layers)


def _active_parameters(shape: ModelConfig, layers: Sequence[LayerConfig]) -> int:
    return sum(
        each.num_active * each.num_outputs * each.num_inputs
        for layer in layers
        for each in layer_matrices(layer, shape.hidden_size)
    )


def attention_pairs(start: int, end: int, window: int | None = None) -> int:
    """(query, key) pairs of the queries at positions start .. end - 1, each of which sees itself,
    everything before it, and at most `window` positions in all."""
    # Of the queries before `start`, and before `end`: those that see all, and those that see a whole window.
    wide = start if window is None else min(start, window)
    ends = end if window is None else min(end, window)
    triangles = ends * (ends + 1) // 2 - wide * (wide + 1) // 2
    return triangles + (end - ends) * ends - (start - wide) * wide


class ForwardFlops:
    """FLOPs of requests on one model; what does not depend on the request is computed once.

    Attributes:
        per_token: of a token in all matrices, and in recurrent states.
        per_logits: of a row with logits, beside those of its token.
        per_pair_by_window: of a (query, key) pair, by the window of the layers that all rows pass.
        per_pair_of_logits_by_window: the same in the layers that rows with logits alone pass.
    """

    def __init__(self, shape: ModelConfig) -> None:
        first = shape.first_without_kv
        self.per_token = 2 * _active_parameters(shape, shape.layers[:first])
        self.per_logits = 2 * shape.hidden_size * shape.vocab_size
        self.per_logits += 2 * _active_parameters(shape, shape.layers[first:])
        # q.k and p.v: a multiply and an add each, per pair, head and component. By window, of layers
        # that all rows pass, and of those that rows with logits pass.
        per_pair, per_pair_of_logits = Counter[int | None](), Counter[int | None]()
        for index, layer in enumerate(shape.layers):
            if (attention := layer.attention) is not None:
                counted = per_pair if index < first else per_pair_of_logits
                counted[attention.window] += 4 * attention.num_heads * attention.head_dim
            elif layer.recurrence is not None:
                self.per_token += state_flops(layer.recurrence.state)
        self.per_pair_by_window = tuple(per_pair.items())
        self.per_pair_of_logits_by_window = tuple(per_pair_of_logits.items())

    def __call__(self, start: int, end: int, num_logits: int) -> int:
        """Of one request's tokens at positions start .. end - 1, of which the last `num_logits` rows go
        through the head."""
        attention = 0
        for window, per_pair in self.per_pair_by_window:
            if end - start == 1:  # decode, once for each request and step
                attention += per_pair * (end if window is None else min(end, window))
            else:
                attention += per_pair * attention_pairs(start, end, window)
        for window, per_pair in self.per_pair_of_logits_by_window:
            attention += per_pair * attention_pairs(end - num_logits, end, window)
        return self.per_token * (end - start) + attention + self.per_logits * num_logits


def state_flops(state: StateShape) -> int:
    """Of one token: each number of a head's matrix takes part in a product with the key, one with the value
    and one with the query."""
    return 6 * state.num_heads * state.key_dim * state.value_dim


def state_bytes(shape: ModelConfig) -> int:
    """Bytes of the f32 states of one sequence, in all layers that have one."""
    return 4 * sum(state.num_numbers for state in shape.states)


def forward_flops(shape: ModelConfig, start: int, end: int, num_logits: int) -> int:
    """`ForwardFlops` of one request, once."""
    return ForwardFlops(shape)(start, end, num_logits)


def weight_bytes(
    shape: ModelConfig, matrix_bytes: Callable[[int, int], int], with_head: bool = True
) -> int:
    """Bytes of weights that a step reads, however many tokens it has: of experts, all of them.

    The embedding is left out, of which a step reads a row per token; where it is the head as well,
    it counts as the head.

    Args:
        matrix_bytes: bytes of a matrix of (outputs, inputs) in its format, scales included.
        with_head: whether the step computes logits at all; without them it does not pass the last layers
            that keep nothing.
    """
    layers = sum(
        each.num_matrices * matrix_bytes(each.num_outputs, each.num_inputs)
        for layer in shape.layers[: None if with_head else shape.first_without_kv]
        for each in layer_matrices(layer, shape.hidden_size)
    )
    has_head = with_head and shape.is_last
    return layers + (matrix_bytes(shape.vocab_size, shape.hidden_size) if has_head else 0)


def stored_weight_bytes(shape: ModelConfig, matrix_bytes: Callable[[int, int], int]) -> int:
    """Bytes of all weights in memory: as `weight_bytes`, and the embedding where the head is another matrix. The
    layers' own embeddings stay in their files."""
    embedding = (
        0 if shape.tie_word_embeddings else matrix_bytes(shape.vocab_size, shape.hidden_size)
    )
    return weight_bytes(shape, matrix_bytes) + embedding


def unread_expert_bytes(
    shape: ModelConfig, matrix_bytes: Callable[[int, int], int], num_tokens: int
) -> float:
    """Bytes of the experts that no token of a step chooses, on average: n (1 - k/n)^T of n experts, if each of the
    T tokens chooses k and routers choose all experts equally often.

    Args:
        matrix_bytes: as in `weight_bytes`.
        num_tokens: T.
    """
    return sum(
        each.num_matrices
        * (1 - each.num_active / each.num_matrices) ** num_tokens
        * matrix_bytes(each.num_outputs, each.num_inputs)
        for layer in shape.layers
        for each in layer_matrices(layer, shape.hidden_size)
    )


def kv_positions(start: int, end: int, window: int | None = None) -> int:
    """Positions whose K and V a layer touches for the queries at start .. end - 1: it reads those
    before `start` that some query sees, and writes those of the queries themselves."""
    first = 0 if window is None else max(0, start - window + 1)
    return end - first


# Attention reads the same keys for all positions of a tile.
TILE_TOKENS = 16


def first_seen(position: int, window: int | None) -> int:
    """The first position whose K and V a layer reads for the token at `position`, or for a later one."""
    if window is None:
        return 0
    return max(0, position // TILE_TOKENS * TILE_TOKENS - window + 1)


class BlockNeeds(Struct, frozen=True):
    """Blocks of the KV cache that a request holds.

    Args:
        block_size: tokens per block.
        windows: of each group of layers; None: its layers see all tokens.
        max_chunk: most tokens of a request in one step.
    """

    block_size: int
    windows: tuple[int | None, ...] = (None,)
    max_chunk: int = 1

    def num_blocks(self, num_tokens: int) -> int:
        """Blocks of a group that hold this many positions."""
        return -(-num_tokens // self.block_size)

    def first_block(self, num_computed: int, window: int | None) -> int:
        """The first block of a group that a request needs which has `num_computed` positions; it has freed
        those before."""
        return first_seen(num_computed, window) // self.block_size

    def held(self, num_computed: int, num_tokens: int) -> int:
        """Blocks of all groups for positions `num_computed` .. `num_tokens` - 1, and for those that they see."""
        end = -(-num_tokens // self.block_size)
        return sum(end - self.first_block(num_computed, window) for window in self.windows)

    def most_of_group(self, num_tokens: int, window: int | None) -> int:
        """The most blocks of a group that a request of `num_tokens` holds at a time, whatever its chunks are."""
        blocks = -(-num_tokens // self.block_size)
        if window is None:
            return blocks
        # From the first position that a tile sees to the end of a chunk that begins at its last position.
        span = window - 1 + TILE_TOKENS - 1 + self.max_chunk
        # The furthest into a block that the first position can be.
        step = math.gcd(TILE_TOKENS, self.block_size)
        offset = self.block_size - step + (1 - window) % step
        return min(blocks, -(-(offset + span) // self.block_size))

    def most(self, num_tokens: int) -> int:
        """The same of all groups: a request that runs alone needs no more."""
        return sum(self.most_of_group(num_tokens, window) for window in self.windows)

    def longest(self, num_blocks: int, at_most: int) -> int:
        """Tokens of the longest request that fits alone into `num_blocks`, or `at_most`."""
        low, high = 0, at_most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.most(middle) <= num_blocks else (low, middle - 1)
        return low


def kv_position_bytes(model: ModelConfig, dtype: str) -> float:
    """Bytes of K and V of one position in all layers that have their own, scales included.

    Raises:
        ValueError: there is no such format.
    """
    halves = find_kv_format(dtype).halves
    return sum(
        each.num_kv_heads * sum(half.num_bytes(each.head_dim) for half in halves)
        for each in model.attentions
        if each.shared_kv_layer is None
    )


class KVBytes:
    """Bytes of K, V and recurrent states that all layers read and write for the tokens of requests on one
    model: a state is read and written once, however many tokens of its request a step has.

    Args:
        bytes_per_position: of all layers that have keys and values, scales included.

    Attributes:
        numbers_by_window: of a position's K that are read, by the window of the layers that read them.
        bytes_per_number: of K and V together.
        state_bytes: of recurrent states, read and written.
    """

    def __init__(self, shape: ModelConfig, bytes_per_position: float) -> None:
        own = (each for each in shape.attentions if each.shared_kv_layer is None)
        stored = sum(map(_kv_numbers, own))
        numbers_read = Counter[int | None]()
        for attention in shape.attentions:
            numbers_read[attention.window] += _kv_numbers(attention)
        self.numbers_by_window = tuple(numbers_read.items())
        self.bytes_per_number = bytes_per_position / stored
        self.state_bytes = 2 * state_bytes(shape)

    def __call__(self, start: int, end: int) -> float:
        """Of one request's tokens at positions start .. end - 1."""
        return self.of_step((start,), (end,))

    def of_step(self, starts: Sequence[int], ends: Sequence[int]) -> float:
        """Of all requests of a step, each with its `start` and `end`."""
        numbers = 0
        for window, numbers_read in self.numbers_by_window:
            if window is None:  # as `kv_positions`, without a call for each request
                positions = sum(ends)
            else:
                spans = zip(starts, ends, strict=True)
                positions = sum([kv_positions(start, end, window) for start, end in spans])
            numbers += positions * numbers_read
        return numbers * self.bytes_per_number + self.state_bytes * len(ends)


def _kv_numbers(attention: AttentionConfig) -> int:
    """Numbers of one position's K, as many as of its V."""
    return attention.num_kv_heads * attention.head_dim


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
    if not output:
        return 0
    if use_kv_cache:
        return prompt + output - 1
    return prompt * output + output * (output - 1) // 2
