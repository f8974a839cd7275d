"""Which keys of a GGUF file are read, which are left out, and which are refused."""

import json
import re
from collections import Counter
from collections.abc import Mapping

from pellucid.models import gguf_metadata as gguf
from pellucid.models.unused_parts import IMAGES, UNUSED_PARTS

# Keys of all families.
_SIZES = {
    gguf.BLOCK_COUNT,
    gguf.CONTEXT,
    gguf.EMBEDDING,
    gguf.FEED_FORWARD,
    gguf.HEADS,
    gguf.KV_HEADS,
}
_SIZES |= {gguf.KEY_LENGTH, gguf.VALUE_LENGTH, gguf.HEAD_DIM}
# Keys that no decoder reads. The sections of rope of three axes are of positions that text has once.
_NOTES = {
    "vocab_size",
    "rope.scaling.finetuned",
    "tensor_data_layout",
    "rope.dimension_sections",
    "rope.mrope_section",
    "rope.mrope_interleaved",
    "mrope_sections",
}
# Keys that change nothing with the one value given here.
_NO_EFFECT: Mapping[str, float] = {
    "attention.causal": True,
    "attention.clamp_kqv": 0,
    "attention.max_alibi_bias": 0,
    "embedding_scale": 1,
    "expert_count": 0,
    "expert_group_count": 1,
    "expert_group_used_count": 1,
    "expert_shared_count": 0,
    "expert_used_count": 0,
    "expert_weights_norm": True,
    "expert_weights_scale": 1,
    "logit_scale": 1,
    "norm_top_k_prob": True,
    "residual_scale": 1,
    "rope.scale_linear": 1,
    gguf.YARN_LOG_MULTIPLIER: 0,
}
# What stands before keys that say nothing about the arithmetic. A key with another prefix may say that the
# weights are transformed, as "prism.hadamard.weight_names" does.
_HARMLESS_PREFIXES = ("general.", "tokenizer.", "quantize.", "split.", "mradermacher.")
_LEFT_OVER = "keys of other models"


def check_keys(
    metadata: gguf.GgufMetadata, known: frozenset[str], left_over: frozenset[str]
) -> Counter[str]:
    """How many keys belong to parts that are left out, by the part's name.

    Args:
        metadata: of the file.
        known: the keys that the family reads, "<architecture>." left out.
        left_over: those that mean nothing for it.

    Raises:
        ValueError: a key may change what the model computes, in a way unknown here.
    """
    left_out: Counter[str] = Counter()
    usual_keys = {stored: usual for usual, stored in metadata.stored_keys.items()}
    for full_key in metadata.values.values:
        key = full_key.removeprefix(metadata.prefix)
        key = usual_keys.get(key, key)
        if not full_key.startswith(metadata.prefix):
            if re.fullmatch(IMAGES.keys, key):
                left_out[IMAGES.name] += 1
            elif not key.startswith(_HARMLESS_PREFIXES):
                raise metadata.values.error(
                    key, "not supported: it may say that weights are transformed"
                )
        elif key in known or key in _SIZES or key in _NOTES:
            continue
        elif key in left_over:
            left_out[_LEFT_OVER] += 1
        elif (part := _part_of(key)) is not None:
            left_out[part] += metadata.get(key) != 0
        elif key not in _NO_EFFECT:
            raise metadata.error(key, "not supported")
        elif metadata.get(key) != _NO_EFFECT[key]:
            raise metadata.error(key, f"supported is {json.dumps(_NO_EFFECT[key])}")
    return left_out


def _part_of(key: str) -> str | None:
    """The name of the part of a larger model that a key describes."""
    return next((part.name for part in UNUSED_PARTS if re.fullmatch(part.keys, key)), None)
