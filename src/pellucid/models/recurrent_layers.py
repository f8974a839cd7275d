"""Recurrent layers that decoders share: they mix tokens by a state of a fixed size instead of by attention."""

from pellucid.backends.ops import Array, ForwardBatch, Ops, Parameters, StateLayer
from pellucid.facts.model_config import GatedDeltaNetConfig, ModelConfig, ShortConvolutionConfig
from pellucid.models.layers import Attention


class ShortConvolution:
    """Gated short convolution of one layer (LFM2): out(c * convolution(b * x)), b, c and x projected."""

    def __init__(self, config: ModelConfig, parameters: Parameters, ops: Ops, layer: int) -> None:
        facts = config.layers[layer].recurrence
        assert isinstance(facts, ShortConvolutionConfig)
        self.ops = ops
        self.width = width = facts.num_channels
        prefix, hidden = f"layers.{layer}", config.hidden_size
        self.in_proj = parameters.matrix(
            f"{prefix}.conv_in_proj", 3 * width, hidden, bias=facts.bias
        )
        self.weight = parameters.convolution(f"{prefix}.conv", width, facts.kernel_size)
        self.bias = parameters.vector(f"{prefix}.conv.bias", width) if facts.bias else None
        self.out_proj = parameters.matrix(f"{prefix}.conv_out_proj", hidden, width, bias=facts.bias)

    def __call__(self, x: Array, batch: ForwardBatch, state_layer: StateLayer) -> Array:
        """x [T, hidden] -> [T, hidden]."""
        ops, width = self.ops, self.width
        projected = ops.linear(x, self.in_proj)
        b, c = projected[:, :width], projected[:, width : 2 * width]
        gated = ops.multiply(projected[:, 2 * width :], b)
        mixed = ops.causal_convolution(gated, self.weight, self.bias, state_layer, batch)
        return ops.linear(ops.multiply(mixed, c), self.out_proj)


class GatedDeltaNet:
    """Gated delta net of one layer (Yang et al. 2024): a convolution over q, k and v, linear attention whose
    state decays and corrects itself, and a gated norm of each head."""

    def __init__(self, config: ModelConfig, parameters: Parameters, ops: Ops, layer: int) -> None:
        facts = config.layers[layer].recurrence
        assert isinstance(facts, GatedDeltaNetConfig)
        self.facts, self.ops, self.eps = facts, ops, config.norm_eps
        prefix, hidden = f"layers.{layer}.delta", config.hidden_size
        width, num_heads = 2 * facts.keys_width + facts.values_width, facts.num_value_heads
        self.qkv_proj = parameters.matrix(f"{prefix}_qkv_proj", width, hidden)
        self.gate_proj = parameters.matrix(f"{prefix}_gate_proj", facts.values_width, hidden)
        self.beta_proj = parameters.matrix(f"{prefix}_beta_proj", num_heads, hidden)
        self.alpha_proj = parameters.matrix(f"{prefix}_alpha_proj", num_heads, hidden)
        self.conv = parameters.convolution(f"{prefix}_conv", width, facts.kernel_size)
        self.log_decay = parameters.vector(f"{prefix}_decay.weight", num_heads)
        self.step_bias = parameters.vector(f"{prefix}_step.bias", num_heads)
        self.norm = parameters.vector(f"{prefix}_norm.weight", facts.value_dim)
        self.out_proj = parameters.matrix(f"{prefix}_out_proj", hidden, facts.values_width)

    def __call__(self, x: Array, batch: ForwardBatch, state_layer: StateLayer) -> Array:
        """x [T, hidden] -> [T, hidden]."""
        ops, facts = self.ops, self.facts
        qkv = ops.causal_convolution(
            ops.linear(x, self.qkv_proj), self.conv, None, state_layer, batch, "silu"
        )
        heads = ops.gated_delta_net(
            qkv,
            ops.linear(x, self.beta_proj),
            ops.linear(x, self.alpha_proj),
            self.log_decay,
            self.step_bias,
            facts,
            state_layer,
            batch,
        )
        gate = ops.linear(x, self.gate_proj).reshape(-1, facts.num_value_heads, facts.value_dim)
        heads = ops.multiply(ops.rms_norm(heads, self.norm, self.eps), gate, "silu")
        return ops.linear(heads.reshape(-1, facts.values_width), self.out_proj)


def token_mixer(
    config: ModelConfig, parameters: Parameters, ops: Ops, layer: int
) -> Attention | ShortConvolution | GatedDeltaNet:
    """The part of a layer in which tokens see each other."""
    recurrence = config.layers[layer].recurrence
    if recurrence is None:
        return Attention(config, parameters, ops, layer)
    if isinstance(recurrence, ShortConvolutionConfig):
        return ShortConvolution(config, parameters, ops, layer)
    return GatedDeltaNet(config, parameters, ops, layer)
