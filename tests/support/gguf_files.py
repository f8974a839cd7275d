"""Writes checkpoints of `support.checkpoints` as GGUF files, as llama.cpp's convert_hf_to_gguf.py does."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from gguf import GGUFWriter
from gguf.constants import (
    MODEL_ARCH,
    MODEL_ARCH_NAMES,
    ExpertGatingFuncType,
    GGMLQuantizationType,
    TokenType,
)
from gguf.constants import RopeScalingType as Scaling
from gguf.quants import quantize
from gguf.tensor_mapping import get_tensor_name_map
from safetensors.numpy import load_file, save_file

from pellucid.backends.rope_frequencies import rope_frequencies
from pellucid.facts.model_config import RopeConfig
from pellucid.loading.hf_config import read_model_config
from support.checkpoints import text_config

# GGUF holds no dynamic scaling, and no windows for Qwen 2.
GGUF_FAMILIES = (
    "llama",
    "llama-linear",
    "llama3",
    "llama-yarn",
    "mistral",
    "qwen2",
    "qwen3",
    "qwen3-moe",
    "qwen2-moe",
    "qwen2.5-vl",
    "qwen3-vl",
    "qwen3-vl-moe",
    "olmoe",
    "mixtral",
    "gpt-oss",
    "gpt2",
    "gemma",
    "gemma2",
    "phi3",
    "phi3-longrope",
    "gemma3",
    "gemma4",
    "gemma4-moe",
    "granite",
    "granite-moe",
    "granite-4",
    "smollm3",
    "olmo2",
    "olmo3",
    "exaone4",
    "ernie4_5",
    "glm4",
    "hunyuan",
    "stablelm",
    "ministral3",
    "lfm2",
    "lfm2-moe",
    "qwen3.5",
    "qwen3.5-moe",
    "qwen3-next",
)
_QWEN35 = {
    # llama.cpp knows the period of full layers alone.
    "layer_types": [*["linear_attention"] * 3, "full_attention"],
    # It wants the sections of positions of images, which text does not have.
    "rope_parameters": {
        "mrope_interleaved": True,
        "mrope_section": [2, 1, 1],
        "partial_rotary_factor": 0.25,
        "rope_theta": 10000000.0,
        "rope_type": "default",
    },
}
# In llama.cpp all layers of Qwen's MoE have experts, and no factor scales those of LFM2.
GGUF_OVERRIDES: dict[str, dict[str, Any]] = {
    "qwen2": {"use_sliding_window": False},
    "qwen2-moe": {"layer_types": None, "mlp_only_layers": [], "use_sliding_window": False},
    "qwen3-moe": {"mlp_only_layers": []},
    "qwen3-next": {"layer_types": _QWEN35["layer_types"]},
    "lfm2-moe": {"routed_scaling_factor": 1.0},
    **dict.fromkeys(("qwen3.5", "qwen3.5-moe"), _QWEN35),
}

_ARCHITECTURES = {
    "mistral": "llama",
    "mixtral": "llama",
    "gpt_oss": "gpt-oss",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
    "qwen2_5_vl": "qwen2vl",
    "qwen3_vl_text": "qwen3vl",
    "qwen3_vl_moe_text": "qwen3vlmoe",
    "granitemoehybrid": "granite",  # without Mamba-2 layers
    "gemma3_text": "gemma3",
    "gemma4_text": "gemma4",
    "olmo3": "olmo2",
    "hunyuan_v1_dense": "hunyuan-dense",
    "ministral3": "mistral3",
    "lfm2_moe": "lfm2moe",
    "qwen3_5_text": "qwen35",
    "qwen3_5_moe_text": "qwen35moe",
    "qwen3_next": "qwen3next",
}
# Where the converter puts the rows of a rotated pair side by side.
_INTERLEAVED = ("llama", "granite", "granitemoe", "smollm3", "mistral3")
_TYPES = {
    np.dtype(np.float32): GGMLQuantizationType.F32,
    np.dtype(np.float16): GGMLQuantizationType.F16,
    np.dtype(ml_dtypes.bfloat16): GGMLQuantizationType.BF16,
}


def write_gguf(
    path: Path,
    directory: Path,
    *,
    matrix_type: GGMLQuantizationType | None = None,
    other_types: Mapping[str, GGMLQuantizationType] | None = None,
    edit: Callable[[GGUFWriter], None] | None = None,
) -> Path:
    """Writes the checkpoint and the tokenizer in `directory` as the GGUF file `path`.

    Args:
        path: where to.
        directory: in Hugging Face layout.
        matrix_type: of matrices whose rows it divides; None keeps the dtype.
        other_types: instead, for matrices whose names in the file hold one of these words.
        edit: adds to the file before it is written.
    """
    config = text_config(json.loads((directory / "config.json").read_text()))
    architecture = _ARCHITECTURES.get(config["model_type"], config["model_type"])
    writer = GGUFWriter(path, architecture)
    if architecture == "gpt2":
        _add_gpt2_facts(writer, config)
    else:
        _add_llama_facts(writer, config, directory)
    _add_byte_level_tokenizer(writer, directory)
    tensors = load_file(directory / "model.safetensors")
    for name, tensor in _converted(config, architecture, tensors):
        others = [other for word, other in (other_types or {}).items() if word in name]
        _add_tensor(writer, name, tensor, others[0] if others else matrix_type)
    if edit is not None:
        edit(writer)
    finish(writer)
    return path


def finish(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tensor(
    writer: GGUFWriter,
    name: str,
    tensor: npt.NDArray[Any],
    matrix_type: GGMLQuantizationType | None,
) -> None:
    is_matrix = tensor.ndim >= 2 and not name.endswith(".bias")
    if is_matrix and matrix_type is not None and tensor.shape[-1] % 32 == 0:
        data = quantize(tensor.astype(np.float32), matrix_type)
        writer.add_tensor(name, data, raw_dtype=matrix_type)
    elif tensor.ndim >= 2:
        raw = tensor.view(np.uint8) if tensor.dtype == ml_dtypes.bfloat16 else tensor
        writer.add_tensor(name, raw, raw_dtype=_TYPES[tensor.dtype])
    else:  # the converter keeps vectors in f32
        writer.add_tensor(name, tensor.astype(np.float32))


def _add_llama_facts(writer: GGUFWriter, config: dict[str, Any], directory: Path) -> None:
    model = read_model_config(directory)
    attention, experts = model.attentions[0], model.layers[-1].experts
    writer.add_block_count(model.num_layers)
    writer.add_context_length(model.max_position_embeddings)
    writer.add_embedding_length(model.hidden_size)
    if "intermediate_size" in config:
        writer.add_feed_forward_length(config["intermediate_size"])
    if "linear_num_value_heads" in config:
        _add_delta_net_facts(writer, config)
    if experts is not None:
        writer.add_expert_count(experts.num_experts)
        writer.add_expert_used_count(experts.num_chosen)
        if config["model_type"] not in ("mixtral", "olmoe", "granitemoe", "gemma4_text"):
            writer.add_expert_feed_forward_length(experts.intermediate_size)
    if "shared_expert_intermediate_size" in config:
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    writer.add_head_count(attention.num_heads)
    if config["model_type"] in ("lfm2", "lfm2_moe"):
        counts = (0 if each.attention is None else attention.num_kv_heads for each in model.layers)
        writer.add_head_count_kv(list(counts))
        writer.add_shortconv_l_cache(config["conv_L_cache"])
        writer.add_vocab_size(config["vocab_size"])
    else:
        writer.add_head_count_kv(attention.num_kv_heads)
    if config["model_type"] == "lfm2_moe":
        writer.add_leading_dense_block_count(config["num_dense_layers"])
        writer.add_expert_gating_func(ExpertGatingFuncType.SIGMOID)
    if "layer_norm_eps" in config:
        writer.add_layer_norm_eps(config["layer_norm_eps"])
        writer.add_parallel_residual(config["use_parallel_residual"])
    else:
        writer.add_layer_norm_rms_eps(config.get("rms_norm_eps") or config["norm_eps"])
    if config["model_type"] not in ("ernie4_5", "mistral") and config.get("head_dim"):
        writer.add_key_length(attention.head_dim)
        writer.add_value_length(attention.head_dim)
    if config["model_type"] == "gemma2":
        writer.add_attn_logit_softcapping(attention.softcap)
        writer.add_final_logit_softcapping(model.logits_softcap)
        writer.add_attention_scale(attention.scale)
    if config["model_type"] == "gemma3_text":
        writer.add_attention_scale(attention.scale)
    if config["model_type"] == "gemma4_text":
        _add_gemma4_facts(writer, config)
        return
    if config["model_type"].startswith("granite"):
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    if config["model_type"] == "granitemoehybrid":
        _add_facts_of_hybrids(writer, config, model.num_layers)
    if config["model_type"].startswith("qwen3_vl"):
        writer.add_num_deepstack_layers(1)
    if attention.window is not None:
        writer.add_sliding_window(attention.window)
    windows = [each.window for each in model.attentions]
    if config["model_type"] in ("gemma3_text", "olmo3", "exaone4"):
        writer.add_sliding_window_pattern([window is not None for window in windows])
    full = [each.rope for each in model.attentions if each.window is None]
    rope = next((rope for rope in full if rope is not None), attention.rope)
    assert rope is not None
    _add_rope(writer, config, rope)


def _add_gemma4_facts(writer: GGUFWriter, config: dict[str, Any]) -> None:
    """The facts of layers that differ, in place of those for all."""
    is_sliding = [layer_type == "sliding_attention" for layer_type in config["layer_types"]]
    num_layers, num_shared = len(is_sliding), config["num_kv_shared_layers"]
    full_dim, sliding_dim = config["global_head_dim"], config["head_dim"]

    def replace(key: str, value: Any) -> None:
        del writer.kv_data[0][f"gemma4.{key}"]
        add = writer.add_array if isinstance(value, list) else writer.add_uint32
        add(f"gemma4.{key}", value)

    replace("attention.key_length", full_dim)
    replace("attention.value_length", full_dim)
    writer.add_key_length_swa(sliding_dim)
    writer.add_value_length_swa(sliding_dim)
    if (count := config["num_global_key_value_heads"]) is not None:
        counts = [config["num_key_value_heads"] if own else count for own in is_sliding]
        replace("attention.head_count_kv", counts)
    if config["use_double_wide_mlp"]:
        width = config["intermediate_size"]
        widths = [width if i < num_layers - num_shared else 2 * width for i in range(num_layers)]
        replace("feed_forward_length", widths)
    if config["enable_moe_block"]:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_shared_kv_layers(num_shared)
    writer.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"])
    writer.add_sliding_window(config["sliding_window"])
    writer.add_sliding_window_pattern(is_sliding)
    writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    ropes = config["rope_parameters"]
    writer.add_rope_dimension_count(full_dim)
    writer.add_rope_dimension_count_swa(sliding_dim)
    writer.add_rope_freq_base(ropes["full_attention"]["rope_theta"])
    writer.add_rope_freq_base_swa(ropes["sliding_attention"]["rope_theta"])
    num_turning = int(full_dim * ropes["full_attention"]["partial_rotary_factor"] / 2)
    divisors = [1.0] * num_turning + [1e30] * (full_dim // 2 - num_turning)
    writer.add_tensor("rope_freqs.weight", np.array(divisors, np.float32))


def _add_delta_net_facts(writer: GGUFWriter, config: dict[str, Any]) -> None:
    num_values = config["linear_num_value_heads"]
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(num_values)
    writer.add_ssm_inner_size(num_values * config["linear_value_head_dim"])
    writer.add_full_attention_interval(4)


def _add_facts_of_hybrids(writer: GGUFWriter, config: dict[str, Any], num_layers: int) -> None:
    """What the converter of Granite's hybrids also writes for models of attention alone."""
    del writer.kv_data[0]["granite.attention.head_count_kv"]
    writer.add_head_count_kv([config["num_key_value_heads"]] * num_layers)
    writer.add_expert_count(0)
    writer.add_expert_used_count(0)
    writer.add_expert_shared_feed_forward_length(config["shared_intermediate_size"])
    writer.add_ssm_conv_kernel(4)
    writer.add_ssm_state_size(256)
    writer.add_ssm_group_count(1)
    writer.add_ssm_inner_size(config["mamba_n_heads"] * config["mamba_d_head"])
    writer.add_ssm_time_step_rank(config["mamba_n_heads"])
    writer.add_rope_scaling_finetuned(True)


def _add_rope(writer: GGUFWriter, config: dict[str, Any], rope: RopeConfig) -> None:
    writer.add_rope_dimension_count(rope.dim)
    writer.add_rope_freq_base(rope.theta)
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    scaling = scaling.get(
        "full_attention", scaling
    )  # what scales only some layers is not told apart
    if (sections := scaling.get("mrope_section")) is not None:
        writer.add_rope_dimension_sections([*sections, 0])
    match scaling.get("rope_type", scaling.get("type")):
        case "linear":
            writer.add_rope_scaling_type(Scaling.LINEAR)
            writer.add_rope_scaling_factor(scaling["factor"])
        case "yarn":
            writer.add_rope_scaling_type(Scaling.YARN)
            writer.add_rope_scaling_factor(scaling["factor"])
            writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
            if "llama_4_scaling_beta" in scaling:
                writer.add_rope_scaling_yarn_log_mul(scaling["mscale_all_dim"])
                writer.add_attn_temperature_scale(scaling["llama_4_scaling_beta"])
        case "llama3":
            plain, _ = rope_frequencies(RopeConfig(rope.theta, rope.dim), 0)
            scaled, _ = rope_frequencies(rope, 0)
            writer.add_tensor("rope_freqs.weight", (plain / scaled).astype(np.float32))
        case "longrope":
            writer.add_rope_scaling_orig_ctx_len(config["original_max_position_embeddings"])
            writer.add_rope_scaling_attn_factors(rope.scaling.attention_factor)
            for kind in ("long", "short"):
                factors = np.array(scaling[f"{kind}_factor"], np.float32)
                writer.add_tensor(f"rope_factors_{kind}.weight", factors)


def _add_gpt2_facts(writer: GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_block_count(config["n_layer"])
    writer.add_context_length(config["n_positions"])
    writer.add_embedding_length(config["n_embd"])
    writer.add_feed_forward_length(4 * config["n_embd"])
    writer.add_head_count(config["n_head"])
    writer.add_layer_norm_eps(config["layer_norm_epsilon"])


def _converted(
    config: dict[str, Any], architecture: str, tensors: dict[str, npt.NDArray[Any]]
) -> list[tuple[str, npt.NDArray[Any]]]:
    """Tensors under GGUF's names, laid out as the converter does."""
    num_layers = config.get("num_hidden_layers") or config["n_layer"]
    [gguf_architecture] = [each for each in MODEL_ARCH if MODEL_ARCH_NAMES[each] == architecture]
    names = get_tensor_name_map(gguf_architecture, num_layers)
    converted = []
    if architecture == "gpt-oss":
        tensors = _gpt_oss_tensors(tensors)
    if architecture == "qwen3next":
        tensors = _split_by_k_heads(config, tensors)
    if "linear_num_value_heads" in config:
        tensors = _delta_net_tensors(config, tensors, tiled=architecture != "qwen3next")
    tensors = _gate_and_up_apart(config["model_type"], tensors)
    for name, tensor in _experts_together(tensors).items():
        name = name.replace("model.language_model.", "model.")
        if name.endswith(".shared_expert_gate.weight"):
            tensor = tensor[0]
        if name.endswith(".expert_bias"):  # the converter gives it the suffix
            name = f"{name.removesuffix('_bias')}_bias.bias"
        if architecture == "lfm2moe":
            for theirs, ours in (("w1", "gate"), ("w3", "up"), ("w2", "down")):
                name = name.replace(f".experts.{theirs}.", f".experts.{ours}_proj.")
        if name.endswith(".conv.conv.weight"):
            tensor = tensor.squeeze(1)
        if architecture == "gemma4" and not name.endswith((".weight", ".scale", "_scale")):
            name += ".weight"  # layer scalars and experts
        gguf_name = names.get_name(name, (".weight", ".bias"))
        if match := re.fullmatch(r"model\.layers\.(\d+)\.router\.(per_expert_)?scale", name):
            gguf_name = f"blk.{match[1]}.ffn_{'down_exps' if match[2] else 'gate_inp'}.scale"
        assert gguf_name is not None, name
        if architecture in _INTERLEAVED and ".self_attn.q_proj." in name:
            tensor = _interleave(tensor, config["num_attention_heads"])
        if architecture in _INTERLEAVED and ".self_attn.k_proj." in name:
            tensor = _interleave(tensor, config["num_key_value_heads"])
        if architecture == "gpt2" and tensor.ndim == 2 and ".h." in name:
            tensor = np.ascontiguousarray(tensor.T)
        if architecture in ("gemma", "gemma2", "gemma3") and name.endswith("norm.weight"):
            tensor = tensor + 1
        converted.append((gguf_name, tensor))
    return converted


def _split_by_k_heads(
    config: dict[str, Any], tensors: dict[str, npt.NDArray[Any]]
) -> dict[str, npt.NDArray[Any]]:
    """Qwen3-Next's projections to q, k, v and a gate of each k-head: q of all heads, then k, then v; and the gate."""
    num_keys, key_dim = config["linear_num_key_heads"], config["linear_key_head_dim"]
    values = config["linear_num_value_heads"] * config["linear_value_head_dim"] // num_keys
    split = {}
    for name, tensor in tensors.items():
        if not name.endswith(".in_proj_qkvz.weight"):
            split[name] = tensor
            continue
        heads = tensor.reshape(num_keys, -1, tensor.shape[1])
        *qkv, gate = (
            part.reshape(-1, tensor.shape[1])
            for part in np.split(heads, np.cumsum([key_dim, key_dim, values]), axis=1)
        )
        split[name.replace("in_proj_qkvz", "in_proj_qkv")] = np.concatenate(qkv)
        split[name.replace("in_proj_qkvz", "in_proj_z")] = np.ascontiguousarray(gate)
    return split


def _gate_and_up_apart(
    model_type: str, tensors: dict[str, npt.NDArray[Any]]
) -> dict[str, npt.NDArray[Any]]:
    """Gate and up of Granite, and of Qwen3-VL's experts, which are stored [experts, in, out]."""
    names = {
        "granitemoe": (
            ".block_sparse_moe.input_linear.weight",
            ".block_sparse_moe.output_linear.weight",
        ),
        "granitemoehybrid": (".shared_mlp.input_linear.weight", ".shared_mlp.output_linear.weight"),
        "qwen3_vl_moe_text": (".mlp.experts.gate_up_proj", ".mlp.experts.down_proj"),
    }
    if model_type not in names:
        return tensors
    joined, down = names[model_type]
    block = ".mlp" if model_type == "granitemoehybrid" else ".mlp.experts"
    apart = {}
    for name, tensor in tensors.items():
        if name.endswith((joined, down)) and model_type == "qwen3_vl_moe_text":
            tensor = tensor.swapaxes(1, 2)
        if name.endswith(joined):
            for part, rows in zip(("gate", "up"), np.split(tensor, 2, axis=-2), strict=True):
                own = name.replace(joined, f"{block}.{part}_proj.weight")
                apart[own] = np.ascontiguousarray(rows)
        else:
            apart[name.replace(down, f"{block}.down_proj.weight")] = np.ascontiguousarray(tensor)
    return apart


def v_head_orders(config: dict[str, Any], tiled: bool = True) -> dict[str, npt.NDArray[np.intp]]:
    """The rows of each part of a delta net in llama.cpp's order of v-heads if `tiled`: the first v-head of each k-head,
    then the second ones."""
    num_keys, num_values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    keys = num_keys * config["linear_key_head_dim"]
    heads = np.arange(num_values)
    if tiled:
        heads = heads.reshape(num_keys, -1).T.reshape(-1)
    numbers = np.arange(num_values * config["linear_value_head_dim"])
    values = numbers.reshape(num_values, -1)[heads].reshape(-1)
    mixed = np.concatenate((np.arange(2 * keys), 2 * keys + values))
    orders = {"in_proj_qkv": mixed, "conv1d": mixed, "in_proj_z": values}
    return orders | dict.fromkeys(("in_proj_b", "in_proj_a", "A_log", "dt_bias"), heads)


def order_v_heads_as_llama_cpp(directory: Path) -> None:
    """Writes the same delta nets with as many k-heads as v-heads, of which one k-head serves one v-head: then v-heads
    can have llama.cpp's order, and sums over them are the same."""
    config = json.loads((directory / "config.json").read_text())
    text = text_config(config)
    num_keys, num_values = text["linear_num_key_heads"], text["linear_num_value_heads"]
    orders = v_head_orders(text)
    size = num_keys * text["linear_key_head_dim"]
    heads = np.arange(size).reshape(num_keys, -1)
    copies = np.tile(heads, (num_values // num_keys, 1)).reshape(-1)  # k-head h mod Hk of v-head h
    mixed = np.concatenate((copies, size + copies, orders["in_proj_qkv"][2 * size :]))
    orders |= dict.fromkeys(("in_proj_qkv", "conv1d"), mixed)
    weights = load_file(directory / "model.safetensors")
    for name, weight in weights.items():
        *_, module, kind = f".{name}".split(".")
        order = orders.get(kind) if kind in ("A_log", "dt_bias") else orders.get(module)
        if module == "out_proj":
            weight = weight[:, orders["in_proj_z"]]
        weights[name] = np.ascontiguousarray(weight if order is None else weight[order])
    save_file(weights, directory / "model.safetensors")
    text["linear_num_key_heads"] = num_values
    (directory / "config.json").write_text(json.dumps(config))


def _delta_net_tensors(
    config: dict[str, Any], tensors: dict[str, npt.NDArray[Any]], tiled: bool
) -> dict[str, npt.NDArray[Any]]:
    """v-heads in llama.cpp's order if `tiled`; norms from 1; -exp(A_log)."""
    orders = v_head_orders(config, tiled)
    converted = {}
    for name, tensor in tensors.items():
        *_, module, kind = f".{name}".split(".")
        order = orders.get(kind) if kind in ("A_log", "dt_bias") else orders.get(module)
        if order is not None:
            tensor = tensor[order]
        if module == "out_proj":
            tensor = tensor[:, orders["in_proj_z"]]
        if module == "conv1d":
            tensor = tensor.squeeze(1)
        if kind == "A_log":
            tensor = -np.exp(tensor)
        if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
            tensor = tensor + 1
        converted[name.replace("dt_bias", "dt_proj.bias")] = np.ascontiguousarray(tensor)
    return converted


def _gpt_oss_tensors(tensors: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """Experts' matrices [experts, out, in], gate and up apart, every name with its suffix."""
    split: dict[str, npt.NDArray[Any]] = {}
    for name, tensor in tensors.items():
        if name.endswith(".sinks"):
            split[f"{name}.weight"] = tensor
        elif match := re.fullmatch(r"(.*\.experts)\.(gate_up|down)_proj(_bias)?", name):
            kind = "bias" if match[3] else "weight"
            own = tensor if match[3] else np.ascontiguousarray(tensor.swapaxes(1, 2))
            halves = {"gate": own[:, ::2], "up": own[:, 1::2]}
            for part, rows in halves.items() if match[2] == "gate_up" else [("down", own)]:
                split[f"{match[1]}.{part}_proj.{kind}"] = np.ascontiguousarray(rows)
        else:
            split[name] = tensor
    return split


def _experts_together(tensors: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """Matrices of one kind of all experts of a layer as one tensor, the expert's number left out."""
    together: dict[str, Any] = {}
    by_number = re.compile(r"(.*\.experts)\.(\d+)(\..*)")
    for name, tensor in tensors.items():
        if match := by_number.fullmatch(name):
            own = together.setdefault(f"{match[1]}{match[3]}", {})
            own[int(match[2])] = tensor
        else:
            together[name] = tensor
    return {
        name: np.stack([each[number] for number in sorted(each)])
        if isinstance(each, dict)
        else each
        for name, each in together.items()
    }


def _interleave(tensor: npt.NDArray[Any], num_heads: int) -> npt.NDArray[Any]:
    """The first halves of a head's pairs, then the second ones -> pair by pair."""
    halves = tensor.reshape(num_heads, 2, -1, *tensor.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(tensor.shape)


def _add_byte_level_tokenizer(writer: GGUFWriter, directory: Path) -> None:
    """GPT-2's kind, from tokenizer.json. Ids that the model has and the tokenizer lacks are padding."""
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    config = json.loads((directory / "tokenizer_config.json").read_text())
    model = text_config(json.loads((directory / "config.json").read_text()))
    generation = json.loads((directory / "generation_config.json").read_text())
    tokens = {
        **tokenizer["model"]["vocab"],
        **{t["content"]: t["id"] for t in tokenizer["added_tokens"]},
    }
    special = {token["content"] for token in tokenizer["added_tokens"] if token["special"]}
    by_id = {token_id: token for token, token_id in tokens.items()}
    listed = [by_id.get(i, f"[PAD{i}]") for i in range(model["vocab_size"])]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(listed)
    writer.add_token_types(
        [
            TokenType.UNUSED
            if i not in by_id
            else TokenType.CONTROL
            if token in special
            else TokenType.NORMAL
            for i, token in enumerate(listed)
        ]
    )
    merges = tokenizer["model"]["merges"]
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    writer.add_bos_token_id(generation["bos_token_id"])
    eot, eos = generation["eos_token_id"]
    writer.add_eos_token_id(eos)
    writer.add_eot_token_id(eot)
    writer.add_add_bos_token(False)
    writer.add_chat_template(config["chat_template"])
