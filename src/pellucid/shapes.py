"""Known shapes: the published config.json of well-known models, without weights.

For `pellucid bench --shape`: how fast a model would be on this machine, before it is downloaded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from pellucid.model_config import (
    AttentionConfig,
    ExpertsConfig,
    GatedDeltaNetConfig,
    LayerConfig,
    Llama3RopeScaling,
    MLPConfig,
    ModelConfig,
    ProportionalRopeScaling,
    RopeConfig,
    ShortConvolutionConfig,
    YarnRopeScaling,
)


def find_shape(name: str) -> ModelConfig:
    """The shape called `name`.

    Raises:
        ValueError: it is not known; the message lists those that are.
    """
    if name not in SHAPES:
        raise ValueError(f"shape={name!r}: known are {', '.join(SHAPES)}")
    return SHAPES[name]


def _llama_like(
    *,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    rope_theta: float,
    intermediate_size: int | None = None,
    experts: ExpertsConfig | None = None,
    rope_scaling: Llama3RopeScaling | None = None,
    window: int | None = None,
    qkv_bias: bool = False,
    gated_output: bool = False,
    rotated_share: float = 1.0,
    qk_norm: Literal["head", "width"] | None = None,
    **facts: Any,
) -> ModelConfig:
    """Llama's architecture, all layers the same, with an MLP or with experts; `facts` are the other fields
    of `ModelConfig`."""
    attention = AttentionConfig(
        num_heads,
        num_kv_heads,
        head_dim,
        scale=head_dim**-0.5,
        rope=RopeConfig(rope_theta, int(head_dim * rotated_share), rope_scaling),
        window=window,
        qkv_bias=qkv_bias,
        gated_output=gated_output,
        qk_norm=qk_norm,
    )
    mlp = None if intermediate_size is None else MLPConfig(intermediate_size, "silu")
    return ModelConfig(layers=(LayerConfig(attention, mlp, experts),) * num_layers, **facts)


def _gemma3(
    *, num_layers: int, hidden_size: int, intermediate_size: int, max_position: int
) -> ModelConfig:
    """Gemma 3 with one kv-head: five of six layers have a window of 512."""
    attention = AttentionConfig(
        num_heads=4,
        num_kv_heads=1,
        head_dim=256,
        scale=256**-0.5,
        rope=RopeConfig(1e6, 256),
        qk_norm="head",
    )
    mlp = MLPConfig(intermediate_size, "gelu_tanh")
    full = LayerConfig(attention, mlp)
    sliding = LayerConfig(replace(attention, window=512, rope=RopeConfig(1e4, 256)), mlp)
    return ModelConfig(
        architecture="Gemma3ForCausalLM",
        vocab_size=262_144,
        hidden_size=hidden_size,
        layers=tuple(full if (i + 1) % 6 == 0 else sliding for i in range(num_layers)),
        max_position_embeddings=max_position,
        norm_eps=1e-6,
        embedding_scale=hidden_size**0.5,
        tie_word_embeddings=True,
        bos_token_id=2,
        eos_token_ids=(1, 106),
    )


def _gemma4(
    *,
    num_layers: int,
    period: int,
    hidden_size: int,
    intermediate_size: int,
    num_heads: int,
    num_kv_heads: int,
    window: int,
    num_full_kv_heads: int | None = None,
    num_shared: int = 0,
    shared_factor: int = 1,
    embedding_size: int = 0,
    experts: ExpertsConfig | None = None,
    max_position: int,
) -> ModelConfig:
    """Gemma 4: the last layer of each period sees all tokens, with wider heads.

    Args:
        num_full_kv_heads: of these layers, whose values are then their keys; None: as in the others.
        num_shared: of the last layers, which read the keys and values of earlier ones.
        shared_factor: how much wider their MLPs are.
        embedding_size: of each layer's own embeddings.
    """
    sliding = AttentionConfig(
        num_heads,
        num_kv_heads,
        head_dim=256,
        scale=1.0,
        rope=RopeConfig(1e4, 256),
        window=window,
        qk_norm="head",
        v_norm=True,
    )
    full = replace(
        sliding,
        num_kv_heads=num_full_kv_heads or num_kv_heads,
        head_dim=512,
        rope=RopeConfig(1e6, 512, ProportionalRopeScaling(64)),
        window=None,
        values_are_keys=num_full_kv_heads is not None,
    )
    own = [full if (i + 1) % period == 0 else sliding for i in range(num_layers - num_shared)]
    # The last layer of each kind; layers that share begin with a period.
    sources = {attention: index for index, attention in enumerate(own)}
    shared = [full if (i + 1) % period == 0 else sliding for i in range(num_shared)]
    attentions = [*own, *(replace(each, shared_kv_layer=sources[each]) for each in shared)]
    layers = [
        LayerConfig(
            attention,
            MLPConfig(
                intermediate_size * (1 if attention.shared_kv_layer is None else shared_factor),
                "gelu_tanh",
            ),
            experts,
            embedding_size=embedding_size,
        )
        for attention in attentions
    ]
    return ModelConfig(
        architecture="Gemma4ForCausalLM",
        vocab_size=262_144,
        hidden_size=hidden_size,
        layers=tuple(layers),
        max_position_embeddings=max_position,
        norm_eps=1e-6,
        embedding_scale=hidden_size**0.5,
        logits_softcap=30.0,
        tie_word_embeddings=True,
        bos_token_id=2,
        eos_token_ids=(1, 106),
        layer_vocab_size=262_144 if embedding_size else 0,
    )


def _smollm3_3b() -> ModelConfig:
    """SmolLM3: every fourth layer does not rotate."""
    model = _llama_like(
        architecture="SmolLM3ForCausalLM",
        vocab_size=128_256,
        hidden_size=2048,
        intermediate_size=11_008,
        num_layers=36,
        num_heads=16,
        num_kv_heads=4,
        head_dim=128,
        max_position_embeddings=65_536,
        norm_eps=1e-6,
        rope_theta=5e6,
        tie_word_embeddings=True,
        bos_token_id=128_000,
        eos_token_ids=(128_012,),
    )
    unrotated = replace(model.layers[0], attention=replace(model.attentions[0], rope=None))
    layers = tuple(unrotated if (i + 1) % 4 == 0 else layer for i, layer in enumerate(model.layers))
    return replace(model, layers=layers)


def _qwen3_30b_a3b(num_layers: int) -> ModelConfig:
    return _llama_like(
        architecture="Qwen3MoeForCausalLM",
        vocab_size=151_936,
        hidden_size=2048,
        experts=ExpertsConfig(128, 8, 768, "silu"),
        num_layers=num_layers,
        num_heads=32,
        num_kv_heads=4,
        head_dim=128,
        max_position_embeddings=40_960,
        norm_eps=1e-6,
        rope_theta=1e6,
        qk_norm="head",
        bos_token_id=151_643,
        eos_token_ids=(151_645,),
    )


def _gpt_oss_20b(num_layers: int) -> ModelConfig:
    """gpt-oss: a window of 128 in every other layer, sinks, biases."""
    sliding = AttentionConfig(
        num_heads=64,
        num_kv_heads=8,
        head_dim=64,
        scale=64**-0.5,
        rope=RopeConfig(150_000.0, 64, YarnRopeScaling(32.0, 4096, 32.0, 1.0, 1.3466, False)),
        window=128,
        qkv_bias=True,
        o_bias=True,
        has_sinks=True,
    )
    experts = ExpertsConfig(
        32,
        4,
        2880,
        "clamped_swish",
        router="softmax_chosen",
        normalize=False,
        router_bias=True,
        expert_bias=True,
    )
    layers = [
        LayerConfig(sliding if i % 2 == 0 else replace(sliding, window=None), None, experts)
        for i in range(num_layers)
    ]
    return ModelConfig(
        architecture="GptOssForCausalLM",
        vocab_size=201_088,
        hidden_size=2880,
        layers=tuple(layers),
        max_position_embeddings=131_072,
        norm_eps=1e-5,
        bos_token_id=199_998,
        eos_token_ids=(200_002,),
    )


def _lfm2_1_2b() -> ModelConfig:
    """LFM2-1.2B: gated short convolutions in ten of its sixteen layers."""
    return _lfm2("Lfm2ForCausalLM", 8192, 16, (2, 5, 8, 10, 12, 14))


def _lfm2_8b_a1b() -> ModelConfig:
    """LFM2-8B-A1B: convolutions in 18 of its 24 layers, experts in all layers but the first two."""
    model = _lfm2("Lfm2MoeForCausalLM", 7168, 24, (2, 6, 10, 14, 18, 21))
    experts = ExpertsConfig(32, 4, 1792, "silu", router="sigmoid", selection_bias=True)
    dense, sparse = model.layers[:2], model.layers[2:]
    layers = (*dense, *(replace(layer, mlp=None, experts=experts) for layer in sparse))
    return replace(model, layers=layers)


def _lfm2(
    architecture: str, intermediate_size: int, num_layers: int, full: tuple[int, ...]
) -> ModelConfig:
    """LFM2 with full attention in the layers `full`, and convolutions in the others."""
    model = _llama_like(
        architecture=architecture,
        vocab_size=65_536,
        hidden_size=2048,
        intermediate_size=intermediate_size,
        num_layers=num_layers,
        num_heads=32,
        num_kv_heads=8,
        head_dim=64,
        max_position_embeddings=128_000,
        norm_eps=1e-5,
        rope_theta=1e6,
        qk_norm="head",
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_ids=(7,),
    )
    return _with_recurrence(model, ShortConvolutionConfig(2048, 3), full)


def _qwen35_0_8b() -> ModelConfig:
    """The text model of Qwen3.5-0.8B: three of four layers are gated delta nets."""
    model = _llama_like(
        architecture="Qwen3_5ForCausalLM",
        vocab_size=248_320,
        hidden_size=1024,
        intermediate_size=3584,
        num_layers=24,
        num_heads=8,
        num_kv_heads=2,
        head_dim=256,
        max_position_embeddings=262_144,
        norm_eps=1e-6,
        rope_theta=1e7,
        qk_norm="head",
        gated_output=True,
        rotated_share=0.25,
        tie_word_embeddings=True,
        eos_token_ids=(248_044,),
    )
    net = GatedDeltaNetConfig(16, 16, 128, 128, 4)
    return _with_recurrence(model, net, range(3, 24, 4))


def _with_recurrence(
    model: ModelConfig,
    recurrence: ShortConvolutionConfig | GatedDeltaNetConfig,
    full: Sequence[int],
) -> ModelConfig:
    """`model` with a recurrence in all layers but the `full` ones."""
    layers = tuple(
        layer if index in full else replace(layer, attention=None, recurrence=recurrence)
        for index, layer in enumerate(model.layers)
    )
    return replace(model, layers=layers)


SHAPES: Mapping[str, ModelConfig] = {
    "smollm2-135m": _llama_like(
        architecture="LlamaForCausalLM",
        vocab_size=49_152,
        hidden_size=576,
        intermediate_size=1536,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        max_position_embeddings=8192,
        norm_eps=1e-5,
        rope_theta=1e5,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_ids=(0,),
    ),
    "qwen2.5-0.5b": _llama_like(
        architecture="Qwen2ForCausalLM",
        vocab_size=151_936,
        hidden_size=896,
        intermediate_size=4864,
        num_layers=24,
        num_heads=14,
        num_kv_heads=2,
        head_dim=64,
        max_position_embeddings=32_768,
        norm_eps=1e-6,
        rope_theta=1e6,
        qkv_bias=True,
        tie_word_embeddings=True,
        bos_token_id=151_643,
        eos_token_ids=(151_643,),
    ),
    "qwen3-0.6b": _llama_like(
        architecture="Qwen3ForCausalLM",
        vocab_size=151_936,
        hidden_size=1024,
        intermediate_size=3072,
        num_layers=28,
        num_heads=16,
        num_kv_heads=8,
        head_dim=128,
        max_position_embeddings=40_960,
        norm_eps=1e-6,
        rope_theta=1e6,
        qk_norm="head",
        tie_word_embeddings=True,
        bos_token_id=151_643,
        eos_token_ids=(151_645,),
    ),
    "qwen3-4b": _llama_like(
        architecture="Qwen3ForCausalLM",
        vocab_size=151_936,
        hidden_size=2560,
        intermediate_size=9728,
        num_layers=36,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        max_position_embeddings=40_960,
        norm_eps=1e-6,
        rope_theta=1e6,
        qk_norm="head",
        tie_word_embeddings=True,
        bos_token_id=151_643,
        eos_token_ids=(151_645,),
    ),
    "llama-3.2-1b": _llama_like(
        architecture="LlamaForCausalLM",
        vocab_size=128_256,
        hidden_size=2048,
        intermediate_size=8192,
        num_layers=16,
        num_heads=32,
        num_kv_heads=8,
        head_dim=64,
        max_position_embeddings=131_072,
        norm_eps=1e-5,
        rope_theta=5e5,
        rope_scaling=Llama3RopeScaling(32.0, 1.0, 4.0, 8192),
        tie_word_embeddings=True,
        bos_token_id=128_000,
        eos_token_ids=(128_001,),
    ),
    "phi-3-mini": _llama_like(  # Phi-3-mini-4k-instruct
        architecture="Phi3ForCausalLM",
        vocab_size=32_064,
        hidden_size=3072,
        intermediate_size=8192,
        num_layers=32,
        num_heads=32,
        num_kv_heads=32,
        head_dim=96,
        max_position_embeddings=4096,
        norm_eps=1e-5,
        rope_theta=1e4,
        window=2047,
        bos_token_id=1,
        eos_token_ids=(32_000,),
    ),
    "mistral-7b": _llama_like(  # v0.3, which has no sliding window
        architecture="MistralForCausalLM",
        vocab_size=32_768,
        hidden_size=4096,
        intermediate_size=14_336,
        num_layers=32,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        max_position_embeddings=32_768,
        norm_eps=1e-5,
        rope_theta=1e6,
        bos_token_id=1,
        eos_token_ids=(2,),
    ),
    "llama-3.1-8b": _llama_like(
        architecture="LlamaForCausalLM",
        vocab_size=128_256,
        hidden_size=4096,
        intermediate_size=14_336,
        num_layers=32,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        max_position_embeddings=131_072,
        norm_eps=1e-5,
        rope_theta=5e5,
        rope_scaling=Llama3RopeScaling(8.0, 1.0, 4.0, 8192),
        bos_token_id=128_000,
        eos_token_ids=(128_001,),
    ),
    "gemma-3-270m": _gemma3(
        num_layers=18, hidden_size=640, intermediate_size=2048, max_position=32_768
    ),
    "gemma-3-1b": _gemma3(
        num_layers=26, hidden_size=1152, intermediate_size=6912, max_position=32_768
    ),
    "gemma-4-e2b": _gemma4(
        num_layers=35,
        period=5,
        hidden_size=1536,
        intermediate_size=6144,
        num_heads=8,
        num_kv_heads=1,
        window=512,
        num_shared=20,
        shared_factor=2,
        embedding_size=256,
        max_position=131_072,
    ),
    "gemma-4-e4b": _gemma4(
        num_layers=42,
        period=6,
        hidden_size=2560,
        intermediate_size=10_240,
        num_heads=8,
        num_kv_heads=2,
        window=512,
        num_shared=18,
        embedding_size=256,
        max_position=131_072,
    ),
    "gemma-4-26b-a4b": _gemma4(
        num_layers=30,
        period=6,
        hidden_size=2816,
        intermediate_size=2112,
        num_heads=16,
        num_kv_heads=8,
        num_full_kv_heads=2,
        window=1024,
        experts=ExpertsConfig(128, 8, 704, "gelu_tanh", expert_scales=True),
        max_position=262_144,
    ),
    "smollm3-3b": _smollm3_3b(),
    "olmo-2-1b": _llama_like(  # OLMo-2-0425-1B
        architecture="Olmo2ForCausalLM",
        vocab_size=100_352,
        hidden_size=2048,
        intermediate_size=8192,
        num_layers=16,
        num_heads=16,
        num_kv_heads=16,
        head_dim=128,
        max_position_embeddings=4096,
        norm_eps=1e-6,
        rope_theta=5e5,
        qk_norm="width",
        eos_token_ids=(100_257,),
    ),
    "granite-3.3-2b": replace(  # without what is only multiplied
        _llama_like(
            architecture="GraniteForCausalLM",
            vocab_size=49_159,
            hidden_size=2048,
            intermediate_size=8192,
            num_layers=40,
            num_heads=32,
            num_kv_heads=8,
            head_dim=64,
            max_position_embeddings=131_072,
            norm_eps=1e-5,
            rope_theta=1e7,
            tie_word_embeddings=True,
            bos_token_id=0,
            eos_token_ids=(0,),
        ),
        embedding_scale=12 / 0.22,
        logits_scale=1 / 8,
    ),
    "olmoe-1b-7b": _llama_like(  # OLMoE-1B-7B-0924
        architecture="OlmoeForCausalLM",
        vocab_size=50_304,
        hidden_size=2048,
        experts=ExpertsConfig(64, 8, 1024, "silu", normalize=False),
        num_layers=16,
        num_heads=16,
        num_kv_heads=16,
        head_dim=128,
        max_position_embeddings=4096,
        norm_eps=1e-5,
        rope_theta=1e4,
        qk_norm="width",
        eos_token_ids=(50_279,),
    ),
    "mixtral-8x7b": _llama_like(  # Mixtral-8x7B-v0.1
        architecture="MixtralForCausalLM",
        vocab_size=32_000,
        hidden_size=4096,
        experts=ExpertsConfig(8, 2, 14_336, "silu"),
        num_layers=32,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        max_position_embeddings=32_768,
        norm_eps=1e-5,
        rope_theta=1e6,
        bos_token_id=1,
        eos_token_ids=(2,),
    ),
    "gpt-oss-20b": _gpt_oss_20b(num_layers=24),
    "lfm2-1.2b": _lfm2_1_2b(),
    "lfm2-8b-a1b": _lfm2_8b_a1b(),
    "qwen3.5-0.8b": _qwen35_0_8b(),
    "qwen3-30b-a3b": _qwen3_30b_a3b(num_layers=48),
    "qwen3-30b-a3b-24-layers": _qwen3_30b_a3b(num_layers=24),  # of 48, for machines of 16 GB
}
