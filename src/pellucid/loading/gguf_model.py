"""Opens a GGUF model: its configuration, tensors and tokenizer."""

from functools import partial
from pathlib import Path

from gguf.constants import MODEL_ARCH, MODEL_ARCH_NAMES
from gguf.tensor_mapping import get_tensor_name_map

from pellucid.loading.gguf_checkpoint import GgufCheckpoint
from pellucid.loading.gguf_config import (
    read_gguf_architecture,
    read_gguf_config,
    read_gguf_sampling_params,
)
from pellucid.loading.gguf_tensors import GgufTensors
from pellucid.loading.gguf_tokenizer import read_gguf_tokenizer
from pellucid.loading.json_object import JsonObject
from pellucid.loading.stored_model import StoredModel, StoredTokenizer
from pellucid.loading.weight_names import gguf_weight_names

_ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


def open_gguf(path: Path) -> StoredModel:
    """Opens a GGUF file, or all parts of a split one, and checks what can be checked without reading weights.

    Raises:
        ValueError: it is damaged, or not a model that we run.
    """
    checkpoint = GgufCheckpoint(path)
    architecture = read_gguf_architecture(checkpoint)
    plain = GgufTensors(checkpoint, num_heads={})
    rope_tensors = {name: plain.tensor(name) for name in _ROPE_TENSORS if name in plain}
    config = read_gguf_config(checkpoint, rope_tensors)
    num_heads: dict[str, int] = {}
    if architecture == "llama":
        for index, layer in enumerate(config.layers):
            num_heads[f"blk.{index}.attn_q"] = layer.attention.num_heads
            num_heads[f"blk.{index}.attn_k"] = layer.attention.num_kv_heads
    [gguf_architecture] = [each for each in MODEL_ARCH if MODEL_ARCH_NAMES[each] == architecture]
    names = get_tensor_name_map(gguf_architecture, n_blocks=1)
    return StoredModel(
        checkpoint.path,
        config,
        GgufTensors(checkpoint, num_heads),
        gguf_weight_names(config.architecture, names.get_name),
        default_sampling_params=read_gguf_sampling_params(checkpoint),
        read_tokenizer=partial(_read_tokenizer, checkpoint),
    )


def _read_tokenizer(checkpoint: GgufCheckpoint) -> StoredTokenizer:
    tokenizer = read_gguf_tokenizer(JsonObject(checkpoint.path, checkpoint.metadata))
    checkpoint.metadata.clear()  # strings by the hundred thousand, no longer needed
    return tokenizer
