"""What checkpoints hold beside a text model: encoders of images and of sound, layers that draft, scales of a cache."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from msgspec import Struct

NOTHING = "(?!)"


class UnusedPart(Struct, frozen=True):
    """A part of a larger model that text does not need. Patterns match whole names.

    Args:
        name: for people.
        hf: its tensors in Hugging Face layout.
        gguf: its tensors in a GGUF file.
        keys: its keys in the metadata of a GGUF file, "<architecture>." left out.
    """

    name: str
    hf: str = NOTHING
    gguf: str = NOTHING
    keys: str = NOTHING


# "s." is DeepSeek-OCR's second encoder; "mm.a." projects sound, "mm." else images.
IMAGES = UnusedPart(
    "an encoder of images",
    hf=r"(model\.)?(vision_tower|vision_model|vision_encoder|visual|vit|multi_modal_projector"
    r"|connector|embed_vision)\..*",
    gguf=r"(v|s)\..*|mm\.(?!a\.).*|model\.vision_tower\..*",
    keys=r"(vision|mm|clip)\..*|(image|vision|video)_.*|n_deepstack_layers|spatial_merge_size"
    r"|tokens_per_image",
)
SOUND = UnusedPart(
    "an encoder of sound",
    hf=r"(model\.)?(audio_tower|embed_audio)\..*",
    gguf=r"(a|mm\.a)\..*",
    keys=r"audio\..*|audio_.*",
)
DRAFTS = UnusedPart(
    "layers that draft",
    hf=r"mtp\..*|model\.mtp_layers\..*",
    gguf=r"mtp\..*|blk\.\d+\.nextn\..*",
    keys="nextn_predict_layers",
)
# For engines whose FP8 KV cache has one scale for each layer, measured in advance. Ours have scales of their own, or
# need none. The names that vLLM knows (maybe_remap_kv_scale_name), compressed-tensors' among them.
KV_SCALES = UnusedPart(
    "scales of an FP8 KV cache",
    hf=r"(.*\.)?(self_attn|attn|attention)\."
    r"(((q|k|v|kv|qkv)_proj\.)?(q|k|v|kv|prob)_(scale|zero_point)|(k|v)_proj\.output_scale)",
)
UNUSED_PARTS = (IMAGES, SOUND, DRAFTS, KV_SCALES)


def left_out_note(
    tensors: Mapping[str, int], keys: Mapping[str, int] = MappingProxyType({})
) -> tuple[str, ...]:
    """One sentence on the parts that a checkpoint holds and that are left out; none where it has none.

    Args:
        tensors: the number of each part's tensors, by the part's name.
        keys: the number of its keys in metadata.
    """
    parts = []
    for name in dict.fromkeys((*(part.name for part in UNUSED_PARTS), *tensors, *keys)):
        if not tensors.get(name) and not keys.get(name):
            continue
        counts = (
            _counted(tensors.get(name, 0), "tensor"),
            _counted(keys.get(name, 0), "key"),
        )
        parts.append(f"{name} ({', '.join(count for count in counts if count)})")
    if not parts:
        return ()
    return (f"left out: {_listed(parts)}",)


def count_parts(names: Iterable[str], patterns: Mapping[str, re.Pattern[str]]) -> Counter[str]:
    """How many of `names` belong to each part.

    Args:
        patterns: of whole names, by the part's name.
    """
    found: Counter[str] = Counter()
    for name in names:
        for part, pattern in patterns.items():
            if pattern.fullmatch(name):
                found[part] += 1
                break
    return found


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}" if number else ""


def _listed(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
