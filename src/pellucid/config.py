"""What does not change after start: the checkpoint's facts and the user's knobs."""

from dataclasses import dataclass
from typing import Literal

Activation = Literal["silu", "gelu", "gelu_tanh"]

QUANTIZATIONS = ("none", "int8", "int8-channel", "int4", "int4-g128", "int4-zp", "int4-g128-zp")


@dataclass(frozen=True)
class LinearRopeScaling:
    """Positions divided by `factor` (Chen et al. 2023, position interpolation)."""

    factor: float


@dataclass(frozen=True)
class DynamicRopeScaling:
    """NTK-aware base change that grows with the sequence beyond the trained length."""

    factor: float
    original_max_position: int


@dataclass(frozen=True)
class Llama3RopeScaling:
    """Llama 3.1: low frequencies interpolated, high ones kept, a smooth ramp between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


@dataclass(frozen=True)
class YarnRopeScaling:
    """YaRN (Peng et al. 2023): interpolation by wavelength and a temperature on attention.

    `attention_factor` multiplies cos and sin; loading derives it where the checkpoint does not say.
    """

    factor: float
    original_max_position: int
    beta_fast: float
    beta_slow: float
    attention_factor: float
    truncate: bool


@dataclass(frozen=True)
class LongRopeScaling:
    """LongRoPE (Ding et al. 2024): one divisor per frequency, another set beyond the trained length."""

    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    original_max_position: int
    attention_factor: float


RopeScaling = (
    LinearRopeScaling | DynamicRopeScaling | Llama3RopeScaling | YarnRopeScaling | LongRopeScaling
)


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding (Su et al. 2021), halves rotated against each other as in GPT-NeoX."""

    theta: float
    dim: int  # the leading `dim` of the D components of a head are rotated
    scaling: RopeScaling | None = None


@dataclass(frozen=True)
class ModelConfig:
    """The facts of a checkpoint that a decoder and the planner need; read from it, never set by users."""

    architecture: str  # the checkpoint's own name, e.g. "LlamaForCausalLM"
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int  # H
    num_kv_heads: int  # K, divides H
    head_dim: int  # D
    max_position_embeddings: int
    norm_eps: float
    activation: Activation
    rope: RopeConfig | None  # None: learned positions (GPT-2)
    attention_scale: float  # multiplies q.k
    sliding_windows: tuple[int | None, ...]  # per layer: keys seen, the token itself included
    attention_softcap: float | None = None
    logits_softcap: float | None = None
    embedding_scale: float = 1.0
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    gated_mlp: bool = True
    qk_norm: bool = False
    tie_word_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    @property
    def context_length(self) -> int:
        """Tokens that the model can read: prompt and output."""
        scaling = self.rope.scaling if self.rope is not None else None
        if isinstance(scaling, LinearRopeScaling | DynamicRopeScaling):
            return int(self.max_position_embeddings * scaling.factor)
        if isinstance(scaling, YarnRopeScaling):
            scaled = int(scaling.original_max_position * scaling.factor)
            return max(self.max_position_embeddings, scaled)
        return self.max_position_embeddings

    def __post_init__(self) -> None:
        assert len(self.sliding_windows) == self.num_layers
        assert self.num_heads % self.num_kv_heads == 0


@dataclass(frozen=True)
class EngineConfig:
    """The knobs of an engine. `LLM(...)` takes the same names.

    Args:
        model: directory in Hugging Face layout, a GGUF file, a hub id, or None for the bundled model.
        revision: branch, tag or commit of a hub id.
        backend: "auto" takes the fastest one that is built and supports the model.
        quantization: format of the matrices in memory; "none" keeps the checkpoint's values. "int8" and
            "int4" have a scale per 32 inputs, "-g128" per 128, "-channel" per output; "-zp" adds zero points.
        quantize_activations: whether rows become int8 where they meet integer weights; False is slower.
        kv_cache_dtype: format of keys and values in the cache.
        block_size: tokens per KV block.
        max_num_seqs: requests that may run in one step.
        max_num_batched_tokens: tokens that one step may compute; longer prompts are cut into chunks.
        max_model_len: longest prompt + output in tokens; None takes the model's own limit.
        kv_cache_memory: bytes for KV blocks; None takes what is left, see `memory.plan_memory`.
        num_kv_blocks: overrides the byte budget.
        num_threads: compute threads; None takes the backend's own choice.
        enable_prefix_caching: find blocks of earlier requests with the same leading tokens again.
        prefix_cache_dir: directory in which such blocks outlive the engine; None keeps them in memory only.
        prefix_cache_bytes: most bytes of files in that directory; the least recently used go first.
        swap_space: bytes of a temporary file that keeps blocks of preempted requests; 0: they are computed
            again.
        use_kv_cache: False runs the naive loop, which computes the whole text again for every token.
    """

    model: str | None = None
    revision: str | None = None
    backend: str = "auto"
    quantization: str = "none"
    quantize_activations: bool = True
    kv_cache_dtype: str = "bf16"
    block_size: int = 32
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    max_model_len: int | None = None
    kv_cache_memory: int | None = None
    num_kv_blocks: int | None = None
    num_threads: int | None = None
    enable_prefix_caching: bool = True
    prefix_cache_dir: str | None = None
    prefix_cache_bytes: int = 4 << 30
    swap_space: int = 0
    use_kv_cache: bool = True

    def __post_init__(self) -> None:
        choices = {
            "backend": ("auto", "numpy", "cpu"),
            "quantization": QUANTIZATIONS,
            "kv_cache_dtype": ("bf16", "f32", "int8", "int4"),
            "block_size": (16, 32, 64, 128),
        }
        for name, allowed in choices.items():
            if (value := getattr(self, name)) not in allowed:
                raise ValueError(f"{name}={value!r}: allowed are {', '.join(map(repr, allowed))}")
        for name in (
            "max_num_seqs",
            "max_num_batched_tokens",
            "max_model_len",
            "kv_cache_memory",
            "num_kv_blocks",
            "num_threads",
            "prefix_cache_bytes",
        ):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(f"{name}={value!r}: must be a whole number of at least 1")
        if not isinstance(self.swap_space, int) or self.swap_space < 0:
            raise ValueError(
                f"swap_space={self.swap_space!r}: must be a whole number of bytes, or 0"
            )
        if self.prefix_cache_dir is not None and not (
            self.enable_prefix_caching and self.use_kv_cache
        ):
            raise ValueError(
                f"prefix_cache_dir={self.prefix_cache_dir!r}: needs enable_prefix_caching and use_kv_cache"
            )
