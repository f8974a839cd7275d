"""Writes a GGUF file of random weights for a shape with experts: all matrices in Q4_0, routers in f32.

    python benchmarks/make_expert_gguf.py olmoe-1b-7b olmoe.gguf --layers 8
    pellucid bench olmoe.gguf --prompt 512 --gen 32 --batch 1,32
    llama-bench -m olmoe.gguf -t 2 -p 512 -n 32

Codes are drawn in place, because the floats of such a model fit into no memory: tokens choose experts
about evenly in the first layers. Name the number of layers beside a figure if it is not the shape's.
"""

import argparse
import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf_writing import add_shape, write_out

from pellucid.config import ExpertsConfig, ModelConfig
from pellucid.shapes import SHAPES, find_shape

ARCHITECTURES = {"OlmoeForCausalLM": "olmoe", "Qwen3MoeForCausalLM": "qwen3moe"}
BLOCK, BLOCK_BYTES = 32, 18  # inputs and bytes of a block of Q4_0
# Two codes of a byte, of which 0 becomes 8: their mean is then the zero point.
CENTERED = np.array([(byte & 15 or 8) | (byte >> 4 or 8) << 4 for byte in range(256)], np.uint8)


class RandomFile:
    """A GGUF file whose tensors are drawn one after the other.

    Args:
        path: of the file.
        architecture: llama.cpp's name.
    """

    def __init__(self, path: Path, architecture: str) -> None:
        self.writer = gguf.GGUFWriter(path, architecture)
        self._rng = np.random.default_rng(0)

    def blocks(self, name: str, *shape: int) -> None:
        """A tensor of Q4_0, of standard deviation about (number of inputs) ** -0.5."""
        num_rows, num_blocks = math.prod(shape[:-1]), shape[-1] // BLOCK
        blocks = np.empty((num_rows, num_blocks, BLOCK_BYTES), np.uint8)
        words = self._rng.integers(0, 1 << 64, 2 * num_rows * num_blocks, dtype=np.uint64)
        blocks[..., 2:] = CENTERED[words.view(np.uint8).reshape(num_rows, num_blocks, 16)]
        blocks[..., :2] = np.array([(12 / shape[-1]) ** 0.5 / 16], np.float16).view(np.uint8)
        self.writer.add_tensor(
            f"{name}.weight",
            blocks.reshape(*shape[:-1], num_blocks * BLOCK_BYTES),
            raw_dtype=gguf.GGMLQuantizationType.Q4_0,
        )

    def floats(self, name: str, tensor: npt.NDArray[Any]) -> None:
        self.writer.add_tensor(f"{name}.weight", tensor.astype(np.float32))

    def normal(self, name: str, num_rows: int, num_columns: int) -> None:
        """A matrix of floats, of that standard deviation."""
        self.floats(name, self._rng.standard_normal((num_rows, num_columns)) * num_columns**-0.5)


def add_expert_facts(writer: gguf.GGUFWriter, config: ModelConfig, experts: ExpertsConfig) -> None:
    writer.add_expert_count(experts.num_experts)
    writer.add_expert_used_count(experts.num_chosen)
    if config.architecture == "Qwen3MoeForCausalLM":
        writer.add_expert_feed_forward_length(experts.intermediate_size)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(config.vocab_size)


def write_model(config: ModelConfig, num_layers: int, path: Path) -> None:
    """The first `num_layers` layers of a shape."""
    attention, experts = config.layers[0].attention, config.layers[0].experts
    assert experts is not None
    hidden, inner = config.hidden_size, experts.intermediate_size
    q_width = attention.num_heads * attention.head_dim
    kv_width = attention.num_kv_heads * attention.head_dim
    norms = (q_width, kv_width) if attention.qk_norm == "width" else (attention.head_dim,) * 2
    file = RandomFile(path, ARCHITECTURES[config.architecture])
    add_shape(file.writer, config, num_layers, inner)
    add_expert_facts(file.writer, config, experts)
    file.blocks("token_embd", config.vocab_size, hidden)
    for layer in range(num_layers):
        block = f"blk.{layer}"
        for name, size in zip(
            ("attn_norm", "ffn_norm", "attn_q_norm", "attn_k_norm"),
            (hidden, hidden, *norms),
            strict=True,
        ):
            file.floats(f"{block}.{name}", np.ones(size))
        for name, width in (("attn_q", q_width), ("attn_k", kv_width), ("attn_v", kv_width)):
            file.blocks(f"{block}.{name}", width, hidden)
        file.blocks(f"{block}.attn_output", hidden, q_width)
        file.normal(f"{block}.ffn_gate_inp", experts.num_experts, hidden)
        file.blocks(f"{block}.ffn_gate_exps", experts.num_experts, inner, hidden)
        file.blocks(f"{block}.ffn_up_exps", experts.num_experts, inner, hidden)
        file.blocks(f"{block}.ffn_down_exps", experts.num_experts, hidden, inner)
    file.floats("output_norm", np.ones(hidden))
    file.blocks("output", config.vocab_size, hidden)
    write_out(file.writer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    supported = [name for name, shape in SHAPES.items() if shape.architecture in ARCHITECTURES]
    parser.add_argument("shape", choices=supported)
    parser.add_argument("file", type=Path)
    parser.add_argument("--layers", type=int, help="fewer layers than the shape has")
    arguments = parser.parse_args()
    config = find_shape(arguments.shape)
    num_layers = arguments.layers or config.num_layers
    if not 1 <= num_layers <= config.num_layers:
        parser.error(f"--layers={num_layers}: allowed are 1 to {config.num_layers}")
    write_model(config, num_layers, arguments.file)


if __name__ == "__main__":
    main()
