"""GPT-2 (Radford et al. 2019): learned positions, layer norms with biases, an MLP without a gate."""

from pellucid.backends.ops import Array, ForwardBatch, KVCache, KVLayer, Ops, Parameters, Vector
from pellucid.config import ModelConfig
from pellucid.models.layers import Attention, lm_head


class GPT2Layer:
    """One layer: attention, then the MLP, each on the normed input and added to it."""

    def __init__(self, config: ModelConfig, parameters: Parameters, ops: Ops, layer: int) -> None:
        mlp = config.layers[layer].mlp
        assert mlp is not None
        self.ops = ops
        self.eps = config.norm_eps
        self.activation = mlp.activation
        hidden, inner = config.hidden_size, mlp.intermediate_size
        prefix = f"layers.{layer}"
        self.attention_norm = _norm(parameters, f"{prefix}.attention_norm", hidden)
        self.attention = Attention(config, parameters, ops, layer)
        self.mlp_norm = _norm(parameters, f"{prefix}.mlp_norm", hidden)
        self.up_proj = parameters.matrix(f"{prefix}.up_proj", inner, hidden, bias=mlp.bias)
        self.down_proj = parameters.matrix(f"{prefix}.down_proj", hidden, inner, bias=mlp.bias)

    def __call__(self, x: Array, batch: ForwardBatch, kv_layer: KVLayer) -> Array:
        """x [T, hidden] -> [T, hidden]."""
        ops, eps = self.ops, self.eps
        x = x + self.attention(ops.layer_norm(x, *self.attention_norm, eps), batch, kv_layer)
        up = ops.linear(ops.layer_norm(x, *self.mlp_norm, eps), self.up_proj)
        return x + ops.linear(ops.activate(up, self.activation), self.down_proj)


class GPT2Decoder:
    """The whole model: embeddings of tokens and positions, layers, norm, head."""

    def __init__(self, config: ModelConfig, parameters: Parameters, ops: Ops) -> None:
        self.config = config
        self.ops = ops
        vocab, hidden = config.vocab_size, config.hidden_size
        self.embed_tokens = parameters.matrix("embed_tokens", vocab, hidden)
        self.embed_positions = parameters.matrix(
            "embed_positions", config.max_position_embeddings, hidden
        )
        self.layers = [GPT2Layer(config, parameters, ops, i) for i in range(config.num_layers)]
        self.norm = _norm(parameters, "norm", hidden)
        self.lm_head = lm_head(config, parameters, self.embed_tokens)

    def forward(self, batch: ForwardBatch, kv_cache: KVCache) -> Array:
        """Logits [R, V] of the rows `batch.logits_indices`."""
        ops = self.ops
        x = ops.embed(batch.token_ids, self.embed_tokens)  # [T, hidden]
        x = x + ops.embed(batch.positions, self.embed_positions)
        for layer, kv_layer in zip(self.layers, kv_cache.layers, strict=True):
            x = layer(x, batch, kv_layer)
        x = ops.layer_norm(x[batch.logits_indices], *self.norm, self.config.norm_eps)
        return ops.logits(x, self.lm_head)


def _norm(parameters: Parameters, name: str, size: int) -> tuple[Vector, Vector]:
    return parameters.vector(f"{name}.weight", size), parameters.vector(f"{name}.bias", size)
