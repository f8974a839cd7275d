"""The metadata of a GGUF file as facts of a model: typed access to its keys, and what families share."""

import math
from collections import ChainMap
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from pellucid.facts.json_object import MAX_INTEGER, JsonObject
from pellucid.models.rope_config import FULL, SLIDING, every_nth_full

BLOCK_COUNT, CONTEXT, WINDOW = "block_count", "context_length", "attention.sliding_window"
DRAFTING_COUNT = "nextn_predict_layers"
MAX_DRAFTING = 64  # layers; far above any model
EMBEDDING, FEED_FORWARD = "embedding_length", "feed_forward_length"
HEADS, KV_HEADS = "attention.head_count", "attention.head_count_kv"
KEY_LENGTH, VALUE_LENGTH = "attention.key_length", "attention.value_length"
HEAD_DIM = "attention.head_dim"  # the same, which Ollama's converter of Llama also writes
RMS_EPSILON, EPSILON = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"
ROPE_DIM, ROPE_BASE = "rope.dimension_count", "rope.freq_base"
ATTENTION_SCALE = "attention.scale"
YARN_LOG_MULTIPLIER = "rope.scaling.yarn_log_multiplier"
EXPERT_WIDTH, SHARED_WIDTH = "expert_feed_forward_length", "expert_shared_feed_forward_length"
SLIDING_PATTERN = "attention.sliding_window_pattern"
ROPE_SCALING, ROPE_SCALING_FACTOR = "rope.scaling.type", "rope.scaling.factor"
_ORIGINAL_CONTEXT = "rope.scaling.original_context_length"
_ATTENTION_FACTOR = "rope.scaling.attn_factor"
_BETA_FAST, _BETA_SLOW = "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"

ROPE_KEYS = frozenset(
    {ROPE_DIM, ROPE_BASE, ROPE_SCALING, ROPE_SCALING_FACTOR, _ORIGINAL_CONTEXT, _ATTENTION_FACTOR}
)
YARN_KEYS = frozenset({_BETA_FAST, _BETA_SLOW})
# Of families with norms as Llama's; those that do not read YaRN's keys have the first ones.
NORM_AND_ROPE_KEYS = ROPE_KEYS | {RMS_EPSILON}
LLAMA_KEYS = NORM_AND_ROPE_KEYS | YARN_KEYS
# A key -> the tensors of layers whose inputs it counts.
_WIDTHS = {
    FEED_FORWARD: "ffn_down",
    EXPERT_WIDTH: "ffn_down_exps",
    SHARED_WIDTH: "ffn_down_shexp",
}


@dataclass(frozen=True)
class GgufMetadata:
    """The keys of a file that belong to its architecture, and its tensors' shapes.

    Args:
        values: all keys; floats are the shortest decimals of their f32.
        architecture: llama.cpp's name of it.
        shapes: of all tensors by llama.cpp's names, rows first.
        rope_factors: the tensors that are facts rather than weights, by name: rotary divisors.
        stored_architecture: the file's name of the architecture, which may be another one.
        stored_keys: the file's names of keys that it calls something else, by llama.cpp's.
        stored_tensors: the file's names of tensors that it calls something else, by llama.cpp's.
    """

    values: JsonObject
    architecture: str
    shapes: Mapping[str, Sequence[int]]
    rope_factors: Mapping[str, list[float]]
    stored_architecture: str
    stored_keys: Mapping[str, str]
    stored_tensors: Mapping[str, str]

    @property
    def prefix(self) -> str:
        """What stands before the keys of the architecture."""
        return f"{self.stored_architecture}."

    def full_key(self, key: str) -> str:
        """The file's name of a key."""
        return self.prefix + self.stored_keys.get(key, key)

    def error(self, key: str, allowed: str) -> ValueError:
        return self.values.error(self.full_key(key), allowed)

    def get(self, key: str, default: Any = None) -> Any:
        return self.values.values.get(self.full_key(key), default)

    def integer(self, key: str) -> int:
        """A number, which some files give once for each layer."""
        if isinstance(self.get(key), list) and key != BLOCK_COUNT:
            numbers = set(self.of_layers(key))
            if len(numbers) > 1:
                raise self.error(key, "must be the same for all layers")
            return numbers.pop()
        return self.values.integer(self.full_key(key))

    def optional_integer(self, key: str) -> int | None:
        """None also for 0, which stands for none."""
        value = self.get(key)
        is_none = value is None or (type(value) is int and value == 0)
        return None if is_none else self.integer(key)

    def has(self, key: str) -> bool:
        """Whether the file has a number `key` that is not 0, which stands for none."""
        return self.optional_integer(key) is not None

    def of_layers(self, key: str, minimum: int = 1) -> list[int]:
        """A number of each layer, where the file has one for all, or one for each."""
        count = num_layers(self)
        value = self.get(key)
        if not isinstance(value, list):
            return [self.integer(key)] * count
        # Layers that draft may be counted.
        lengths = {count, self.integer(BLOCK_COUNT)}
        if len(value) not in lengths or not all(
            type(each) is int and minimum <= each <= MAX_INTEGER for each in value
        ):
            sizes = " or ".join(map(str, sorted(lengths)))
            raise self.error(key, f"must be a whole number, or {sizes} of them, at least {minimum}")
        return value[:count]

    def number(self, key: str) -> float:
        return self.values.number(self.full_key(key))

    def optional_number(self, key: str) -> float | None:
        """None also for 0, which stands for none."""
        value = self.get(key)
        is_none = value is None or (type(value) in (int, float) and value == 0)
        return None if is_none else self.number(key)

    def optional_string(self, key: str) -> str | None:
        """None also for an empty string."""
        if self.get(key) is None:
            return None
        return self.values.string(self.full_key(key)) or None

    def flags_of_layers(self, key: str) -> list[bool]:
        """A truth value of each layer."""
        count, value = num_layers(self), self.get(key)
        lengths = {count, self.integer(BLOCK_COUNT)}
        if (
            not isinstance(value, list)
            or len(value) not in lengths
            or not all(isinstance(each, int) and each in (0, 1) for each in value)
        ):
            sizes = " or ".join(map(str, sorted(lengths)))
            raise self.error(key, f"must be a list of {sizes} booleans")
        return [bool(each) for each in value[:count]]

    def given(self, **keys: str) -> dict[str, Any]:
        """Keys of config.json -> numbers of the metadata that are there."""
        return {name: self.number(key) for name, key in keys.items() if self.get(key) is not None}

    def with_value(self, key: str, value: Any) -> "GgufMetadata":
        """The same with another value of a key."""
        values = ChainMap(
            {self.full_key(key): value}, cast(MutableMapping[str, Any], self.values.values)
        )
        return replace(self, values=JsonObject(self.values.path, values, self.values.name))

    def boolean(self, key: str, default: bool) -> bool:
        return self.values.boolean(self.full_key(key), default)

    def has_tensor(self, name: str) -> bool:
        return name in self.shapes

    def width_of_layers(self, key: str) -> int:
        """The width `key`; where it is missing, that of the tensors which have it."""
        if self.get(key) is None and (widths := self.widths_of_tensors(key)):
            return max(widths)
        return self.integer(key)

    def widths_of_tensors(self, key: str) -> set[int]:
        """The widths that the layers' tensors have, of which `key` says one."""
        name = _WIDTHS[key]
        shapes = (self.shapes.get(f"blk.{layer}.{name}.weight") for layer in self._layers())
        return {shape[-1] for shape in shapes if shape}

    def has_tensor_of_layers(self, name: str) -> bool:
        """Whether a layer has the tensor `name`, in which "{i}" stands for the layer."""
        return any(name.replace("{i}", str(layer)) in self.shapes for layer in self._layers())

    def _layers(self) -> range:
        """The layers that may have tensors: a file may claim billions."""
        return range(min(num_layers(self), len(self.shapes)))

    def model_values(self) -> dict[str, Any]:
        """The values that config.json has in every family."""
        if not self.has_tensor("token_embd.weight"):
            raise ValueError(f"{self.values.path}: tensor token_embd.weight is missing")
        return {
            # Files name it in several ways; the embedding decides.
            "vocab_size": self.shapes["token_embd.weight"][0],
            "tie_word_embeddings": not self.has_tensor("output.weight"),
            # The tokenizer's keys say both.
            "bos_token_id": None,
            "eos_token_id": None,
        }


def num_layers(metadata: GgufMetadata) -> int:
    """The number of the model's layers. `block_count` also counts layers for drafts, which follow them."""
    count, num_drafting = metadata.integer(BLOCK_COUNT), metadata.get(DRAFTING_COUNT, 0)
    most = min(count - 1, MAX_DRAFTING)
    if type(num_drafting) is not int or not 0 <= num_drafting <= most:
        raise metadata.error(DRAFTING_COUNT, f"must be from 0 to {most}")
    return count - num_drafting


def with_widths_of_tensors(metadata: GgufMetadata) -> tuple[GgufMetadata, tuple[str, ...]]:
    """The metadata with the widths that the tensors have, and a sentence for each key that says something else."""
    notes = []
    for key in _WIDTHS:
        widths, given = metadata.widths_of_tensors(key), metadata.get(key)
        if len(widths) != 1 or isinstance(given, list) or given in (None, *widths):
            continue
        width = widths.pop()
        metadata.integer(key)
        notes.append(
            f"{metadata.full_key(key)}={given}, but the tensors are {width} wide: that counts"
        )
        metadata = metadata.with_value(key, width)
    return metadata, tuple(notes)


def llama_like_values(metadata: GgufMetadata, *, partial_rotary: bool = False) -> dict[str, Any]:
    """config.json of Llama and what descends from it.

    Args:
        partial_rotary: whether the family can rotate only a share of each head.
    """
    hidden_size, num_heads = metadata.integer(EMBEDDING), metadata.integer(HEADS)
    head_dim = metadata.optional_integer(KEY_LENGTH) or hidden_size // num_heads
    if head_dim == 0:
        raise metadata.error(HEADS, f"must be at most the embedding's {hidden_size}")
    for key in (VALUE_LENGTH, HEAD_DIM):
        if metadata.get(key, head_dim) != head_dim:
            raise metadata.error(
                key, f"must be the head's {head_dim}, {metadata.full_key(KEY_LENGTH)}"
            )
    rope = rope_values(metadata, head_dim, partial_rotary)
    values: dict[str, Any] = {
        **metadata.model_values(),
        "hidden_size": hidden_size,
        "intermediate_size": metadata.integer(FEED_FORWARD),
        "num_hidden_layers": num_layers(metadata),
        "num_attention_heads": num_heads,
        "num_key_value_heads": metadata.optional_integer(KV_HEADS) or num_heads,
        "head_dim": head_dim,
        "max_position_embeddings": metadata.integer(CONTEXT),
        "rope_parameters": rope,
    }
    epsilon = EPSILON if metadata.get(EPSILON) is not None else RMS_EPSILON
    values["layer_norm_eps" if epsilon == EPSILON else "rms_norm_eps"] = metadata.number(epsilon)
    if "original_max_position_embeddings" in rope:  # where Phi-3 has it
        values["original_max_position_embeddings"] = rope["original_max_position_embeddings"]
    if (window := metadata.optional_integer(WINDOW)) is not None:
        values["sliding_window"] = window
    return values


def rope_values(metadata: GgufMetadata, head_dim: int, partial_rotary: bool) -> dict[str, Any]:
    """`rope_parameters` of config.json."""
    dim = metadata.optional_integer(ROPE_DIM) or head_dim
    rope: dict[str, Any] = {"rope_theta": metadata.optional_number(ROPE_BASE) or 10_000.0}
    if dim != head_dim:
        if not partial_rotary:
            raise metadata.error(ROPE_DIM, f"must be the head's {head_dim}")
        rope["partial_rotary_factor"] = dim / head_dim
    scaling = metadata.optional_string(ROPE_SCALING)
    factor = metadata.optional_number(ROPE_SCALING_FACTOR)
    if scaling is None:  # as in llama.cpp
        scaling = "none" if factor in (None, 1.0) else "linear"
    original = metadata.optional_integer(_ORIGINAL_CONTEXT) or metadata.integer(CONTEXT)
    attention_factor = metadata.optional_number(_ATTENTION_FACTOR)
    factors = metadata.rope_factors
    for name, divisors in factors.items():
        if len(divisors) != dim // 2:
            raise metadata.error(
                ROPE_DIM, f"must be twice the {len(divisors)} numbers of the tensor {name}"
            )
    if {"rope_factors_long.weight", "rope_factors_short.weight"} <= factors.keys():
        rope |= {
            "rope_type": "longrope",
            "long_factor": factors["rope_factors_long.weight"],
            "short_factor": factors["rope_factors_short.weight"],
            "original_max_position_embeddings": original,
            "attention_factor": attention_factor,
        }
    elif "rope_freqs.weight" in factors:
        # Llama 3.1's interpolation, worked out by the converter. Divisors of each frequency are what
        # LongRoPE has, here the same at all lengths.
        rope |= {
            "rope_type": "longrope",
            "long_factor": factors["rope_freqs.weight"],
            "short_factor": factors["rope_freqs.weight"],
            "original_max_position_embeddings": original,
            "attention_factor": 1.0,
        }
    elif scaling == "linear":
        rope |= {"rope_type": "linear", "factor": metadata.number(ROPE_SCALING_FACTOR)}
    elif scaling == "yarn":
        factor = metadata.number(ROPE_SCALING_FACTOR)
        if attention_factor is not None:  # llama.cpp multiplies YaRN's own
            attention_factor *= 0.1 * math.log(factor) + 1.0
        rope |= {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": original,
            "attention_factor": attention_factor,
            "beta_fast": metadata.optional_number(_BETA_FAST),
            "beta_slow": metadata.optional_number(_BETA_SLOW),
        }
    elif scaling != "none":
        raise metadata.error(ROPE_SCALING, "supported are none, linear and yarn")
    elif attention_factor not in (None, 1.0):
        raise metadata.error(_ATTENTION_FACTOR, "must be 1 where nothing is scaled")
    return rope


def sliding_pattern(metadata: GgufMetadata) -> dict[str, Any]:
    """`layer_types` of config.json where the file says which layers have the window."""
    pattern = metadata.get(SLIDING_PATTERN)
    if pattern is None:
        return {}
    if isinstance(pattern, int) and not isinstance(pattern, bool):
        period = metadata.integer(SLIDING_PATTERN)
        return {"layer_types": every_nth_full(num_layers(metadata), period)}
    if not isinstance(pattern, list) or not all(isinstance(item, bool) for item in pattern):
        raise metadata.error(SLIDING_PATTERN, "must be a number of layers or a list of booleans")
    return {"layer_types": [SLIDING if item else FULL for item in pattern]}
