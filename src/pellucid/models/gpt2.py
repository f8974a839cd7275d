"""GPT-2 (Radford et al. 2019): learned positions, layer norms with biases, an MLP without a gate."""

from collections.abc import Mapping
from typing import Any

from pellucid.backends.ops import Array, ForwardBatch, Ops, Parameters
from pellucid.facts.json_object import JsonObject
from pellucid.facts.model_config import AttentionConfig, LayerConfig, MLPConfig, ModelConfig
from pellucid.models import gguf_metadata as gguf
from pellucid.models.config_json import MAX_LAYERS, even_share, read_activation, read_bos_token_id
from pellucid.models.family import Family, GgufFamily
from pellucid.models.llama_decoder import LayerNormDecoder
from pellucid.models.stored_weights import StoredWeight, Transposed, in_layers, stored


class GPT2Decoder(LayerNormDecoder):
    """Llama with norms that have biases, to whose embeddings those of positions are added."""

    def __init__(self, config: ModelConfig, parameters: Parameters, ops: Ops) -> None:
        super().__init__(config, parameters, ops)
        self.embed_positions = parameters.matrix(
            "embed_positions", config.max_position_embeddings, config.hidden_size
        )

    def embed(self, batch: ForwardBatch) -> Array:
        return super().embed(batch) + self.ops.embed(batch.positions, self.embed_positions)


def _read_config(config: JsonObject) -> ModelConfig:
    for key in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
        if config.boolean(key):
            raise config.error(key, "not supported: must be false")
    hidden_size = config.integer("n_embd")
    num_heads = config.integer("n_head")
    num_layers = config.integer("n_layer", maximum=MAX_LAYERS)
    head_dim = even_share(config, "n_embd", hidden_size, num_heads)
    layer = LayerConfig(
        AttentionConfig(
            num_heads,
            num_heads,
            head_dim,
            scale=head_dim**-0.5 if config.boolean("scale_attn_weights") else 1.0,
            rope=None,
            qkv_bias=True,
            o_bias=True,
        ),
        MLPConfig(
            config.optional_integer("n_inner") or 4 * hidden_size,
            read_activation(config, "activation_function"),
            gated=False,
            bias=True,
        ),
    )
    return ModelConfig(
        architecture="GPT2LMHeadModel",
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        layers=(layer,) * num_layers,
        max_position_embeddings=config.integer("n_positions"),
        norm_eps=config.number("layer_norm_epsilon"),
        tie_word_embeddings=config.boolean("tie_word_embeddings"),
        bos_token_id=read_bos_token_id(config),
        eos_token_ids=config.token_ids("eos_token_id"),
    )


def _gguf_config(metadata: gguf.GgufMetadata) -> dict[str, Any]:
    """config.json of GPT-2."""
    for key in (gguf.KV_HEADS, gguf.KEY_LENGTH, gguf.VALUE_LENGTH):
        expected = metadata.integer(gguf.HEADS)
        if key != gguf.KV_HEADS:
            expected = metadata.integer(gguf.EMBEDDING) // expected
        if metadata.get(key, expected) != expected:
            raise metadata.error(key, f"must be {expected}")
    return {
        **metadata.model_values(),
        "n_embd": metadata.integer(gguf.EMBEDDING),
        "n_inner": metadata.integer(gguf.FEED_FORWARD),
        "n_layer": metadata.integer(gguf.BLOCK_COUNT),
        "n_head": metadata.integer(gguf.HEADS),
        "n_positions": metadata.integer(gguf.CONTEXT),
        "layer_norm_epsilon": metadata.number(gguf.EPSILON),
    }


_WEIGHTS: Mapping[str, StoredWeight] = {
    "embed_tokens": stored("wte", "token_embd"),
    "embed_positions": stored("wpe", "position_embd"),
    **in_layers(
        {
            "attention_norm": stored("ln_1", "attn_norm"),
            "qkv_proj": stored("attn.c_attn", "attn_qkv", Transposed()),
            "o_proj": stored("attn.c_proj", "attn_output", Transposed()),
            "mlp_norm": stored("ln_2", "ffn_norm"),
            "up_proj": stored("mlp.c_fc", "ffn_up", Transposed()),
            "down_proj": stored("mlp.c_proj", "ffn_down", Transposed()),
        },
        hf="h.{i}.",
    ),
    "norm": stored("ln_f", "output_norm"),
    "lm_head": stored("lm_head", "output"),
}

GPT2 = Family(
    architectures=("GPT2LMHeadModel",),
    model_types=("gpt2",),
    read_config=_read_config,
    decoder=GPT2Decoder,
    weights=_WEIGHTS,
    prefix="transformer.",
    unused=r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias",  # masks, known from the definition
    gguf=GgufFamily("gpt2", frozenset({gguf.EPSILON}), _gguf_config),
)
