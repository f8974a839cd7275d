"""Writes tests/golden/config_facts.json: what transformers makes of tiny config.json files, one key changed at a time.

python tests/support/config_facts.py

Of each `model_type`: `empty`, what transformers resolves a config.json without any key to; `bases`, tiny ones, the
second with the switches of the family turned; and `cases`: the base, a key, another value, what of the resolved base
changes, and whether the answers of a model with the same weights change. Values that transformers refuses are left out.
Of each rotation: `rope_parameters`, the frequencies of texts of 20 and of 300 tokens, and the factor of cos and sin.
"""

import copy
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.initialization import no_init_weights
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from pellucid.models.registry import FAMILIES
from support.config_defaults import BASE_KEYS, NOTES
from support.transformers_models import make_theirs

PATH = Path(__file__).parents[1] / "golden" / "config_facts.json"
MODEL_TYPES = tuple(
    name
    for family in FAMILIES
    for name in family.model_types
    if name in transformers.CONFIG_MAPPING
)
FULL, SLIDING = "full_attention", "sliding_attention"
Config = dict[str, Any]

_SIZES: Config = {
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), 128),
    **dict.fromkeys(("hidden_size", "n_embd", "n_positions"), 64),
    **dict.fromkeys(("intermediate_size", "shared_intermediate_size"), 48),
    "moe_intermediate_size": 40,
    "shared_expert_intermediate_size": 56,
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_attention_heads", "n_head"), 4),
    **dict.fromkeys(("num_experts", "num_local_experts"), 6),
    **dict.fromkeys(("num_key_value_heads", "num_experts_per_tok", "top_k_experts"), 2),
    "head_dim": 16,
    "global_head_dim": 32,
    "hidden_size_per_layer_input": 8,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "pad_token_id": 0,
}
_BASES: dict[str, Config] = {
    "gemma3_text": {"num_hidden_layers": 6},
    # Of each type of layers one before the last two, which may share its keys and values.
    "gemma4_text": {"num_hidden_layers": 8},
    "gemma4_unified_text": {"num_hidden_layers": 8},
    # Sections of positions of images fit heads of 128 alone.
    **{
        f"qwen2{age}_vl{part}": {"hidden_size": 512} for age in ("", "_5") for part in ("", "_text")
    },
    "granitemoehybrid": {
        "layer_types": ["attention"] * 4,
        "num_local_experts": 0,
        "mamba_n_heads": 4,
        "position_embedding_type": "rope",
    },
    "lfm2_moe": {"layer_types": ["conv", FULL, "conv", FULL]},
}
# Keys with which others mean something.
_SWITCHES: Config = {
    "use_sliding_window": True,
    "max_window_layers": 2,
    "decoder_sparse_step": 2,
    "enable_moe_block": True,
    "attention_k_eq_v": True,
    "num_kv_shared_layers": 2,
    "mlp_only_layers": [1],
    "attn_logit_softcapping": 0.5,
    "final_logit_softcapping": 0.5,
    "use_bias": True,
    "full_attn_idxs": [1, 3],
    "norm_topk_prob": True,
}
_ALTERNATE = [[FULL, SLIDING, FULL, SLIDING], [SLIDING] * 4, [FULL] * 4]
_OTHERS: dict[str, list[Any]] = {
    "hidden_act": ["gelu", "gelu_new", "relu"],
    "hidden_activation": ["gelu", "gelu_new", "relu"],
    "activation_function": ["gelu", "gelu_pytorch_tanh", "silu", "relu"],
    "layer_types": [
        *_ALTERNATE,
        *(types + types[:2] for types in _ALTERNATE),
        *(types + types for types in _ALTERNATE),
        *([kind, FULL, kind, FULL] for kind in ("conv", "linear_attention")),
        *([kind] * 4 for kind in ("attention", "mamba")),
    ],
    "sliding_window": [5],
    "num_key_value_heads": [1, 4],
    "head_dim": [32],
    "n_inner": [100],
    "clip_qkv": [1.0],
    "attn_logit_softcapping": [0.5],
    "final_logit_softcapping": [0.5],
    "use_bidirectional_attention": [True, "vision", "all"],
    "no_rope_layers": [[1, 0, 0, 1]],
    "no_rope_layer_interval": [2],
    "full_attn_idxs": [[1, 2], [3]],
    "mlp_only_layers": [[0, 2], []],
    "max_window_layers": [0, 1, 4],
    "decoder_sparse_step": [1, 2, 3],
    "num_kv_shared_layers": [1, 3],
    "num_dense_layers": [0, 1],
    "num_global_key_value_heads": [1, 4],
    "position_embedding_type": ["nope", "rope"],
    "partial_rotary_factor": [0.5],
    "sliding_window_pattern": [2, "LLG"],
    "rope_theta": [500.0],
    "rope_local_base_freq": [500.0],
    "rope_scaling": [{"rope_type": "linear", "factor": 2.0}],
    "swiglu_limit": [0.5],
    "global_head_dim": [64],
    "full_attention_interval": [2],
    "block_ff_dim": [96],
    "tie_embedding": [False],
}
# Keys that classes take and do not save.
_OLDER = ("rope_theta", "rope_scaling", "partial_rotary_factor", "rope_local_base_freq")
_OLDER += ("global_head_dim", "num_global_key_value_heads", "sliding_window_pattern")
_OLDER += ("full_attention_interval", "block_ff_dim", "tie_embedding")
_SKIPPED = ("pad_token_id", "output_attentions", "per_layer_config")
# transformers 5 forgets the base of layers with a window where an older file has one for all layers.
_WRONG_IN_TRANSFORMERS = {("olmo3", "rope_theta")}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 32}
_LLAMA3 |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LONG = {"rope_type": "longrope", "original_max_position_embeddings": 32}
_LONG |= {
    "short_factor": [1.0 + i / 8 for i in range(8)],
    "long_factor": [2.0 + i for i in range(8)],
}
_ROPES: list[Config] = [
    {"rope_type": "default"},
    *({"rope_type": kind, "factor": 3.0} for kind in ("linear", "dynamic")),
    *({"rope_type": "proportional"} | other for other in ({}, {"partial_rotary_factor": 0.5})),
    {"rope_type": "proportional", "partial_rotary_factor": 0.25, "factor": 2.0},
    *(_LLAMA3 | other for other in ({}, {"factor": 2.0}, {"low_freq_factor": 2.0})),
    *(_LLAMA3 | other for other in ({"high_freq_factor": 2.0},)),
    *(_YARN | other for other in ({}, {"factor": 1.0}, {"beta_fast": 8.0, "beta_slow": 2.0})),
    *(
        _YARN | {"attention_factor": 1.5} | other
        for other in ({}, {"mscale": 2.0, "mscale_all_dim": 1.0})
    ),
    *(_YARN | other for other in ({"truncate": False}, {"mscale": 0.7}, {"mscale_all_dim": 0.7})),
    _YARN | {"finetuned": True},
    *(_YARN | {"mscale": mscale, "mscale_all_dim": 0.5} for mscale in (0.5, 0.7, 0.0)),
    *(_YARN | other for other in ({"beta_fast": None, "beta_slow": None}, {"factor": None})),
    {"rope_type": "yarn", "factor": 4.0},
    *(_LONG | other for other in ({}, {"factor": 4.0}, {"factor": 1.0}, {"attention_factor": 1.2})),
]
_PROMPT = torch.randint(1, 128, (1, 21), generator=torch.Generator().manual_seed(0))


def facts_of(model_type: str) -> dict[str, Any]:
    """The golden facts of a model type."""
    empty = _resolved(model_type, {})
    base = {key: size for key, size in _SIZES.items() if key in empty or key == "pad_token_id"}
    if empty.get("sliding_window") or "use_sliding_window" in empty:
        base["sliding_window"] = 8
    base |= _BASES.get(model_type, {})
    switches = {key: value for key, value in _SWITCHES.items() if key in empty}
    bases = [base] if not switches else [base, base | switches]
    return {
        "empty": empty,
        "bases": bases,
        "cases": [
            [index, *case] for index, each in enumerate(bases) for case in _cases(model_type, each)
        ],
    }


def rope_facts() -> list[Any]:
    """The golden facts of rotations."""
    facts = []
    for rope in _ROPES:
        config = transformers.LlamaConfig(
            head_dim=16, max_position_embeddings=128, rope_parameters={"rope_theta": 1e4, **rope}
        )
        functions = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS
        compute = functions.get(rope["rope_type"])
        if compute is None:
            compute = LlamaRotaryEmbedding.compute_default_rope_parameters
        found = [compute(config, device="cpu", seq_len=length) for length in (20, 300)]
        facts.append([rope, [frequencies.tolist() for frequencies, _ in found], found[0][1]])
    return facts


def _cases(model_type: str, base: Config) -> Iterator[list[Any]]:
    resolved = _resolved(model_type, base)
    plain = _answers(model_type, base)
    for key, value in _changes(model_type, resolved):
        try:
            theirs = _resolved(model_type, base | {key: value})
            answers = _answers(model_type, base | {key: value})
        except Exception:  # whatever transformers raises: it does not run this model
            continue
        names = dict.fromkeys((*resolved, *theirs))
        changed = {
            name: theirs.get(name) for name in names if theirs.get(name) != resolved.get(name)
        }
        yield [key, value, changed, not _same(answers, plain)]


def _changes(model_type: str, resolved: Config) -> Iterator[tuple[str, Any]]:
    config = _config(model_type, {})
    fields = {each.name for each in dataclasses.fields(config)}
    for alias, key in config.attribute_map.items():
        if alias in fields:  # the class's own name of what it saves under `key`
            continue
        for other in _generic_others(resolved[key]):
            yield alias, other
    for key in dict.fromkeys((*resolved, *_OLDER)):
        others = _OTHERS.get(key, list(_generic_others(resolved.get(key))))
        for other in (*others, None):
            skipped = key in _SKIPPED or (model_type, key) in _WRONG_IN_TRANSFORMERS
            if other != resolved.get(key) and not skipped:
                yield key, other


def _generic_others(value: Any) -> Iterator[Any]:
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield 2 * value or 1
    elif isinstance(value, float):
        yield 1e-2 if value < 1e-4 else value / 2


def _resolved(model_type: str, config: Config) -> Config:
    """The keys that transformers saves, in JSON's types."""
    theirs = _config(model_type, config).to_dict()
    return {
        key: value
        for key, value in json.loads(json.dumps(theirs)).items()
        if key not in BASE_KEYS | NOTES and not key.startswith("_")
    }


def _config(model_type: str, config: Config) -> transformers.PreTrainedConfig:
    whole = transformers.CONFIG_MAPPING[model_type]()
    return type(whole.get_text_config())(**copy.deepcopy(config))  # classes change what they get


def _answers(model_type: str, config: Config) -> tuple[Any, torch.Tensor]:
    """Shapes and outputs of a model whose weights depend on their names and shapes alone."""
    theirs = _config(model_type, config | {"attn_implementation": "eager"})
    with no_init_weights():
        try:
            model = make_theirs(theirs)
        except ValueError:  # no class for text alone
            model = transformers.AutoModel.from_config(theirs)
    weights = model.state_dict()
    for name, parameter in weights.items():
        seed = sum(map(ord, name)) * 1009 + parameter.numel()
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randn(parameter.shape, generator=generator)
        parameter.copy_(1 + drawn / 5 if parameter.ndim == 1 else drawn / 4)
    with torch.no_grad():
        outputs = model.eval()(_PROMPT)[0]
    shapes = {name: tuple(parameter.shape) for name, parameter in weights.items()}
    # A head of its own is a fact, too, where the class has no head.
    return (shapes, getattr(theirs, "tie_word_embeddings", None)), outputs


def _same(ours: tuple[Any, torch.Tensor], others: tuple[Any, torch.Tensor]) -> bool:
    return bool(ours[0] == others[0] and torch.allclose(ours[1], others[1], 1e-4, 1e-4))


if __name__ == "__main__":
    torch.set_num_threads(1)  # the models are tiny
    facts = {name: facts_of(name) for name in MODEL_TYPES} | {"ropes": rope_facts()}
    lines = (f'"{name}":{json.dumps(each, separators=(",", ":"))}' for name, each in facts.items())
    PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
