"""The record of a family of models: its names in checkpoints, how its facts are read, its decoder."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from pellucid.backends.ops import Decoder, Ops, Parameters
from pellucid.facts.json_object import JsonObject
from pellucid.facts.model_config import ModelConfig
from pellucid.models.config_defaults import OTHER_NAMES, config_defaults
from pellucid.models.gguf_metadata import BLOCK_COUNT, GgufMetadata, num_layers
from pellucid.models.llama_decoder import LlamaDecoder
from pellucid.models.stored_weights import QKV, Recipe, Source, Step, StoredWeight
from pellucid.models.unused_parts import DRAFTS, NOTHING, UNUSED_PARTS

# In the names of llama.cpp, of its first files with experts, of Hugging Face and of ours.
_EXPERTS = r"_exps\.|\.ffn_(gate|up|down)\.\d+\.|\.experts\."

DecoderClass: TypeAlias = Callable[[ModelConfig, Parameters, Ops], Decoder]


@dataclass(frozen=True)
class WeightNames:
    """The names in one checkpoint.

    Args:
        recipes: our module, with "{i}" for the layer -> how it is made.
        prefixes: what may stand before the checkpoint's names.
        unused: names of tensors that say nothing new: buffers, and projections that no layer reads.
        parts: names of tensors of the parts of a larger model that are left out, by the part's name.
        stored: other names that this checkpoint has for some tensors, by the usual name.
        left_out: tensors of the checkpoint that belong to layers which other processes compute.
    """

    recipes: Mapping[str, Recipe]
    prefixes: tuple[str, ...]
    unused: re.Pattern[str]
    parts: Mapping[str, re.Pattern[str]] = field(default_factory=dict)
    stored: Mapping[str, str] = field(default_factory=dict)
    left_out: frozenset[str] = frozenset()

    def candidates(self, tensor: str) -> tuple[str, ...]:
        """The names that the checkpoint may have for a tensor of a recipe."""
        names = (prefix + tensor for prefix in self.prefixes)
        return tuple(dict.fromkeys(self.stored.get(name, name) for name in names))

    def is_unused(self, tensor: str) -> bool:
        """Whether the checkpoint holds `tensor` although the decoder does not need it."""
        return tensor in self.left_out or any(
            pattern.fullmatch(tensor) is not None for pattern in (self.unused, *self.parts.values())
        )

    def is_table(self, tensor: str) -> bool:
        """Whether a tensor of the checkpoint stays in its file, where steps read single rows."""
        tables = (
            source.tensor("weight")
            for recipe in self.recipes.values()
            if recipe.is_table
            for source in recipe.sources
        )
        return any(tensor in self.candidates(name) for name in tables)

    @staticmethod
    def is_expert(tensor: str) -> bool:
        """Whether a tensor of the checkpoint belongs to one expert of many, or to all of them."""
        return re.search(_EXPERTS, tensor) is not None

    def without(self, kind: type[Step]) -> "WeightNames":
        """The names in a checkpoint that a tool wrote which has taken the steps of a kind."""
        recipes = {module: recipe.without(kind) for module, recipe in self.recipes.items()}
        return replace(self, recipes=recipes)

    def recipe(self, module: str) -> Recipe:
        """How `module` of ours is made, with its layer filled in."""
        match = re.match(r"layers\.(\d+)\.", module)
        if match is None:
            return self.recipes[module]
        layer = match.group(1)
        return self.recipes[module.replace(layer, "{i}", 1)].of_layer(layer)


@dataclass(frozen=True)
class GgufFamily:
    """How llama.cpp writes a family.

    Args:
        architecture: `general.architecture`.
        keys: of the metadata, "<architecture>." left out, that it may have beside the sizes.
        to_config: the metadata -> config.json of the same model, without `architectures`.
        matches: tells the family from others with the same architecture.
        left_over: keys that converters write for all models of the architecture, and that mean nothing
            for this family.
        variants: weights that some files store in another way: used where a file has their tensors.
    """

    architecture: str
    keys: frozenset[str]
    to_config: Callable[[GgufMetadata], dict[str, Any]]
    matches: Callable[[GgufMetadata], bool] = lambda _: True
    left_over: frozenset[str] = frozenset()
    variants: Mapping[str, Recipe] = field(default_factory=dict)


# Rotary frequencies follow from config.json.
ROTARY_BUFFERS = r".*\.rotary_emb\.inv_freq"
_GGUF_BUFFERS = r"rope_(freqs|factors_long|factors_short)\.weight|blk\.\d+\.rot_embd\.weight"
_TEXT_PREFIXES = (
    *("model.language_model.", "language_model.model.", "language_model."),
    *("model.text_model.", "text_model."),  # SmolVLM
)


@dataclass(frozen=True)
class Family:
    """The record of a family.

    Args:
        architectures: in config.json; all are read the same way.
        model_types: in config.json, of the model or of `text_config`; a key that is left out gets the default
            of its type, or of the first one if the type is another.
        read_config: config.json, with the defaults of its model type -> the facts.
        weights: our module, with "{i}" for the layer -> where it is stored.
        decoder: runs the model; Llama's does it for most families.
        variants: weights that some checkpoints in Hugging Face layout store in another way: used where a
            checkpoint has their tensors.
        prefix: stands before Hugging Face's names; absent where the inner model alone was saved.
        unused: matches names of tensors that some checkpoints hold although nothing needs them.
        gguf: how llama.cpp writes it; None: it does not.
    """

    architectures: tuple[str, ...]
    model_types: tuple[str, ...]
    read_config: Callable[[JsonObject], ModelConfig]
    weights: Mapping[str, StoredWeight]
    decoder: DecoderClass = LlamaDecoder
    variants: Mapping[str, Recipe] = field(default_factory=dict)
    prefix: str = "model."
    unused: str = ROTARY_BUFFERS
    gguf: GgufFamily | None = None

    def read(self, config: JsonObject) -> ModelConfig:
        """The facts that config.json says.

        Raises:
            ValueError: a key has a value that is not supported. The message names it.
        """
        named = config.values.get("model_type")
        defaults = config_defaults(named if named in self.model_types else self.model_types[0])
        names = defaults.get(OTHER_NAMES, {})
        values = {names.get(key, key): value for key, value in config.values.items()}
        return self.read_config(replace(config, values=values, defaults=defaults))

    def hf_names(self, config: ModelConfig, tensors: Iterable[str] = ()) -> WeightNames:
        """The names in a checkpoint in Hugging Face layout.

        Args:
            config: its facts.
            tensors: all of its names, which show whether it is a larger model around the text model, and how
                it stores its weights.
        """
        names = frozenset(tensors)
        prefixes: tuple[str, ...] = (self.prefix, "")
        if any(name.startswith(_TEXT_PREFIXES) for name in names):
            prefixes = (*_TEXT_PREFIXES, "")
        recipes = {module: weight.hf for module, weight in self.weights.items()} | {
            module: variant
            for module, variant in self.variants.items()
            if _is_among(variant.sources[0], names, prefixes, config.num_layers)
        }
        parts = {part.name: re.compile(part.hf) for part in UNUSED_PARTS}
        unused = self.unused + _unused_kv(config, recipes)
        return WeightNames(recipes, prefixes, re.compile(unused), parts)

    def gguf_names(self, config: ModelConfig, metadata: GgufMetadata) -> WeightNames:
        """The names in a GGUF file, whose converters transpose and add offsets themselves."""
        assert self.gguf is not None
        parts = {part.name: part.gguf for part in UNUSED_PARTS}
        for layer in range(num_layers(metadata), metadata.integer(BLOCK_COUNT)):
            parts[DRAFTS.name] += rf"|blk\.{layer}\..*"
        recipes = {module: weight.gguf for module, weight in self.weights.items()} | {
            module: variant
            for module, variant in self.gguf.variants.items()
            if metadata.has_tensor_of_layers(variant.sources[0].tensor("weight"))
        }
        unused = _GGUF_BUFFERS + _unused_kv(config, recipes)
        return WeightNames(
            recipes,
            ("",),
            re.compile(unused),
            {name: re.compile(pattern) for name, pattern in parts.items()},
            metadata.stored_tensors,
        )

    def own_names(self) -> WeightNames:
        """The names in a checkpoint that `pellucid quantize` wrote: our own, each weight as we need it."""
        recipes = {
            module: Recipe(
                (Source(f"{module}.{{e}}" if ".experts." in module else module),),
                weight.hf.is_table,
            )
            for module, weight in self.weights.items()
        }
        return WeightNames(recipes, ("",), re.compile(NOTHING))


def _is_among(
    source: Source, names: frozenset[str], prefixes: Sequence[str], num_layers: int
) -> bool:
    """Whether a layer of a checkpoint in Hugging Face layout has a tensor of `source`."""
    tensors = {source.of_layer(str(layer)).tensor("weight") for layer in range(num_layers)}
    return any(prefix + tensor in names for prefix in prefixes for tensor in tensors)


def _unused_kv(config: ModelConfig, recipes: Mapping[str, Recipe]) -> str:
    """The projections to keys and values, and the norms of keys, that checkpoints hold even for layers that
    read those of an earlier one; "|" and a pattern for each."""
    found = ""
    for layer, facts in enumerate(config.layers):
        if facts.attention is None or facts.attention.shared_kv_layer is None:
            continue
        norm = recipes.get(QKV.replace("qkv_proj", "k_norm"))
        sources = (*recipes[QKV].sources[1:], *(norm.sources if norm else ()))
        for source in sources:
            name = re.escape(source.of_layer(str(layer)).name)
            found += rf"|(.*\.)?{name}\.(weight|bias)"
    return found
