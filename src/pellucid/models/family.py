"""The record of a family of models: its names in checkpoints, how its facts are read, its decoder.

Decoders know one set of names: `layers.{i}.qkv_proj` holds the rows of q, then k, then v, even
where they are stored apart. The names here leave out ".weight" and ".bias", which both sides share.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from pellucid.backends.ops import Decoder, Ops, Parameters
from pellucid.facts.json_object import JsonObject
from pellucid.facts.model_config import LayerConfig, ModelConfig
from pellucid.models.config_defaults import OTHER_NAMES, config_defaults
from pellucid.models.gguf_metadata import BLOCK_COUNT, GgufMetadata, num_layers
from pellucid.models.unused_parts import DRAFTS, NOTHING, UNUSED_PARTS

# In the names of llama.cpp, of its first files with experts, of Hugging Face and of ours.
_EXPERTS = r"_exps\.|\.ffn_(gate|up|down)\.\d+\.|\.experts\."

RowOrder: TypeAlias = Callable[[LayerConfig], Sequence[int]]
DecoderClass: TypeAlias = Callable[[ModelConfig, Parameters, Ops], Decoder]

QKV = "layers.{i}.qkv_proj"


@dataclass(frozen=True)
class StoredWeight:
    """Where checkpoints store one of pellucid's weights.

    Args:
        hf: modules in Hugging Face layout whose rows follow each other; "{i}" is the layer, "{e}" the
            expert. Where one tensor has the matrices of all experts, ".{e}" is not in its name.
        gguf: the same in a GGUF file.
        transposed: whether Hugging Face's are stored [in, out], as GPT-2's Conv1D does.
        either_way: whether some of Hugging Face's are [out, in] all the same, as the shape of a tensor of all
            experts tells.
        offset: added to Hugging Face's; Gemma stores how far its norms are from 1.
        alternate: of two weights whose rows alternate in Hugging Face's: 0 is the first, 1 the second.
        half: of two weights of each expert whose rows follow each other: 0 is the first, 1 the second.
        is_tensor: whether Hugging Face's names are those of tensors: their biases end in "_bias".
        gguf_is_tensor: the same of the GGUF file's.
        negative_exp: whether ours is -exp of Hugging Face's.
        rows: which rows of the first of Hugging Face's are ours, in our order; None: all, as they are.
        gguf_rows: the same of the GGUF file's.
        is_table: whether steps read single rows of it, in the file.
    """

    hf: tuple[str, ...]
    gguf: tuple[str, ...] = ()
    transposed: bool = False
    either_way: bool = False
    offset: float = 0.0
    alternate: int | None = None
    half: int | None = None
    is_tensor: bool = False
    gguf_is_tensor: bool = False
    negative_exp: bool = False
    rows: RowOrder | None = None
    gguf_rows: RowOrder | None = None
    is_table: bool = False


@dataclass(frozen=True)
class Recipe:
    """How one of pellucid's weights is made from a checkpoint's tensors.

    Args:
        sources: the checkpoint's modules whose rows follow each other; "{i}" is the layer, "{e}" the
            expert.
        transposed: whether they are stored [in, out].
        either_way: whether they may be [out, in] all the same, as the shape of a tensor of all experts tells.
        offset: added to the weight.
        interleaved: whether the first two sources, q and k, hold the two rows of a rotated pair side by
            side; ours are the first halves of all pairs of a head, then the second ones.
        alternate: 0 or 1: which of two weights whose rows alternate; None: there is one.
        half: 0 or 1: which of two weights of each expert whose rows follow each other; None: there is one.
        is_tensor: whether sources are the names of tensors: their biases end in "_bias".
        negative_exp: whether the weight is -exp of the source's.
        rows: which rows of the first source are the weight's, in order; None: all, as they are.
        is_table: whether steps read single rows of it, in the file.
    """

    sources: tuple[str, ...]
    transposed: bool = False
    either_way: bool = False
    offset: float = 0.0
    interleaved: bool = False
    alternate: int | None = None
    half: int | None = None
    is_tensor: bool = False
    negative_exp: bool = False
    rows: RowOrder | None = None
    is_table: bool = False

    def tensor(self, source: str, kind: str) -> str:
        """The name of a source's "weight" or "bias"."""
        if not self.is_tensor:
            return f"{source}.{kind}"
        return source if kind == "weight" else f"{source}_{kind}"


@dataclass(frozen=True)
class WeightNames:
    """The names in one checkpoint.

    Args:
        recipes: our module, with "{i}" for the layer -> how it is made.
        prefixes: what may stand before the checkpoint's names.
        unused: names of tensors that say nothing new: buffers, and projections that no layer reads.
        parts: names of tensors of the parts of a larger model that are left out, by the part's name.
        stored: other names that this checkpoint has for some tensors, by the usual name.
    """

    recipes: Mapping[str, Recipe]
    prefixes: tuple[str, ...]
    unused: re.Pattern[str]
    parts: Mapping[str, re.Pattern[str]] = field(default_factory=dict)
    stored: Mapping[str, str] = field(default_factory=dict)

    def candidates(self, tensor: str) -> tuple[str, ...]:
        """The names that the checkpoint may have for a tensor of a recipe."""
        names = (prefix + tensor for prefix in self.prefixes)
        return tuple(dict.fromkeys(self.stored.get(name, name) for name in names))

    def is_unused(self, tensor: str) -> bool:
        """Whether the checkpoint holds `tensor` although the decoder does not need it."""
        return any(
            pattern.fullmatch(tensor) is not None for pattern in (self.unused, *self.parts.values())
        )

    def is_table(self, tensor: str) -> bool:
        """Whether a tensor of the checkpoint stays in its file, where steps read single rows."""
        tables = (
            recipe.tensor(source, "weight")
            for recipe in self.recipes.values()
            if recipe.is_table
            for source in recipe.sources
        )
        return any(tensor in self.candidates(name) for name in tables)

    @staticmethod
    def is_expert(tensor: str) -> bool:
        """Whether a tensor of the checkpoint belongs to one expert of many, or to all of them."""
        return re.search(_EXPERTS, tensor) is not None

    def with_rows_of_outputs(self) -> "WeightNames":
        """The names in a checkpoint that another quantizer wrote: all its matrices are [out, in]."""
        recipes = {
            module: replace(recipe, transposed=False) for module, recipe in self.recipes.items()
        }
        return replace(self, recipes=recipes)

    def with_whole_norms(self) -> "WeightNames":
        """The names in a checkpoint whose norms are stored whole, not as their distance from 1."""
        recipes = {module: replace(recipe, offset=0.0) for module, recipe in self.recipes.items()}
        return replace(self, recipes=recipes)

    def recipe(self, module: str) -> Recipe:
        """How `module` of ours is made, with its layer filled in."""
        match = re.match(r"layers\.(\d+)\.", module)
        if match is None:
            return self.recipes[module]
        layer = match.group(1)
        recipe = self.recipes[module.replace(layer, "{i}", 1)]
        return replace(recipe, sources=tuple(s.replace("{i}", layer) for s in recipe.sources))


@dataclass(frozen=True)
class GgufFamily:
    """How llama.cpp writes a family.

    Args:
        architecture: `general.architecture`.
        keys: of the metadata, "<architecture>." left out, that it may have beside the sizes.
        to_config: the metadata -> config.json of the same model, without `architectures`.
        interleaved: whether the rows of a rotated pair stand side by side in q and k.
        matches: tells the family from others with the same architecture.
        left_over: keys that converters write for all models of the architecture, and that mean nothing
            for this family.
        variants: weights that some files store in another way: used where a file has their tensors.
    """

    architecture: str
    keys: frozenset[str]
    to_config: Callable[[GgufMetadata], dict[str, Any]]
    interleaved: bool = False
    matches: Callable[[GgufMetadata], bool] = lambda _: True
    left_over: frozenset[str] = frozenset()
    variants: Mapping[str, StoredWeight] = field(default_factory=dict, repr=False)


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
        decoder: runs them.
        weights: our module, with "{i}" for the layer -> where it is stored.
        variants: weights that some checkpoints in Hugging Face layout store in another way: used where a
            checkpoint has their tensors.
        prefix: stands before Hugging Face's names; absent where the inner model alone was saved.
        unused: matches names of tensors that some checkpoints hold although nothing needs them.
        interleaved: whether the rows of a rotated pair stand side by side in Hugging Face's q and k.
        gguf: how llama.cpp writes it; None: it does not.
    """

    architectures: tuple[str, ...]
    model_types: tuple[str, ...]
    read_config: Callable[[JsonObject], ModelConfig]
    decoder: DecoderClass
    weights: Mapping[str, StoredWeight] = field(repr=False)
    variants: Mapping[str, StoredWeight] = field(default_factory=dict, repr=False)
    prefix: str = "model."
    unused: str = ROTARY_BUFFERS
    interleaved: bool = False
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
        variants = {
            module: variant
            for module, variant in self.variants.items()
            if _is_among(variant, names, prefixes, config.num_layers)
        }
        recipes = {
            module: Recipe(
                weight.hf,
                weight.transposed,
                weight.either_way,
                weight.offset,
                self.interleaved and module == QKV,
                weight.alternate,
                weight.half,
                weight.is_tensor,
                weight.negative_exp,
                weight.rows,
                weight.is_table,
            )
            for module, weight in {**self.weights, **variants}.items()
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
        recipes = {
            module: self._gguf_recipe(module, weight, metadata)
            for module, weight in self.weights.items()
        }
        unused = _GGUF_BUFFERS + _unused_kv(config, recipes)
        return WeightNames(
            recipes,
            ("",),
            re.compile(unused),
            {name: re.compile(pattern) for name, pattern in parts.items()},
            metadata.stored_tensors,
        )

    def _gguf_recipe(self, module: str, weight: StoredWeight, metadata: GgufMetadata) -> Recipe:
        assert self.gguf is not None
        variant = self.gguf.variants.get(module)
        if variant is not None and metadata.has_tensor_of_layers(f"{variant.gguf[0]}.weight"):
            weight = variant
        return Recipe(
            weight.gguf,
            interleaved=self.gguf.interleaved and module == QKV,
            half=weight.half,
            is_tensor=weight.gguf_is_tensor,
            rows=weight.gguf_rows,
            is_table=weight.is_table,
        )

    def own_names(self) -> WeightNames:
        """The names in a checkpoint that `pellucid quantize` wrote: our own, each weight as we need it."""
        recipes = {
            module: Recipe(
                (f"{module}.{{e}}" if ".experts." in module else module,), is_table=weight.is_table
            )
            for module, weight in self.weights.items()
        }
        return WeightNames(recipes, ("",), re.compile(NOTHING))


def _is_among(
    weight: StoredWeight, names: frozenset[str], prefixes: Sequence[str], num_layers: int
) -> bool:
    """Whether a layer of a checkpoint in Hugging Face layout has `weight`."""
    name = weight.hf[0] if weight.is_tensor else f"{weight.hf[0]}.weight"
    return any(
        prefix + name.replace("{i}", str(layer)) in names
        for prefix in prefixes
        for layer in range(num_layers)
    )


def _unused_kv(config: ModelConfig, recipes: Mapping[str, Recipe]) -> str:
    """The projections to keys and values, and the norms of keys, that checkpoints hold even for layers that
    read those of an earlier one; "|" and a pattern for each."""
    found = ""
    for layer, facts in enumerate(config.layers):
        if facts.attention is None or facts.attention.shared_kv_layer is None:
            continue
        norm = recipes.get(QKV.replace("qkv_proj", "k_norm"))
        modules = (*recipes[QKV].sources[1:], *(norm.sources if norm else ()))
        for module in modules:
            name = re.escape(module.replace("{i}", str(layer)))
            found += rf"|(.*\.)?{name}\.(weight|bias)"
    return found


# -- names that families share ---------------------------------------------------------------------

LLAMA_WEIGHTS: Mapping[str, StoredWeight] = {
    "embed_tokens": StoredWeight(("embed_tokens",), ("token_embd",)),
    "layers.{i}.attention_norm": StoredWeight(
        ("layers.{i}.input_layernorm",), ("blk.{i}.attn_norm",)
    ),
    QKV: StoredWeight(
        tuple(f"layers.{{i}}.self_attn.{x}_proj" for x in "qkv"),
        tuple(f"blk.{{i}}.attn_{x}" for x in "qkv"),
    ),
    "layers.{i}.o_proj": StoredWeight(("layers.{i}.self_attn.o_proj",), ("blk.{i}.attn_output",)),
    "layers.{i}.mlp_norm": StoredWeight(
        ("layers.{i}.post_attention_layernorm",), ("blk.{i}.ffn_norm",)
    ),
    "layers.{i}.gate_up_proj": StoredWeight(
        ("layers.{i}.mlp.gate_proj", "layers.{i}.mlp.up_proj"),
        ("blk.{i}.ffn_gate", "blk.{i}.ffn_up"),
    ),
    "layers.{i}.down_proj": StoredWeight(("layers.{i}.mlp.down_proj",), ("blk.{i}.ffn_down",)),
    "norm": StoredWeight(("norm",), ("output_norm",)),
    "lm_head": StoredWeight(("lm_head",), ("output",)),
}

QK_NORM_WEIGHTS: Mapping[str, StoredWeight] = {
    "layers.{i}.q_norm": StoredWeight(("layers.{i}.self_attn.q_norm",), ("blk.{i}.attn_q_norm",)),
    "layers.{i}.k_norm": StoredWeight(("layers.{i}.self_attn.k_norm",), ("blk.{i}.attn_k_norm",)),
}

# Gate and up are stored as one matrix.
FUSED_GATE_UP: Mapping[str, StoredWeight] = {
    "layers.{i}.gate_up_proj": StoredWeight(("layers.{i}.mlp.gate_up_proj",), ("blk.{i}.ffn_up",)),
}


def with_offset(weights: Mapping[str, StoredWeight], offset: float) -> Mapping[str, StoredWeight]:
    """`weights` whose norms are stored as their distance from `offset`."""
    return {
        module: replace(weight, offset=offset) if module.endswith("norm") else weight
        for module, weight in weights.items()
    }
