"""The facts of a checkpoint that decoders, formulas and plans need; frozen, and never set by users."""

import hashlib
from dataclasses import dataclass, field
from typing import Literal

Activation = Literal["silu", "gelu", "gelu_tanh", "clamped_swish"]
Gate = Literal["identity", "sigmoid", "silu", "gelu_tanh"]
Router = Literal["softmax", "softmax_chosen", "sigmoid"]


class _Scaling:
    """Rotations for longer texts than those of training."""

    @property
    def trained_length(self) -> int | None:
        """Beyond it the frequencies depend on the length of the text; None: they never do."""
        return None

    def context_length(self, max_position: int) -> int:
        """Tokens that a model reads whose config.json says max_position_embeddings=`max_position`."""
        return max_position


@dataclass(frozen=True)
class LinearRopeScaling(_Scaling):
    """Positions divided by `factor` (Chen et al. 2023, position interpolation)."""

    factor: float

    def context_length(self, max_position: int) -> int:
        return int(max_position * self.factor)


@dataclass(frozen=True)
class DynamicRopeScaling(_Scaling):
    """NTK-aware base change that grows with the sequence beyond the trained length."""

    factor: float
    original_max_position: int

    @property
    def trained_length(self) -> int:
        return self.original_max_position

    def context_length(self, max_position: int) -> int:
        return int(max_position * self.factor)


@dataclass(frozen=True)
class Llama3RopeScaling(_Scaling):
    """Llama 3.1: low frequencies interpolated, high ones kept, a smooth ramp between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


@dataclass(frozen=True)
class YarnRopeScaling(_Scaling):
    """YaRN (Peng et al. 2023): interpolation by wavelength and a temperature on attention.

    `attention_factor` multiplies cos and sin; loading derives it where the checkpoint does not say.
    """

    factor: float
    original_max_position: int
    beta_fast: float
    beta_slow: float
    attention_factor: float
    truncate: bool

    def context_length(self, max_position: int) -> int:
        return max(max_position, int(self.original_max_position * self.factor))


@dataclass(frozen=True)
class LongRopeScaling(_Scaling):
    """LongRoPE (Ding et al. 2024): one divisor per frequency, another set beyond the trained length."""

    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    original_max_position: int
    attention_factor: float

    @property
    def trained_length(self) -> int:
        return self.original_max_position


@dataclass(frozen=True)
class ProportionalRopeScaling(_Scaling):
    """Gemma 4: the first pairs turn, the others do not; positions divided by `factor`."""

    num_turning: int
    factor: float = 1.0


RopeScaling = (
    LinearRopeScaling
    | DynamicRopeScaling
    | Llama3RopeScaling
    | YarnRopeScaling
    | LongRopeScaling
    | ProportionalRopeScaling
)


@dataclass(frozen=True)
class RopeGrowth:
    """The factor of cos and sin at position p: 1 + beta ln(1 + floor(p / period)).

    Queries whose whole heads are rotated grow with it, which sharpens attention over long texts (Llama 4).
    """

    beta: float
    period: int


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding (Su et al. 2021), halves rotated against each other as in GPT-NeoX."""

    theta: float
    dim: int  # the leading `dim` of the D components of a head are rotated
    scaling: RopeScaling | None = None
    growth: RopeGrowth | None = None

    @property
    def trained_length(self) -> int | None:
        """Beyond it the frequencies depend on the length of the text; None: they never do."""
        return None if self.scaling is None else self.scaling.trained_length


@dataclass(frozen=True)
class AttentionConfig:
    """Causal self-attention of one layer.

    Args:
        num_heads: H, query heads.
        num_kv_heads: K, divides H.
        head_dim: D.
        scale: multiplies q.k.
        rope: how queries and keys are rotated; None: they are not.
        gated_output: whether the heads' outputs are multiplied with the sigmoid of a projection.
        query_growth: what multiplies queries as well, whose whole heads are rotated; None: nothing.
        window: keys that a token sees, its own included; None: all before it.
        softcap: c of c * tanh(score / c); None: scores are not capped.
        qkv_bias: whether the projections to q, k and v have biases.
        o_bias: whether the projection of the heads' outputs has one.
        qk_norm: whether q and k are normed, "head" each head, "width" all heads together; None: they
            are not.
        norm_after_rope: whether they are normed after the rotation.
        has_sinks: whether each query head has a learned score that takes its share of the softmax and
            has no value.
        shared_kv_layer: an earlier layer whose keys and values this one reads; None: it has its own.
        v_norm: whether each head of v is normed, without a weight.
        values_are_keys: whether v is k as it was before norm and rotation: there is no projection to v.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    rope: RopeConfig | None
    window: int | None = None
    softcap: float | None = None
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: Literal["head", "width"] | None = None
    norm_after_rope: bool = False
    has_sinks: bool = False
    shared_kv_layer: int | None = None
    gated_output: bool = False
    query_growth: RopeGrowth | None = None
    v_norm: bool = False
    values_are_keys: bool = False

    def __post_init__(self) -> None:
        assert self.query_growth is None or (
            self.rope is not None and self.rope.dim == self.head_dim
        )
        assert self.num_heads % self.num_kv_heads == 0


@dataclass(frozen=True)
class MLPConfig:
    """The feed-forward part that every token passes.

    Args:
        intermediate_size: its width.
        activation: between its matrices.
        gated: whether the activation of one projection multiplies another one (Shazeer 2020).
        bias: whether its matrices have biases.
    """

    intermediate_size: int
    activation: Activation
    gated: bool = True
    bias: bool = False


@dataclass(frozen=True)
class ExpertsConfig:
    """Gated feed-forward parts of which each token passes a few, chosen by a router (Shazeer et al. 2017).

    Args:
        num_experts: E.
        num_chosen: for each token, at most E.
        intermediate_size: width of one expert.
        activation: of the experts.
        router: scores of the experts from the router's logits: "softmax" over all experts, or over the
            chosen ones alone ("softmax_chosen"); or "sigmoid" of each.
        normalize: whether the scores of the chosen experts are divided by their sum.
        scale: multiplies the scores at the end.
        router_bias: whether the router's logits have a bias.
        expert_bias: whether the experts' matrices have biases.
        selection_bias: whether experts are chosen by their scores plus a bias, which their weights do not
            have.
        shared_gate: whether the output of `LayerConfig.mlp`, the shared expert, is multiplied with the
            sigmoid of a projection to one number.
        expert_scales: whether the weights of each expert are multiplied with a number of its own.
    """

    num_experts: int
    num_chosen: int
    intermediate_size: int
    activation: Activation
    router: Router = "softmax"
    normalize: bool = True
    scale: float = 1.0
    router_bias: bool = False
    expert_bias: bool = False
    selection_bias: bool = False
    shared_gate: bool = False
    expert_scales: bool = False

    def __post_init__(self) -> None:
        assert 1 <= self.num_chosen <= self.num_experts


@dataclass(frozen=True)
class StateShape:
    """The f32 numbers that a recurrent layer keeps of one sequence, however long it is.

    Args:
        num_channels: C, that a convolution reads.
        num_rows: of the convolution's input, the last ones of the sequence.
        num_heads: H, each with a matrix [key_dim, value_dim]; 0: there are no matrices.
        key_dim: of a head.
        value_dim: of a head.
    """

    num_channels: int
    num_rows: int
    num_heads: int = 0
    key_dim: int = 0
    value_dim: int = 0

    @property
    def num_numbers(self) -> int:
        matrices = self.num_heads * self.key_dim * self.value_dim
        return self.num_rows * self.num_channels + matrices


@dataclass(frozen=True)
class ShortConvolutionConfig:
    """Gated short convolution (LFM2): a causal depthwise convolution between two gates.

    Args:
        num_channels: C.
        kernel_size: rows that a row reads, its own included.
        bias: whether the projections and the convolution have biases.
    """

    num_channels: int
    kernel_size: int
    bias: bool = False

    @property
    def state(self) -> StateShape:
        return StateShape(self.num_channels, self.kernel_size - 1)

    def matrix_shapes(self, hidden_size: int) -> tuple[tuple[int, int], ...]:
        """Outputs and inputs of each projection."""
        return (3 * self.num_channels, hidden_size), (hidden_size, self.num_channels)


@dataclass(frozen=True)
class GatedDeltaNetConfig:
    """Gated delta net (Yang et al. 2024): linear attention whose state decays and corrects itself.

    Args:
        num_key_heads: Hk, of q and of k, divides Hv.
        num_value_heads: Hv.
        key_dim: of a head of q and of k.
        value_dim: of a head of v.
        kernel_size: of the convolution over q, k and v: rows that a row reads, its own included.
        tiled: whether v-head h goes with k-head h mod Hk, as llama.cpp orders them; else h // (Hv / Hk).
    """

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    kernel_size: int
    tiled: bool = False

    def __post_init__(self) -> None:
        assert self.num_value_heads % self.num_key_heads == 0

    @property
    def keys_width(self) -> int:
        return self.num_key_heads * self.key_dim

    @property
    def values_width(self) -> int:
        return self.num_value_heads * self.value_dim

    @property
    def state(self) -> StateShape:
        return StateShape(
            2 * self.keys_width + self.values_width,
            self.kernel_size - 1,
            self.num_value_heads,
            self.key_dim,
            self.value_dim,
        )

    def matrix_shapes(self, hidden_size: int) -> tuple[tuple[int, int], ...]:
        """Outputs and inputs of each projection: to q, k and v, to the output's gate, to the step
        size and the decay of each head, and back."""
        return (
            (2 * self.keys_width + self.values_width, hidden_size),
            (self.values_width, hidden_size),
            (self.num_value_heads, hidden_size),
            (self.num_value_heads, hidden_size),
            (hidden_size, self.values_width),
        )


@dataclass(frozen=True)
class LayerConfig:
    """One layer of a decoder. Tokens are mixed by attention or by a recurrence.

    Args:
        attention: reads the keys and values of all tokens before; None: the layer has a recurrence.
        mlp: what every token passes: the dense feed-forward part, or the expert that all tokens share
            beside `experts`; None: there is none.
        experts: of which each token passes a few; None: the layer is dense.
        recurrence: reads a state of a fixed size; None: the layer has attention.
        embedding_size: P, of the embedding that a token has for this layer; 0: it has none.
    """

    attention: AttentionConfig | None
    mlp: MLPConfig | None
    experts: ExpertsConfig | None = None
    recurrence: ShortConvolutionConfig | GatedDeltaNetConfig | None = None
    embedding_size: int = 0

    def __post_init__(self) -> None:
        assert (self.attention is None) != (self.recurrence is None)


@dataclass(frozen=True)
class ModelPart:
    """Which layers of a model these are.

    Args:
        whole: the model.
        first: number of the first of these layers.
    """

    whole: "ModelConfig"
    first: int


@dataclass(frozen=True)
class ModelConfig:
    """The facts of a checkpoint that a decoder and the planner need; read from it, never set by users.

    Args:
        architecture: the checkpoint's own name, such as "LlamaForCausalLM".
        vocab_size: V.
        hidden_size: width of the activations between layers.
        layers: in order.
        max_position_embeddings: positions that the model was made for, without scaling.
        norm_eps: of all norms.
        embedding_scale: multiplies the embedding of a token.
        logits_scale: multiplies the logits.
        logits_softcap: c of c * tanh(logit / c); None: logits are not capped.
        tie_word_embeddings: whether the head is the embedding.
        bos_token_id: the token that begins a text; None: there is none.
        eos_token_ids: tokens that end an answer.
        layer_vocab_size: tokens that have embeddings for the layers; 0: the layers have none.
        part: where `layers` are among those of a larger model that several processes compute; None: they are all.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    layers: tuple[LayerConfig, ...]
    max_position_embeddings: int
    norm_eps: float
    embedding_scale: float = 1.0
    logits_scale: float = 1.0
    logits_softcap: float | None = None
    tie_word_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    layer_vocab_size: int = 0
    part: ModelPart | None = field(default=None, repr=False)

    @property
    def digest(self) -> str:
        """SHA-256 of every fact, in hexadecimal digits."""
        return hashlib.sha256(repr(self).encode()).hexdigest()

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def whole(self) -> "ModelConfig":
        """The model that this is a part of, or itself."""
        return self if self.part is None else self.part.whole

    @property
    def first_layer(self) -> int:
        """The number that the first layer has in the whole model."""
        return 0 if self.part is None else self.part.first

    @property
    def is_first(self) -> bool:
        """Whether the rows of the first layer are embeddings of tokens; else another part has computed them."""
        return self.first_layer == 0

    @property
    def is_last(self) -> bool:
        """Whether logits follow the last layer; else the rows go to another part."""
        return self.first_layer + self.num_layers == self.whole.num_layers

    @property
    def attentions(self) -> tuple[AttentionConfig, ...]:
        """Of the layers that have attention, in order; at least one."""
        return tuple(layer.attention for layer in self.layers if layer.attention is not None)

    @property
    def states(self) -> tuple[StateShape, ...]:
        """Of the layers that have a recurrence, in order."""
        return tuple(layer.recurrence.state for layer in self.layers if layer.recurrence)

    @property
    def first_without_kv(self) -> int:
        """The first of the last layers, which keep nothing of a token: prompt rows without logits do not pass
        them. The number of layers if the last one keeps something."""
        with_kv = (
            index
            for index, layer in enumerate(self.layers)
            if layer.attention is None or layer.attention.shared_kv_layer is None
        )
        return max(with_kv) + 1

    @property
    def ropes(self) -> tuple[RopeConfig, ...]:
        """The different rotations of all layers."""
        ropes = (attention.rope for attention in self.attentions)
        return tuple(dict.fromkeys(rope for rope in ropes if rope is not None))

    @property
    def context_length(self) -> int:
        """Tokens that the model can read, prompt and output: what each of its layers can."""
        # Where only some layers are scaled, `max_position_embeddings` is the scaled length already.
        limit = self.max_position_embeddings
        scalings = (each.rope.scaling if each.rope else None for each in self.attentions)
        return min(limit if each is None else each.context_length(limit) for each in scalings)

    def __post_init__(self) -> None:
        assert self.attentions
        for index, layer in enumerate(self.layers):
            shared = None if layer.attention is None else layer.attention.shared_kv_layer
            if shared is not None:
                source = self.layers[shared].attention
                assert shared < index and source is not None and source.shared_kv_layer is None
