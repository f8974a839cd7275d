"""The tensors of a checkpoint that make up each weight of a decoder, per family.

Decoders know one set of names: `layers.{i}.qkv_proj` holds the rows of q, then k, then v, even
where they are stored apart. The names here leave out ".weight" and ".bias", which both sides share.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Recipe:
    """How one weight of ours is made.

    Args:
        sources: the checkpoint's modules whose rows follow each other; "{i}" is the layer, "{e}" the
            expert. Where one tensor has the matrices of all experts, ".{e}" is not in its name.
        transposed: the weight is stored [in, out], as GPT-2's Conv1D does.
        offset: added to the weight; Gemma stores how far its norms are from 1.
    """

    sources: tuple[str, ...]
    transposed: bool = False
    offset: float = 0.0


@dataclass(frozen=True)
class WeightNames:
    """The names in the checkpoints of one family.

    Args:
        recipes: our module, with "{i}" for the layer -> how it is made.
        prefix: stands before the checkpoint's names; absent where the inner model alone was saved.
        unused: names of tensors that some checkpoints hold although nothing needs them.
    """

    recipes: Mapping[str, Recipe]
    prefix: str
    unused: re.Pattern[str]

    def recipe(self, module: str) -> Recipe:
        """How `module` of ours is made, with its layer filled in."""
        match = re.match(r"layers\.(\d+)\.", module)
        if match is None:
            return self.recipes[module]
        layer = match.group(1)
        recipe = self.recipes[module.replace(layer, "{i}", 1)]
        return replace(recipe, sources=tuple(s.replace("{i}", layer) for s in recipe.sources))


_LLAMA = {
    "embed_tokens": Recipe(("embed_tokens",)),
    "layers.{i}.attention_norm": Recipe(("layers.{i}.input_layernorm",)),
    "layers.{i}.qkv_proj": Recipe(
        (
            "layers.{i}.self_attn.q_proj",
            "layers.{i}.self_attn.k_proj",
            "layers.{i}.self_attn.v_proj",
        )
    ),
    "layers.{i}.o_proj": Recipe(("layers.{i}.self_attn.o_proj",)),
    "layers.{i}.mlp_norm": Recipe(("layers.{i}.post_attention_layernorm",)),
    "layers.{i}.gate_up_proj": Recipe(("layers.{i}.mlp.gate_proj", "layers.{i}.mlp.up_proj")),
    "layers.{i}.down_proj": Recipe(("layers.{i}.mlp.down_proj",)),
    "norm": Recipe(("norm",)),
    "lm_head": Recipe(("lm_head",)),
}

_QWEN3 = _LLAMA | {
    "layers.{i}.q_norm": Recipe(("layers.{i}.self_attn.q_norm",)),
    "layers.{i}.k_norm": Recipe(("layers.{i}.self_attn.k_norm",)),
}

_QWEN3_MOE = _QWEN3 | {
    "layers.{i}.router": Recipe(("layers.{i}.mlp.gate",)),
    "layers.{i}.experts.gate_proj": Recipe(("layers.{i}.mlp.experts.{e}.gate_proj",)),
    "layers.{i}.experts.up_proj": Recipe(("layers.{i}.mlp.experts.{e}.up_proj",)),
    "layers.{i}.experts.down_proj": Recipe(("layers.{i}.mlp.experts.{e}.down_proj",)),
}

_MIXTRAL = _LLAMA | {
    "layers.{i}.router": Recipe(("layers.{i}.block_sparse_moe.gate",)),
    "layers.{i}.experts.gate_proj": Recipe(("layers.{i}.block_sparse_moe.experts.{e}.w1",)),
    "layers.{i}.experts.up_proj": Recipe(("layers.{i}.block_sparse_moe.experts.{e}.w3",)),
    "layers.{i}.experts.down_proj": Recipe(("layers.{i}.block_sparse_moe.experts.{e}.w2",)),
}

_PHI3 = _LLAMA | {
    "layers.{i}.qkv_proj": Recipe(("layers.{i}.self_attn.qkv_proj",)),
    "layers.{i}.gate_up_proj": Recipe(("layers.{i}.mlp.gate_up_proj",)),
}

_GEMMA2 = _LLAMA | {
    "layers.{i}.attention_norm": Recipe(("layers.{i}.input_layernorm",), offset=1.0),
    "layers.{i}.attention_post_norm": Recipe(("layers.{i}.post_attention_layernorm",), offset=1.0),
    "layers.{i}.mlp_norm": Recipe(("layers.{i}.pre_feedforward_layernorm",), offset=1.0),
    "layers.{i}.mlp_post_norm": Recipe(("layers.{i}.post_feedforward_layernorm",), offset=1.0),
    "norm": Recipe(("norm",), offset=1.0),
}

_GPT2 = {
    "embed_tokens": Recipe(("wte",)),
    "embed_positions": Recipe(("wpe",)),
    "layers.{i}.attention_norm": Recipe(("h.{i}.ln_1",)),
    "layers.{i}.qkv_proj": Recipe(("h.{i}.attn.c_attn",), transposed=True),
    "layers.{i}.o_proj": Recipe(("h.{i}.attn.c_proj",), transposed=True),
    "layers.{i}.mlp_norm": Recipe(("h.{i}.ln_2",)),
    "layers.{i}.up_proj": Recipe(("h.{i}.mlp.c_fc",), transposed=True),
    "layers.{i}.down_proj": Recipe(("h.{i}.mlp.c_proj",), transposed=True),
    "norm": Recipe(("ln_f",)),
    "lm_head": Recipe(("lm_head",)),
}

# Rotary frequencies follow from config.json, causal masks from the definition.
_ROTARY_BUFFERS = re.compile(r".*\.rotary_emb\.inv_freq")
_MASK_BUFFERS = re.compile(r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias")

_NOTHING = re.compile("(?!)")
_GGUF_BUFFERS = re.compile(
    r"rope_(freqs|factors_long|factors_short)\.weight|blk\.\d+\.rot_embd\.weight"
)

_FAMILIES = {
    "LlamaForCausalLM": WeightNames(_LLAMA, "model.", _ROTARY_BUFFERS),
    "MistralForCausalLM": WeightNames(_LLAMA, "model.", _ROTARY_BUFFERS),
    "Qwen2ForCausalLM": WeightNames(_LLAMA, "model.", _ROTARY_BUFFERS),
    "Qwen3ForCausalLM": WeightNames(_QWEN3, "model.", _ROTARY_BUFFERS),
    "Qwen3MoeForCausalLM": WeightNames(_QWEN3_MOE, "model.", _ROTARY_BUFFERS),
    "OlmoeForCausalLM": WeightNames(_QWEN3_MOE, "model.", _ROTARY_BUFFERS),
    "MixtralForCausalLM": WeightNames(_MIXTRAL, "model.", _ROTARY_BUFFERS),
    "Phi3ForCausalLM": WeightNames(_PHI3, "model.", _ROTARY_BUFFERS),
    "Gemma2ForCausalLM": WeightNames(_GEMMA2, "model.", _ROTARY_BUFFERS),
    "GPT2LMHeadModel": WeightNames(_GPT2, "transformer.", _MASK_BUFFERS),
}


def weight_names(architecture: str) -> WeightNames:
    """The names in a checkpoint of `ModelConfig.architecture`."""
    return _FAMILIES[architecture]


def own_weight_names(architecture: str) -> WeightNames:
    """The names in a checkpoint that `pellucid quantize` wrote: our own, each weight as we need it."""
    recipes = {
        module: Recipe((f"{module}.{{e}}" if "{e}" in recipe.sources[0] else module,))
        for module, recipe in _FAMILIES[architecture].recipes.items()
    }
    return WeightNames(recipes, prefix="", unused=_NOTHING)


def gguf_weight_names(architecture: str, gguf_name: Callable[[str], str | None]) -> WeightNames:
    """The names in a GGUF file, whose converters transpose and add offsets themselves.

    Args:
        architecture: `ModelConfig.architecture`.
        gguf_name: the name of a module of layer 0 that has another name in Hugging Face's checkpoints.
    """
    family = _FAMILIES[architecture]

    def rename(source: str) -> str:
        source = source.replace(".{e}", "")
        name = gguf_name(family.prefix + source.replace("{i}", "0")) or gguf_name(source) or source
        return name.replace("blk.0.", "blk.{i}.", 1)

    recipes = {
        module: Recipe(tuple(map(rename, recipe.sources)))
        for module, recipe in family.recipes.items()
    }
    return WeightNames(recipes, prefix="", unused=_GGUF_BUFFERS)
