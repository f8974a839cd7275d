"""What a device does without our guarantee: a decoder of cuBLAS, SDPA and CUDA graphs in bf16, on random weights. Its
bits depend on the batch. `device_check.py` runs it beside the engine."""

import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu

_REPETITIONS = 5


class Shape(NamedTuple):
    """Of a decoder like Qwen3's."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocab: int


SHAPES = {
    "tiny": Shape(2, 64, 4, 2, 16, 128, 500),
    "qwen3-0.6b": Shape(28, 1024, 16, 8, 128, 3072, 151936),
    "qwen3-1.7b": Shape(28, 2048, 16, 8, 128, 6144, 151936),
    "qwen3-8b": Shape(36, 4096, 32, 8, 128, 12288, 151936),
}


class Baseline:
    """Requests of one length, in a cache without blocks.

    Args:
        num_keys: positions of each request in the cache.
    """

    def __init__(self, shape: Shape, batch: int, num_keys: int, device: str) -> None:
        self.shape, self.device = shape, device

        def random(*size: int) -> Tensor:
            return torch.randn(size, dtype=torch.bfloat16, device=device) / size[-1] ** 0.5

        q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.table = random(shape.vocab, shape.hidden)
        self.norm = torch.ones(shape.hidden, dtype=torch.bfloat16, device=device)
        self.head_norm = torch.ones(shape.head_dim, dtype=torch.bfloat16, device=device)
        self.layers = [
            (
                random(q + 2 * kv, shape.hidden),
                random(shape.hidden, q),
                random(2 * shape.inner, shape.hidden),
                random(shape.hidden, shape.inner),
            )
            for _ in range(shape.layers)
        ]
        cache = shape.layers, 2, batch, shape.kv_heads, num_keys, shape.head_dim
        self.cache = torch.zeros(cache, dtype=torch.bfloat16, device=device)
        half = torch.arange(shape.head_dim // 2, device=device) / (shape.head_dim // 2)
        angles = torch.arange(num_keys, device=device)[:, None] * 1e6**-half
        self.cos, self.sin = angles.cos().bfloat16(), angles.sin().bfloat16()

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Greedy tokens [batch] after tokens [batch, T] at positions [T]: a prompt from 0, or one last token."""
        shape, (batch, length) = self.shape, tokens.shape
        x = self.table[tokens]
        for (qkv, out, gate_up, down), (keys, values) in zip(self.layers, self.cache, strict=True):
            heads = (rms_norm(x, x.shape[-1:], self.norm) @ qkv.t()).unflatten(
                -1, (-1, shape.head_dim)
            )
            q, k, v = heads.transpose(1, 2).split(
                (shape.heads, shape.kv_heads, shape.kv_heads), dim=1
            )
            q, k = (
                self._turned(rms_norm(each, each.shape[-1:], self.head_norm), positions)
                for each in (q, k)
            )
            keys.index_copy_(2, positions, k)
            values.index_copy_(2, positions, v.contiguous())
            own = (k, v) if length > 1 else (keys, values)
            mixed = scaled_dot_product_attention(q, *own, is_causal=length > 1, enable_gqa=True)
            x = x + mixed.transpose(1, 2).reshape(batch, length, -1) @ out.t()
            gate, up = (rms_norm(x, x.shape[-1:], self.norm) @ gate_up.t()).chunk(2, dim=-1)
            x = x + (silu(gate) * up) @ down.t()
        last = rms_norm(x[:, -1], x.shape[-1:], self.norm)
        return (last @ self.table.t()).argmax(dim=-1)

    def _turned(self, x: Tensor, positions: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        cos, sin = self.cos[positions], self.sin[positions]
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def decode_seconds(shape: Shape, batch: int, depth: int, device: str) -> float:
    """Of a step of `batch` requests with `depth` keys each; on CUDA a graph."""
    model = Baseline(shape, batch, depth, device)
    tokens = torch.zeros((batch, 1), dtype=torch.long, device=device)
    position = torch.tensor([depth - 1], device=device)

    def step() -> Tensor:
        return model.forward(tokens, position)

    with torch.inference_mode():
        if device != "cuda":
            return _seconds(step)
        step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = step()

        def replay() -> Tensor:
            graph.replay()
            return result

        return _seconds(replay)


def prompt_seconds(shape: Shape, length: int, device: str) -> float:
    """Of one prompt."""
    model = Baseline(shape, 1, length, device)
    tokens = torch.zeros((1, length), dtype=torch.long, device=device)
    positions = torch.arange(length, device=device)
    with torch.inference_mode():
        return _seconds(lambda: model.forward(tokens, positions))


def _seconds(run: Callable[[], Tensor]) -> float:
    """Of the fastest run, after one that warms up."""
    seconds = []
    for _ in range(_REPETITIONS + 1):
        started = time.perf_counter()
        run().cpu()  # waits for the device
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])
