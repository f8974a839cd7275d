"""Tiny random checkpoints in Hugging Face layout, written without torch.

Each id in `FAMILIES` is a model that decodes in milliseconds and yet exercises what sets its family
apart: windows and original lengths are shorter than a prompt of 40 tokens, soft caps bite, biases
and norms are far from zero and one, so that a forgotten part changes the logits.
"""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from support.tiny_tokenizer import BOS_TOKEN_ID, EOS_TOKEN_ID, IM_END_TOKEN_ID, write_tokenizer

Config = dict[str, Any]
Weights = dict[str, npt.NDArray[Any]]

DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


class RandomWeights:
    """Draws tensors in a fixed order, at scales that keep activations around one."""

    def __init__(self, seed: int):
        self._rng = np.random.default_rng(seed)
        self.tensors: Weights = {}

    def matrix(
        self, name: str, num_rows: int, num_columns: int, fan_in: int, gain: float = 1.5
    ) -> None:
        self.tensors[name] = self._rng.normal(0.0, gain / np.sqrt(fan_in), (num_rows, num_columns))

    def vector(self, name: str, size: int, mean: float) -> None:
        self.tensors[name] = self._rng.normal(mean, 0.25, size)

    def linear(self, name: str, num_rows: int, num_columns: int, bias: bool = False) -> None:
        """As torch's Linear: weight [out, in]."""
        self.matrix(f"{name}.weight", num_rows, num_columns, fan_in=num_columns)
        if bias:
            self.vector(f"{name}.bias", num_rows, mean=0.0)

    def stack(self, name: str, count: int, shape: tuple[int, int], fan_in: int) -> None:
        """`count` matrices in one tensor."""
        self.matrix(name, count * shape[0], shape[1], fan_in)
        self.tensors[name] = self.tensors[name].reshape(count, *shape)

    def depthwise(self, name: str, num_channels: int, kernel_size: int, bias: bool = False) -> None:
        """As torch's Conv1d with a group for each channel: weight [channels, 1, kernel]."""
        self.matrix(f"{name}.weight", num_channels, kernel_size, fan_in=kernel_size)
        weight = self.tensors[f"{name}.weight"]
        self.tensors[f"{name}.weight"] = weight.reshape(num_channels, 1, kernel_size)
        if bias:
            self.vector(f"{name}.bias", num_channels, mean=0.0)

    def conv1d(self, name: str, num_in: int, num_out: int) -> None:
        """As GPT-2's Conv1D: weight [in, out]."""
        self.matrix(f"{name}.weight", num_in, num_out, fan_in=num_in)
        self.vector(f"{name}.bias", num_out, mean=0.0)


_FULL = "full_attention"
_BEHIND = ("post_attention_layernorm", "post_feedforward_layernorm")
_NORMS = {
    "gemma2": ("input_layernorm", _BEHIND[0], "pre_feedforward_layernorm", _BEHIND[1]),
    "gemma3_text": ("input_layernorm", _BEHIND[0], "pre_feedforward_layernorm", _BEHIND[1]),
    "glm4": (
        *("input_layernorm", "post_self_attn_layernorm"),
        *("post_attention_layernorm", "post_mlp_layernorm"),
    ),
    **dict.fromkeys(("olmo2", "olmo3", "exaone4"), _BEHIND),
}
_QK_NORMS = {
    **dict.fromkeys(
        (
            *("qwen3", "qwen3_moe", "qwen3_vl_text", "qwen3_vl_moe_text"),
            *("gemma3_text", "olmo2", "olmo3", "olmoe", "exaone4"),
        ),
        ("q_norm", "k_norm"),
    ),
    "hunyuan_v1_dense": ("query_layernorm", "key_layernorm"),
}


def _llama_weights(config: Config, seed: int) -> Weights:
    """Llama and what descends from it."""
    weights = RandomWeights(seed)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    num_heads, num_kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim") or hidden // num_heads
    family = config["model_type"]
    norm_mean = 0.0 if family in ("gemma", "gemma2", "gemma3_text") else 1.0  # stored: weight - 1
    bias = config.get("use_bias", False)  # ERNIE's, of everything
    is_qwen2 = family in ("qwen2", "qwen2_moe", "qwen2_5_vl")
    qkv_bias = config.get("attention_bias", bias or is_qwen2)
    qkv_bias = config.get("use_qkv_bias", qkv_bias)
    o_bias = family not in ("glm", "glm4") and config.get("attention_bias", bias)
    mlp_bias = config.get("mlp_bias", bias)

    weights.matrix("model.embed_tokens.weight", config["vocab_size"], hidden, fan_in=hidden)
    for i in range(config["num_hidden_layers"]):
        attention, mlp = f"model.layers.{i}.self_attn", f"model.layers.{i}.mlp"
        has_experts = num_experts(config) > 0 and i not in config.get("mlp_only_layers", ())
        if family == "phi3":
            weights.linear(
                f"{attention}.qkv_proj", (num_heads + 2 * num_kv_heads) * head_dim, hidden
            )
            weights.linear(f"{mlp}.gate_up_proj", 2 * inner, hidden)
        else:
            weights.linear(f"{attention}.q_proj", num_heads * head_dim, hidden, qkv_bias)
            weights.linear(f"{attention}.k_proj", num_kv_heads * head_dim, hidden, qkv_bias)
            weights.linear(f"{attention}.v_proj", num_kv_heads * head_dim, hidden, qkv_bias)
            if family in ("glm", "glm4"):
                weights.linear(f"{mlp}.gate_up_proj", 2 * inner, hidden)
            elif family == "granitemoehybrid":
                mlp = f"model.layers.{i}.shared_mlp"
                weights.linear(f"{mlp}.input_linear", 2 * inner, hidden)
            elif not has_experts:
                weights.linear(f"{mlp}.gate_proj", inner, hidden, mlp_bias)
                weights.linear(f"{mlp}.up_proj", inner, hidden, mlp_bias)
        weights.linear(f"{attention}.o_proj", hidden, num_heads * head_dim, o_bias)
        if family == "gpt_oss":
            _add_gpt_oss_experts(weights, config, i)
        elif family == "granitemoe":
            _add_granite_experts(weights, config, i)
        elif family == "qwen3_vl_moe_text":
            _add_stacked_experts(weights, config, i)
        elif has_experts:
            _add_experts(weights, config, i)
            if family == "qwen2_moe":
                _add_shared_expert(weights, config, mlp)
        elif family == "granitemoehybrid":
            weights.linear(f"{mlp}.output_linear", hidden, inner)
        else:
            weights.linear(f"{mlp}.down_proj", hidden, inner, mlp_bias)
        for norm in _NORMS.get(family, ("input_layernorm", "post_attention_layernorm")):
            weights.vector(f"model.layers.{i}.{norm}.weight", hidden, norm_mean)
            if family == "stablelm":
                weights.vector(f"model.layers.{i}.{norm}.bias", hidden, 0.0)
        if family == "gpt_oss":
            weights.vector(f"{attention}.sinks", num_heads, mean=1.0)
        sizes = {"q": head_dim, "k": head_dim}
        if family in ("olmo2", "olmo3", "olmoe"):
            sizes = {"q": num_heads * head_dim, "k": num_kv_heads * head_dim}
        for name in _QK_NORMS.get(family, ()):
            weights.vector(f"{attention}.{name}.weight", sizes[name[0]], norm_mean)
    weights.vector("model.norm.weight", hidden, norm_mean)
    if family == "stablelm":
        weights.vector("model.norm.bias", hidden, 0.0)
    if not config["tie_word_embeddings"]:
        weights.matrix("lm_head.weight", config["vocab_size"], hidden, fan_in=hidden, gain=2.0)
    return weights.tensors


def num_experts(config: Config) -> int:
    """Of each layer that has any."""
    return int(config.get("num_experts", config.get("num_local_experts", 0)))


def _add_experts(weights: RandomWeights, config: Config, layer: int) -> None:
    hidden = config["hidden_size"]
    inner = config.get("moe_intermediate_size") or config["intermediate_size"]
    is_mixtral = config["model_type"] == "mixtral"
    block = f"model.layers.{layer}.{'block_sparse_moe' if is_mixtral else 'mlp'}"
    gate, up, down = ("w1", "w3", "w2") if is_mixtral else ("gate_proj", "up_proj", "down_proj")
    weights.linear(f"{block}.gate", num_experts(config), hidden)
    for expert in range(num_experts(config)):
        weights.linear(f"{block}.experts.{expert}.{gate}", inner, hidden)
        weights.linear(f"{block}.experts.{expert}.{up}", inner, hidden)
        weights.linear(f"{block}.experts.{expert}.{down}", hidden, inner)


def _add_gpt_oss_experts(weights: RandomWeights, config: Config, layer: int) -> None:
    hidden, inner, count = config["hidden_size"], config["intermediate_size"], num_experts(config)
    block = f"model.layers.{layer}.mlp"
    weights.linear(f"{block}.router", count, hidden, bias=True)
    for name, num_in, num_out in (
        ("gate_up_proj", hidden, 2 * inner),
        ("down_proj", inner, hidden),
    ):
        tensor = f"{block}.experts.{name}"
        weights.stack(tensor, count, (num_in, num_out), fan_in=num_in)
        weights.matrix(f"{tensor}_bias", count, num_out, fan_in=16)


def _add_stacked_experts(weights: RandomWeights, config: Config, layer: int) -> None:
    """As Qwen3-VL: [experts, in, out], first all rows of gate, then those of up."""
    hidden, inner, count = (
        config["hidden_size"],
        config["moe_intermediate_size"],
        num_experts(config),
    )
    block = f"model.layers.{layer}.mlp"
    weights.linear(f"{block}.gate", count, hidden)
    weights.stack(f"{block}.experts.gate_up_proj", count, (hidden, 2 * inner), fan_in=hidden)
    weights.stack(f"{block}.experts.down_proj", count, (inner, hidden), fan_in=inner)


def _add_granite_experts(weights: RandomWeights, config: Config, layer: int) -> None:
    hidden, inner, count = config["hidden_size"], config["intermediate_size"], num_experts(config)
    block = f"model.layers.{layer}.block_sparse_moe"
    weights.linear(f"{block}.router.layer", count, hidden)
    weights.stack(f"{block}.input_linear.weight", count, (2 * inner, hidden), fan_in=hidden)
    weights.stack(f"{block}.output_linear.weight", count, (hidden, inner), fan_in=inner)


def _add_shared_expert(weights: RandomWeights, config: Config, block: str) -> None:
    hidden, inner = config["hidden_size"], config["shared_expert_intermediate_size"]
    weights.linear(f"{block}.shared_expert_gate", 1, hidden)
    weights.linear(f"{block}.shared_expert.gate_proj", inner, hidden)
    weights.linear(f"{block}.shared_expert.up_proj", inner, hidden)
    weights.linear(f"{block}.shared_expert.down_proj", hidden, inner)


def _lfm2_weights(config: Config, seed: int) -> Weights:
    weights = RandomWeights(seed)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    num_heads, num_kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim, bias = hidden // num_heads, config["conv_bias"]
    weights.matrix("model.embed_tokens.weight", config["vocab_size"], hidden, fan_in=hidden)
    for i, layer_type in enumerate(config["layer_types"]):
        layer = f"model.layers.{i}"
        for norm in ("operator_norm", "ffn_norm"):
            weights.vector(f"{layer}.{norm}.weight", hidden, mean=1.0)
        if layer_type == "conv":
            weights.linear(f"{layer}.conv.in_proj", 3 * hidden, hidden, bias)
            weights.linear(f"{layer}.conv.out_proj", hidden, hidden, bias)
            weights.depthwise(f"{layer}.conv.conv", hidden, config["conv_L_cache"], bias)
        else:
            attention = f"{layer}.self_attn"
            weights.linear(f"{attention}.q_proj", num_heads * head_dim, hidden)
            weights.linear(f"{attention}.k_proj", num_kv_heads * head_dim, hidden)
            weights.linear(f"{attention}.v_proj", num_kv_heads * head_dim, hidden)
            weights.linear(f"{attention}.out_proj", hidden, num_heads * head_dim)
            for norm in ("q_layernorm", "k_layernorm"):
                weights.vector(f"{attention}.{norm}.weight", head_dim, mean=1.0)
        mlp = f"{layer}.feed_forward"
        if num_experts(config) and i >= config["num_dense_layers"]:
            weights.linear(f"{mlp}.gate", num_experts(config), hidden)
            weights.vector(f"{mlp}.expert_bias", num_experts(config), mean=0.0)
            for expert in range(num_experts(config)):
                _add_gated_mlp(
                    weights, f"{mlp}.experts.{expert}", hidden, config["moe_intermediate_size"]
                )
        else:
            _add_gated_mlp(weights, mlp, hidden, inner)
    weights.vector("model.embedding_norm.weight", hidden, mean=1.0)
    return weights.tensors


def _qwen_next_weights(config: Config, seed: int) -> Weights:
    """Qwen3.5, its mixture of experts, and Qwen3-Next."""
    weights = RandomWeights(seed)
    hidden, head_dim = config["hidden_size"], config["head_dim"]
    num_heads, num_kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    num_values, value_dim = config["linear_num_value_heads"], config["linear_value_head_dim"]
    values, kernel = num_values * value_dim, config["linear_conv_kernel_dim"]
    weights.matrix("model.embed_tokens.weight", config["vocab_size"], hidden, fan_in=hidden)
    for i, layer_type in enumerate(config["layer_types"]):
        layer = f"model.layers.{i}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights.vector(f"{layer}.{norm}.weight", hidden, mean=0.0)
        if layer_type == _FULL:
            attention = f"{layer}.self_attn"
            weights.linear(f"{attention}.q_proj", 2 * num_heads * head_dim, hidden)
            weights.linear(f"{attention}.k_proj", num_kv_heads * head_dim, hidden)
            weights.linear(f"{attention}.v_proj", num_kv_heads * head_dim, hidden)
            weights.linear(f"{attention}.o_proj", hidden, num_heads * head_dim)
            for norm in ("q_norm", "k_norm"):
                weights.vector(f"{attention}.{norm}.weight", head_dim, mean=0.0)
        else:
            net = f"{layer}.linear_attn"
            if config["model_type"] == "qwen3_next":
                weights.linear(f"{net}.in_proj_qkvz", 2 * keys + 2 * values, hidden)
                weights.linear(f"{net}.in_proj_ba", 2 * num_values, hidden)
            else:
                weights.linear(f"{net}.in_proj_qkv", 2 * keys + values, hidden)
                weights.linear(f"{net}.in_proj_z", values, hidden)
                weights.linear(f"{net}.in_proj_b", num_values, hidden)
                weights.linear(f"{net}.in_proj_a", num_values, hidden)
            weights.depthwise(f"{net}.conv1d", 2 * keys + values, kernel)
            weights.vector(f"{net}.A_log", num_values, mean=0.0)
            weights.vector(f"{net}.dt_bias", num_values, mean=-1.0)
            weights.vector(f"{net}.norm.weight", value_dim, mean=1.0)
            weights.linear(f"{net}.out_proj", hidden, values)
        mlp = f"{layer}.mlp"
        if num_experts(config):
            _add_experts(weights, config, i)
            _add_shared_expert(weights, config, mlp)
        else:
            inner = config["intermediate_size"]
            weights.linear(f"{mlp}.gate_proj", inner, hidden)
            weights.linear(f"{mlp}.up_proj", inner, hidden)
            weights.linear(f"{mlp}.down_proj", hidden, inner)
    weights.vector("model.norm.weight", hidden, mean=0.0)
    if not config["tie_word_embeddings"]:
        weights.matrix("lm_head.weight", config["vocab_size"], hidden, fan_in=hidden, gain=2.0)
    return weights.tensors


def _gemma4_weights(config: Config, seed: int) -> Weights:
    weights = RandomWeights(seed)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    num_heads, own = config["num_attention_heads"], config["hidden_size_per_layer_input"]
    num_layers = config["num_hidden_layers"]
    weights.matrix("model.embed_tokens.weight", config["vocab_size"], hidden, fan_in=hidden)
    if own:
        rows, width = config["vocab_size_per_layer_input"], num_layers * own
        weights.matrix("model.embed_tokens_per_layer.weight", rows, width, fan_in=own)
        weights.linear("model.per_layer_model_projection", width, hidden)
        weights.vector("model.per_layer_projection_norm.weight", own, mean=1.0)
    for i, layer_type in enumerate(config["layer_types"]):
        layer, is_full = f"model.layers.{i}", layer_type == _FULL
        values_are_keys = is_full and config["attention_k_eq_v"]
        head_dim = config["global_head_dim" if is_full else "head_dim"]
        kv_heads = config[
            "num_global_key_value_heads" if values_are_keys else "num_key_value_heads"
        ]
        is_shared = i >= num_layers - config["num_kv_shared_layers"]
        attention, mlp = f"{layer}.self_attn", f"{layer}.mlp"
        weights.linear(f"{attention}.q_proj", num_heads * head_dim, hidden)
        weights.vector(f"{attention}.q_norm.weight", head_dim, mean=1.0)
        # Published checkpoints hold these even for layers that read the keys and values of others.
        weights.linear(f"{attention}.k_proj", kv_heads * head_dim, hidden)
        weights.vector(f"{attention}.k_norm.weight", head_dim, mean=1.0)
        if not values_are_keys:
            weights.linear(f"{attention}.v_proj", kv_heads * head_dim, hidden)
        weights.linear(f"{attention}.o_proj", hidden, num_heads * head_dim)
        for norm in _NORMS["gemma3_text"]:
            weights.vector(f"{layer}.{norm}.weight", hidden, mean=1.0)
        own_inner = 2 * inner if is_shared and config["use_double_wide_mlp"] else inner
        weights.linear(f"{mlp}.gate_proj", own_inner, hidden)
        weights.linear(f"{mlp}.up_proj", own_inner, hidden)
        weights.linear(f"{mlp}.down_proj", hidden, own_inner)
        if config["enable_moe_block"]:
            _add_gemma4_experts(weights, config, layer)
        if own:
            weights.linear(f"{layer}.per_layer_input_gate", own, hidden)
            weights.linear(f"{layer}.per_layer_projection", hidden, own)
            weights.vector(f"{layer}.post_per_layer_input_norm.weight", hidden, mean=1.0)
        weights.vector(f"{layer}.layer_scalar", 1, mean=1.0)
    weights.vector("model.norm.weight", hidden, mean=1.0)
    return weights.tensors


def _add_gemma4_experts(weights: RandomWeights, config: Config, layer: str) -> None:
    hidden, inner, count = (
        config["hidden_size"],
        config["moe_intermediate_size"],
        num_experts(config),
    )
    for norm in ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2"):
        weights.vector(f"{layer}.{norm}.weight", hidden, mean=1.0)
    weights.vector(f"{layer}.pre_feedforward_layernorm_2.weight", hidden, mean=1.0)
    weights.linear(f"{layer}.router.proj", count, hidden)
    weights.vector(f"{layer}.router.scale", hidden, mean=1.0)
    weights.vector(f"{layer}.router.per_expert_scale", count, mean=1.0)
    for name, num_out, num_in in (
        ("gate_up_proj", 2 * inner, hidden),
        ("down_proj", hidden, inner),
    ):
        weights.stack(f"{layer}.experts.{name}", count, (num_out, num_in), fan_in=num_in)


def _add_gated_mlp(weights: RandomWeights, name: str, hidden: int, inner: int) -> None:
    weights.linear(f"{name}.w1", inner, hidden)
    weights.linear(f"{name}.w3", inner, hidden)
    weights.linear(f"{name}.w2", hidden, inner)


def _gpt2_weights(config: Config, seed: int) -> Weights:
    weights = RandomWeights(seed)
    hidden = config["n_embd"]
    inner = config["n_inner"] or 4 * hidden
    weights.matrix("transformer.wte.weight", config["vocab_size"], hidden, fan_in=hidden)
    weights.matrix("transformer.wpe.weight", config["n_positions"], hidden, fan_in=hidden)
    for i in range(config["n_layer"]):
        layer = f"transformer.h.{i}"
        for norm in ("ln_1", "ln_2"):
            weights.vector(f"{layer}.{norm}.weight", hidden, mean=1.0)
            weights.vector(f"{layer}.{norm}.bias", hidden, mean=0.0)
        weights.conv1d(f"{layer}.attn.c_attn", hidden, 3 * hidden)
        weights.conv1d(f"{layer}.attn.c_proj", hidden, hidden)
        weights.conv1d(f"{layer}.mlp.c_fc", hidden, inner)
        weights.conv1d(f"{layer}.mlp.c_proj", inner, hidden)
    weights.vector("transformer.ln_f.weight", hidden, mean=1.0)
    weights.vector("transformer.ln_f.bias", hidden, mean=0.0)
    return weights.tensors


# config.json of each family; where it is "like" that of another family, what differs alone, "without" some keys.
_CONFIGS = json.loads(Path(__file__).with_name("tiny_configs.json").read_text(encoding="utf-8"))
FAMILIES = tuple(_CONFIGS)
# Without those whose decoders do nothing that another family's does not.
DISTINCT_FAMILIES = tuple(
    family
    for family in FAMILIES
    if family not in ("granite", "olmo2", "exaone4", "ernie4_5", "glm", "ministral")
)


def checkpoint_config(family: str) -> Config:
    """config.json of one of `FAMILIES`, a copy to be changed at will."""
    own = copy.deepcopy(_CONFIGS[family])
    own.pop("note", None)
    config = checkpoint_config(own.pop("like")) if "like" in own else {}
    for key in own.pop("without", ()):
        del config[key]
    return config | own


def text_config(config: Config) -> Config:
    """The part of config.json that is about the text model."""
    text: Config = config.get("text_config", config)
    return text


def _write_safetensors(directory: Path, weights: Weights, num_shards: int) -> None:
    if num_shards == 1:
        save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
        return
    names = sorted(weights)
    weight_map = {}
    for shard in range(num_shards):
        file_name = f"model-{shard + 1:05d}-of-{num_shards:05d}.safetensors"
        shard_names = names[shard::num_shards]
        save_file(
            {name: weights[name] for name in shard_names},
            directory / file_name,
            metadata={"format": "pt"},
        )
        weight_map.update(dict.fromkeys(shard_names, file_name))
    total_size = sum(weight.nbytes for weight in weights.values())
    index = {"metadata": {"total_size": total_size}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))


def write_checkpoint(
    directory: Path,
    family: str,
    *,
    seed: int = 0,
    num_shards: int = 1,
    dtype: str = "float32",
    config_overrides: Config | None = None,
    edit_weights: Callable[[Weights], None] | None = None,
) -> Path:
    """Writes config.json, generation_config.json, the weights and a tokenizer into `directory`.

    Args:
        directory: made if it is missing.
        family: one of `FAMILIES`.
        seed: of the weights, the same for every dtype: those of float32, rounded.
        num_shards: safetensors files; more than one also writes the index.
        dtype: "float32", "float16" or "bfloat16".
        config_overrides: keys of config.json to set; shapes of the weights follow.
        edit_weights: changes the tensors before they are written, to make a bad checkpoint.
    """
    config = checkpoint_config(family) | {"dtype": dtype}
    text_config(config).update(config_overrides or {})
    text = text_config(config)
    makers = {
        "gpt2": _gpt2_weights,
        "gemma4_text": _gemma4_weights,
        **dict.fromkeys(("lfm2", "lfm2_moe"), _lfm2_weights),
        **dict.fromkeys(("qwen3_5_text", "qwen3_5_moe_text", "qwen3_next"), _qwen_next_weights),
    }
    make_weights = makers.get(text["model_type"], _llama_weights)
    prefix = "model." if text is config else "model.language_model."
    weights = {
        name.replace("model.", prefix, 1): weight.astype(np.float32).astype(DTYPES[dtype])
        for name, weight in make_weights(text, seed).items()
    }
    if edit_weights is not None:
        edit_weights(weights)

    directory.mkdir(parents=True, exist_ok=True)
    _write_safetensors(directory, weights, num_shards)
    generation_config = {
        "_from_model_config": True,
        "bos_token_id": BOS_TOKEN_ID,
        "eos_token_id": [IM_END_TOKEN_ID, EOS_TOKEN_ID],
    }
    (directory / "config.json").write_text(json.dumps(config, indent=2))
    (directory / "generation_config.json").write_text(json.dumps(generation_config, indent=2))
    write_tokenizer(directory)
    return directory
