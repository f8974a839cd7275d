"""Writes a GGUF file of random weights for a shape, in the types of a published kind of file.

    python benchmarks/make_random_gguf.py olmoe-1b-7b olmoe.gguf --kind Q4_0 --layers 8
    python benchmarks/versus.py olmoe.gguf --formats gguf --tests pp512 tg32@512 tg16@128x32

Codes are drawn in place, because the floats of a large model fit into no memory. Tokens choose experts about
evenly in the first layers. Name the number of layers beside a figure if it is not the shape's.

kind    matrices                                              as in
Q4_0    all of them                                           llama-quantize --pure
Q4_K_M  Q4_K; Q6_K: head, v and down of half of the layers    llama-quantize
IQ4_XS  IQ4_XS; Q6_K: head; IQ4_NL where 256 does not divide  llama-quantize
MXFP4   MXFP4: experts; Q8_0: all others                      ggml-org's files of gpt-oss
"""

import argparse
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Type
from gguf_writing import add_shape, write_out

from pellucid.config import ModelConfig, YarnRopeScaling
from pellucid.shapes import SHAPES, find_shape

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "Gemma3ForCausalLM": "gemma3",
    "OlmoeForCausalLM": "olmoe",
    "Qwen3MoeForCausalLM": "qwen3moe",
    "GptOssForCausalLM": "gpt-oss",
}
KINDS = ("Q4_0", "Q4_K_M", "IQ4_XS", "MXFP4")

# Where the f16 factors of a block are, and by how much smaller than a weight's standard deviation: codes and
# scales of groups are random bytes.
_FACTORS: Mapping[Type, tuple[tuple[int, float], ...]] = {
    Type.Q4_0: ((0, 1 / 5),),
    Type.Q8_0: ((0, 1 / 74),),
    Type.Q4_K: ((0, 1 / 170), (2, 1 / 23)),
    Type.Q6_K: ((208, 1 / 1400),),
    Type.IQ4_NL: ((0, 1 / 70),),
    Type.IQ4_XS: ((0, 1 / 1300),),
}
_BYTES_AT_ONCE = 1 << 26


class RandomFile:
    """A GGUF file whose tensors are drawn one after the other.

    Args:
        path: of the file.
        config: the shape.
        num_layers: that the file has.
        kind: one of `KINDS`.
    """

    def __init__(self, path: Path, config: ModelConfig, num_layers: int, kind: str) -> None:
        self.writer = gguf.GGUFWriter(path, ARCHITECTURES[config.architecture])
        self._rng = np.random.default_rng(0)
        self._num_layers = num_layers
        self._kind = kind

    def matrix(self, name: str, *shape: int, layer: int = 0) -> None:
        """A tensor of standard deviation about (number of inputs) ** -0.5."""
        tensor_type = self._type(name, shape[-1], layer)
        block_size, block_bytes = GGML_QUANT_SIZES[tensor_type]
        num_blocks = math.prod(shape) // block_size
        blocks = np.empty((num_blocks, block_bytes), np.uint8)
        step = _BYTES_AT_ONCE // block_bytes
        for start in range(0, num_blocks, step):
            part = blocks[start : start + step]
            part[:] = np.frombuffer(self._rng.bytes(part.size), np.uint8).reshape(part.shape)
        deviation = shape[-1] ** -0.5
        if tensor_type is Type.MXFP4:  # whose numbers reach 6
            blocks[:, 0] = 127 + round(math.log2(deviation / 3))
        for place, share in _FACTORS.get(tensor_type, ()):
            factor = np.array([deviation * share], np.float16).view(np.uint8)
            blocks[:, place : place + 2] = factor
        row_bytes = shape[-1] // block_size * block_bytes
        self.writer.add_tensor(name, blocks.reshape(*shape[:-1], row_bytes), raw_dtype=tensor_type)

    def floats(self, name: str, tensor: npt.NDArray[Any]) -> None:
        self.writer.add_tensor(name, tensor.astype(np.float32))

    def normal(self, name: str, num_rows: int, num_columns: int) -> None:
        """A matrix of floats, of that standard deviation."""
        self.floats(name, self._rng.standard_normal((num_rows, num_columns)) * num_columns**-0.5)

    def _type(self, name: str, num_inputs: int, layer: int) -> Type:
        match self._kind:
            case "Q4_0":
                return Type.Q4_0
            case "MXFP4":
                return Type.MXFP4 if "_exps" in name else Type.Q8_0
        if num_inputs % 256:
            return Type.Q8_0 if name in ("token_embd.weight", "output.weight") else Type.IQ4_NL
        is_head = name in ("token_embd.weight", "output.weight")
        eighth = self._num_layers // 8  # llama.cpp's use_more_bits
        has_more = layer < eighth or layer >= 7 * self._num_layers // 8 or (layer - eighth) % 3 == 2
        is_sensitive = "attn_v" in name or "ffn_down" in name
        if is_head or (self._kind == "Q4_K_M" and is_sensitive and has_more):
            return Type.Q6_K
        return Type.Q4_K if self._kind == "Q4_K_M" else Type.IQ4_XS


def add_facts(file: RandomFile, config: ModelConfig, num_layers: int) -> None:
    """The metadata of the family."""
    writer, layer = file.writer, config.layers[0]
    attention, experts = layer.attention, layer.experts
    sizes = [part.intermediate_size for part in (layer.mlp, experts) if part is not None]
    add_shape(writer, config, num_layers, sizes[0])
    if experts is not None:
        writer.add_expert_count(experts.num_experts)
        writer.add_expert_used_count(experts.num_chosen)
        if config.architecture != "OlmoeForCausalLM":
            writer.add_expert_feed_forward_length(experts.intermediate_size)
    windows = {each.attention.window for each in config.layers} - {None}
    for window in windows:
        writer.add_sliding_window(window)
    if attention.rope is not None and isinstance(
        scaling := attention.rope.scaling, YarnRopeScaling
    ):
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(scaling.factor)
        writer.add_rope_scaling_orig_ctx_len(scaling.original_max_position)
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(config.vocab_size)


def write_model(config: ModelConfig, num_layers: int, kind: str, path: Path) -> None:
    """The first `num_layers` layers of a shape."""
    file = RandomFile(path, config, num_layers, kind)
    add_facts(file, config, num_layers)
    hidden, is_gemma = config.hidden_size, config.architecture == "Gemma3ForCausalLM"
    file.matrix("token_embd.weight", config.vocab_size, hidden)
    for index, layer in enumerate(config.layers[:num_layers]):
        attention = layer.attention
        q_width = attention.num_heads * attention.head_dim
        kv_width = attention.num_kv_heads * attention.head_dim
        norms = {"attn_norm": hidden, "ffn_norm": hidden}
        if config.architecture == "GptOssForCausalLM":
            norms = {"attn_norm": hidden, "post_attention_norm": hidden}
        if is_gemma:
            norms |= {"post_attention_norm": hidden, "post_ffw_norm": hidden}
        if attention.qk_norm is not None:
            is_wide = attention.qk_norm == "width"
            norms["attn_q_norm"] = q_width if is_wide else attention.head_dim
            norms["attn_k_norm"] = kv_width if is_wide else attention.head_dim
        for name, size in norms.items():
            file.floats(f"blk.{index}.{name}.weight", np.ones(size))
        for name, rows, columns, has_bias in (
            ("attn_q", q_width, hidden, attention.qkv_bias),
            ("attn_k", kv_width, hidden, attention.qkv_bias),
            ("attn_v", kv_width, hidden, attention.qkv_bias),
            ("attn_output", hidden, q_width, attention.o_bias),
        ):
            file.matrix(f"blk.{index}.{name}.weight", rows, columns, layer=index)
            if has_bias:
                file.floats(f"blk.{index}.{name}.bias", np.zeros(rows))
        if attention.has_sinks:
            file.floats(f"blk.{index}.attn_sinks.weight", np.zeros(attention.num_heads))
        write_feed_forward(file, index, config)
    file.floats("output_norm.weight", np.ones(hidden))
    if not config.tie_word_embeddings:
        file.matrix("output.weight", config.vocab_size, hidden)
    write_out(file.writer)


def write_feed_forward(file: RandomFile, index: int, config: ModelConfig) -> None:
    """The MLP of a layer, or its router and experts."""
    layer, hidden = config.layers[index], config.hidden_size
    if layer.mlp is not None:
        inner = layer.mlp.intermediate_size
        for name, shape in (
            ("gate", (inner, hidden)),
            ("up", (inner, hidden)),
            ("down", (hidden, inner)),
        ):
            file.matrix(f"blk.{index}.ffn_{name}.weight", *shape, layer=index)
    if (experts := layer.experts) is not None:
        count, inner = experts.num_experts, experts.intermediate_size
        file.normal(f"blk.{index}.ffn_gate_inp.weight", count, hidden)
        if experts.router_bias:
            file.floats(f"blk.{index}.ffn_gate_inp.bias", np.zeros(count))
        for name, shape in (
            ("gate", (inner, hidden)),
            ("up", (inner, hidden)),
            ("down", (hidden, inner)),
        ):
            file.matrix(f"blk.{index}.ffn_{name}_exps.weight", count, *shape, layer=index)
            if experts.expert_bias:
                file.floats(f"blk.{index}.ffn_{name}_exps.bias", np.zeros((count, shape[0])))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    supported = [name for name, shape in SHAPES.items() if shape.architecture in ARCHITECTURES]
    parser.add_argument("shape", choices=supported)
    parser.add_argument("file", type=Path)
    parser.add_argument("--kind", choices=KINDS, default="Q4_0")
    parser.add_argument("--layers", type=int, help="fewer layers than the shape has")
    arguments = parser.parse_args()
    config = find_shape(arguments.shape)
    num_layers = arguments.layers or config.num_layers
    if not 1 <= num_layers <= config.num_layers:
        parser.error(f"--layers={num_layers}: allowed are 1 to {config.num_layers}")
    write_model(config, num_layers, arguments.kind, arguments.file)


if __name__ == "__main__":
    main()
