"""The Llama architecture in one screen, with Hugging Face's parameter names so that export is a plain copy."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int = 32
    vocab_size: int = 4096
    rope_theta: float = 10000.0
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-5


TARGET = Shape(256, 768, num_hidden_layers=6, num_attention_heads=8, num_key_value_heads=4)
DRAFT = Shape(128, 384, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        self.q_proj = linear(shape.hidden_size, shape.num_attention_heads * shape.head_dim)
        self.k_proj = linear(shape.hidden_size, shape.num_key_value_heads * shape.head_dim)
        self.v_proj = linear(shape.hidden_size, shape.num_key_value_heads * shape.head_dim)
        self.o_proj = linear(shape.num_attention_heads * shape.head_dim, shape.hidden_size)
        self.group = shape.num_attention_heads // shape.num_key_value_heads

    def heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q = rotate(self.heads(self.q_proj(x)), cos, sin)
        k = rotate(self.heads(self.k_proj(x)), cos, sin).repeat_interleave(self.group, dim=1)
        v = self.heads(self.v_proj(x)).repeat_interleave(self.group, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = linear(shape.hidden_size, shape.intermediate_size)
        self.up_proj = linear(shape.hidden_size, shape.intermediate_size)
        self.down_proj = linear(shape.intermediate_size, shape.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.mlp = MLP(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = nn.RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        frequencies = shape.rope_theta ** (-torch.arange(0, shape.head_dim, 2) / shape.head_dim)
        angles = torch.outer(torch.arange(shape.max_position_embeddings), frequencies).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        self.apply(self._initialize)

    def _initialize(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed_tokens(ids)
        if torch.is_autocast_enabled("cpu"):
            x = x.bfloat16()
        cos = self.cos[: ids.shape[1]].to(x.dtype)
        sin = self.sin[: ids.shape[1]].to(x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return F.linear(self.norm(x), self.embed_tokens.weight)
