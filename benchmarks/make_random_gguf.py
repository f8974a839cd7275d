"""Writes a GGUF file of random weights for a shape, in the types of a published kind of file.

    python benchmarks/make_random_gguf.py olmoe-1b-7b olmoe.gguf --kind Q4_0 --layers 8
    python benchmarks/versus.py olmoe.gguf --formats gguf --tests pp512 tg32@512 tg16@128x32

The decoder of the shape's family says which weights there are, and the record of the family what GGUF files
call them. Codes are drawn in place, because the floats of a large model fit into no memory. Tokens choose
experts about evenly in the first layers. Name the number of layers beside a figure if it is not the shape's.

kind    matrices                                              as in
F32     all of them                                           convert_hf_to_gguf.py --outtype f32
Q4_0    all of them                                           llama-quantize --pure
Q8_0    all of them                                           llama-quantize --pure
Q4_K_M  Q4_K; Q6_K: head, v and down of half of the layers    llama-quantize
IQ4_XS  IQ4_XS; Q6_K: head; IQ4_NL where 256 does not divide  llama-quantize
MXFP4   MXFP4: experts; Q8_0: all others                      ggml-org's files of gpt-oss
"""

import argparse
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Type
from gguf_writing import add_facts, full_rope, write_out

from pellucid.backends.rope_frequencies import rope_frequencies
from pellucid.facts.json_object import JsonObject
from pellucid.facts.model_config import (
    Llama3RopeScaling,
    ModelConfig,
    ProportionalRopeScaling,
    RopeConfig,
)
from pellucid.loading.random_parameters import vector_number
from pellucid.loading.wanted_tensors import WantedTensor, wanted_tensors
from pellucid.models.gguf_metadata import BLOCK_COUNT, GgufMetadata
from pellucid.models.registry import family_of
from pellucid.shapes import SHAPES, find_shape

# Those whose files llama.cpp was seen to run.
ARCHITECTURES = (
    "LlamaForCausalLM",
    "Gemma3ForCausalLM",
    "Gemma4ForCausalLM",
    "OlmoeForCausalLM",
    "Qwen3MoeForCausalLM",
    "Qwen3_5ForCausalLM",
    "GptOssForCausalLM",
    "Lfm2ForCausalLM",
)
KINDS = ("F32", "Q4_0", "Q8_0", "Q4_K_M", "IQ4_XS", "MXFP4")

# Matrices that llama-quantize leaves as they are, by a part of their names.
_UNQUANTIZED: Mapping[str, Type] = {
    "ffn_gate_inp": Type.F32,
    "shortconv.conv": Type.F32,
    "ssm_conv1d": Type.F32,
    "per_layer_model_proj": Type.BF16,
}
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
_DIVISOR_OF_NONE = 1e30  # of the frequency of a pair that does not turn
_BYTES_AT_ONCE = 1 << 26


class RandomTensors:
    """Draws the tensors of a file one after the other.

    Args:
        num_layers: of the file.
        kind: one of `KINDS`.
    """

    def __init__(self, num_layers: int, kind: str) -> None:
        self._rng = np.random.default_rng(0)
        self._num_layers = num_layers
        self._kind = kind

    def draw(self, name: str, wanted: WantedTensor) -> tuple[npt.NDArray[Any], Type]:
        """The numbers of a tensor: floats, or bytes [rows, blocks of a row] of its type."""
        if wanted.vector is not None:
            return np.full(wanted.shape, vector_number(wanted.vector), np.float32), Type.F32
        tensor_type = self._type(name, wanted.shape[-1])
        if tensor_type in (Type.F32, Type.BF16):
            floats = self._rng.standard_normal(wanted.shape, np.float32)
            floats *= np.float32(wanted.shape[-1] ** -0.5)
            if tensor_type is Type.F32:
                return floats, tensor_type
            return gguf.quants.quantize(floats, tensor_type), tensor_type
        return self._blocks(wanted.shape, tensor_type), tensor_type

    def _blocks(self, shape: tuple[int, ...], tensor_type: Type) -> npt.NDArray[np.uint8]:
        """Of standard deviation about (number of inputs) ** -0.5."""
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
        return blocks.reshape(*shape[:-1], shape[-1] // block_size * block_bytes)

    def _type(self, name: str, num_inputs: int) -> Type:
        for part, tensor_type in _UNQUANTIZED.items():
            if part in name:
                return Type.F32 if self._kind == "F32" else tensor_type
        match self._kind:
            case "F32" | "Q4_0" | "Q8_0":
                return Type[self._kind]
            case "MXFP4":
                return Type.MXFP4 if "_exps" in name else Type.Q8_0
        is_head = name in ("token_embd.weight", "output.weight")
        if num_inputs % 256:
            return Type.Q8_0 if is_head else Type.IQ4_NL
        is_sensitive = "attn_v" in name or "ffn_down" in name
        if is_head or (self._kind == "Q4_K_M" and is_sensitive and self._has_more_bits(name)):
            return Type.Q6_K
        return Type.Q4_K if self._kind == "Q4_K_M" else Type.IQ4_XS

    def _has_more_bits(self, name: str) -> bool:
        """llama.cpp's use_more_bits."""
        match = re.match(r"blk\.(\d+)\.", name)
        assert match is not None
        layer, eighth = int(match[1]), self._num_layers // 8
        return layer < eighth or layer >= 7 * self._num_layers // 8 or (layer - eighth) % 3 == 2


def tensors_of(config: ModelConfig) -> dict[str, WantedTensor]:
    """The tensors of a model's GGUF file by name, in the order in which its decoder reads them."""
    family = family_of(config.architecture)
    assert family.gguf is not None
    architecture = family.gguf.architecture
    values = JsonObject(Path(), {f"{architecture}.{BLOCK_COUNT}": config.num_layers})
    names = family.gguf_names(
        config, GgufMetadata(values, architecture, {}, {}, architecture, {}, {})
    )
    return wanted_tensors(config, names)


def rope_divisors(rope: RopeConfig) -> npt.NDArray[np.float32] | None:
    """What the converter divides frequencies by, where it works out how they are scaled."""
    if not isinstance(rope.scaling, Llama3RopeScaling | ProportionalRopeScaling):
        return None
    plain, _ = rope_frequencies(replace(rope, scaling=None), 0)
    scaled, _ = rope_frequencies(rope, 0)
    divisors = np.full(plain.shape, _DIVISOR_OF_NONE)
    np.divide(plain, scaled, out=divisors, where=scaled > 0)
    return divisors.astype(np.float32)


def write_model(config: ModelConfig, kind: str, path: Path) -> None:
    """A file of one of `KINDS`."""
    family = family_of(config.architecture)
    assert family.gguf is not None
    writer = gguf.GGUFWriter(path, family.gguf.architecture)
    add_facts(writer, config)
    writer.add_tokenizer_model("none")
    if (divisors := rope_divisors(full_rope(config))) is not None:
        writer.add_tensor("rope_freqs.weight", divisors)
    random = RandomTensors(config.num_layers, kind)
    for name, wanted in tensors_of(config).items():
        tensor, tensor_type = random.draw(name, wanted)
        writer.add_tensor(name, tensor, raw_dtype=tensor_type)
    write_out(writer)


def allowed_layers(config: ModelConfig) -> list[int]:
    """Numbers of layers of a file: a part of the layers ends with one that sees all tokens, as whole models
    of several kinds of layers do."""
    sees_all = (layer.attention and layer.attention.window is None for layer in config.layers)
    ends = {number for number, is_full in enumerate(sees_all, 1) if is_full}
    return sorted(ends | {config.num_layers})


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    supported = [name for name, shape in SHAPES.items() if shape.architecture in ARCHITECTURES]
    parser.add_argument("shape", choices=supported)
    parser.add_argument("file", type=Path)
    parser.add_argument("--kind", choices=KINDS, default="Q4_0")
    parser.add_argument("--layers", type=int, help="fewer layers than the shape has")
    arguments = parser.parse_args()
    config = find_shape(arguments.shape)
    num_layers, allowed = arguments.layers or config.num_layers, allowed_layers(config)
    if num_layers not in allowed:
        parser.error(f"--layers={num_layers}: allowed are {', '.join(map(str, allowed))}")
    config = replace(config, layers=config.layers[:num_layers])
    write_model(config, arguments.kind, arguments.file)


if __name__ == "__main__":
    main()
