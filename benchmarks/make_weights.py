"""Writes the same random weights for every engine: a Hugging Face checkpoint and GGUF files.

    python benchmarks/make_weights.py qwen2.5-0.5b DIRECTORY

DIRECTORY gets config.json, tokenizer.json (made-up words) and model.safetensors (bf16) and, for llama.cpp,
model-BF16.gguf, model-Q8_0.gguf and model-Q4_0.gguf, quantized by llama.cpp itself, the embedding and the
head included, as pellucid does it. Rotations are not scaled: it makes no difference to speed. Needs
pellucid, gguf and llama-cpp-python.
"""

import argparse
import ctypes
import itertools
import json
import string
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import ml_dtypes
import numpy as np
import numpy.typing as npt
from gguf_writing import add_facts, write_out
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from pellucid.facts.model_config import ModelConfig
from pellucid.shapes import SHAPES, find_shape

MODEL_TYPES = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
QUANTIZED = ("Q8_0", "Q4_0")

Tensor = npt.NDArray[Any]


def tensor_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of a checkpoint in transformers' layout."""
    hidden = config.hidden_size
    attention, mlp = config.layers[0].attention, config.layers[0].mlp
    assert mlp is not None
    inner, head_dim = mlp.intermediate_size, attention.head_dim
    yield "model.embed_tokens.weight", (config.vocab_size, hidden)
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        for name, num_heads in (
            ("q_proj", attention.num_heads),
            ("k_proj", attention.num_kv_heads),
            ("v_proj", attention.num_kv_heads),
        ):
            yield f"{prefix}.self_attn.{name}.weight", (num_heads * head_dim, hidden)
            if attention.qkv_bias:
                yield f"{prefix}.self_attn.{name}.bias", (num_heads * head_dim,)
        yield f"{prefix}.self_attn.o_proj.weight", (hidden, attention.num_heads * head_dim)
        if attention.qk_norm is not None:
            yield f"{prefix}.self_attn.q_norm.weight", (head_dim,)
            yield f"{prefix}.self_attn.k_norm.weight", (head_dim,)
        yield f"{prefix}.mlp.gate_proj.weight", (inner, hidden)
        yield f"{prefix}.mlp.up_proj.weight", (inner, hidden)
        yield f"{prefix}.mlp.down_proj.weight", (hidden, inner)
        yield f"{prefix}.input_layernorm.weight", (hidden,)
        yield f"{prefix}.post_attention_layernorm.weight", (hidden,)
    yield "model.norm.weight", (hidden,)
    if not config.tie_word_embeddings:
        yield "lm_head.weight", (config.vocab_size, hidden)


def random_tensors(config: ModelConfig) -> dict[str, Tensor]:
    """Matrices that keep activations around one, norms of ones, small biases."""
    rng = np.random.default_rng(0)
    tensors = {}
    for name, shape in tensor_shapes(config):
        if len(shape) == 2:
            values = rng.standard_normal(shape, np.float32) * np.float32(shape[1] ** -0.5)
        elif name.endswith(".bias"):
            values = rng.standard_normal(shape, np.float32) * np.float32(0.1)
        else:
            values = np.ones(shape, np.float32)
        tensors[name] = values.astype(ml_dtypes.bfloat16)
    return tensors


def hf_config(config: ModelConfig) -> dict[str, Any]:
    """What config.json says."""
    attention, mlp = config.layers[0].attention, config.layers[0].mlp
    assert attention.rope is not None and mlp is not None
    return {
        "architectures": [config.architecture],
        "model_type": MODEL_TYPES[config.architecture],
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": mlp.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": attention.num_heads,
        "num_key_value_heads": attention.num_kv_heads,
        "head_dim": attention.head_dim,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": attention.rope.theta,
        "hidden_act": "silu",
        "tie_word_embeddings": config.tie_word_embeddings,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "bfloat16",
    }


SPACE = "\u0120"  # byte-level BPE's way to write it
MERGE = (SPACE, "a")  # the only one: llama.cpp wants one at least


def vocabulary_of(vocab_size: int) -> list[str]:
    """Bytes, the merge, and made-up words: something to detokenize."""
    words = ("".join(word) for word in itertools.product(string.ascii_lowercase, repeat=4))
    spaced = (f"{SPACE}{word}" for word in words)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return list(itertools.islice(itertools.chain(alphabet, ["".join(MERGE)], spaced), vocab_size))


def write_tokenizer(vocab_size: int, path: Path) -> None:
    """Byte-level BPE."""
    vocabulary = {entry: index for index, entry in enumerate(vocabulary_of(vocab_size))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[MERGE]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(path))


def write_gguf(config: ModelConfig, tensors: Mapping[str, Tensor], path: Path) -> None:
    """The checkpoint as llama.cpp reads it: matrices in bf16, vectors in f32, the same tokenizer."""
    attention = config.attentions[0]
    writer = gguf.GGUFWriter(path, MODEL_TYPES[config.architecture])
    add_facts(writer, config)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(vocabulary_of(config.vocab_size))
    writer.add_token_types([gguf.TokenType.NORMAL] * config.vocab_size)
    writer.add_token_merges([" ".join(MERGE)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    for name, tensor in tensors.items():
        if tensor.ndim == 1:
            writer.add_tensor(gguf_name(name), tensor.astype(np.float32))
            continue
        if config.architecture == "LlamaForCausalLM" and name.endswith(
            ("q_proj.weight", "k_proj.weight")
        ):
            tensor = interleaved_rotations(tensor, attention.head_dim)
        rows = np.ascontiguousarray(tensor).view(np.uint8)
        writer.add_tensor(gguf_name(name), rows, raw_dtype=gguf.GGMLQuantizationType.BF16)
    write_out(writer)


def gguf_name(name: str) -> str:
    """llama.cpp's name of a tensor."""
    module, kind = name.rsplit(".", 1)
    if not module.startswith("model.layers."):
        return f"{GGUF_NAMES[module]}.{kind}"
    layer, module = module.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{GGUF_NAMES[module]}.{kind}"


def interleaved_rotations(weight: Tensor, head_dim: int) -> Tensor:
    """llama.cpp rotates neighbours in Llama, where transformers rotates halves: rows move."""
    num_rows, num_columns = weight.shape
    halves = weight.reshape(num_rows // head_dim, 2, head_dim // 2, num_columns)
    return halves.swapaxes(1, 2).reshape(num_rows, num_columns)


def quantize_gguf(source: Path, target: Path, file_type: str) -> None:
    """Lets llama.cpp quantize every matrix to one type."""
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{file_type}")
    parameters.pure = True
    status = llama_cpp.llama_model_quantize(
        str(source).encode(), str(target).encode(), ctypes.byref(parameters)
    )
    if status != 0:
        raise RuntimeError(f"llama_model_quantize to {file_type}: {status}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    supported = [name for name, shape in SHAPES.items() if shape.architecture in MODEL_TYPES]
    parser.add_argument("shape", choices=supported)
    parser.add_argument("directory", type=Path)
    arguments = parser.parse_args()
    config, directory = find_shape(arguments.shape), arguments.directory
    directory.mkdir(parents=True, exist_ok=True)
    tensors = random_tensors(config)
    (directory / "config.json").write_text(json.dumps(hf_config(config), indent=2))
    write_tokenizer(config.vocab_size, directory / "tokenizer.json")
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    bf16 = directory / "model-BF16.gguf"
    write_gguf(config, tensors, bf16)
    for file_type in QUANTIZED:
        quantize_gguf(bf16, directory / f"model-{file_type}.gguf", file_type)


if __name__ == "__main__":
    main()
