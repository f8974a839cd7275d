"""Published folders in Hugging Face layout: what tests/published/hf holds of their JSON files and tensor names."""

import dataclasses
import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pellucid.facts.model_config import ModelConfig
from pellucid.loading.file_names import CONFIG_FILE
from pellucid.loading.hf_config import read_model_config
from pellucid.loading.json_file import read_json_object
from pellucid.loading.quantization_settings import METHOD_KEY, find_quantization

FOLDER = Path(__file__).parents[1] / "published" / "hf"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


@dataclass(frozen=True)
class PublishedFolder:
    """What is known of a published folder.

    Args:
        files: the JSON files by name; lists of modules are cut, and pictures and sound left out.
        tensors: names -> how many there are; "{}" stands for a number.
    """

    files: dict[str, dict[str, Any]]
    tensors: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def config(self) -> dict[str, Any]:
        return self.files[CONFIG_FILE]

    def write(self, directory: Path) -> Path:
        """The JSON files in `directory`."""
        for name, values in self.files.items():
            (directory / name).write_text(json.dumps(values))
        return directory


def published(name: str) -> PublishedFolder:
    """The folder of this name in the corpus."""
    record = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return PublishedFolder(**record)


def facts_or_refusal(directory: Path) -> str:
    """One line: the facts of a folder, or why it does not load."""
    try:
        line = facts_line(read_model_config(directory))
        quantization = find_quantization(directory, read_json_object(directory / CONFIG_FILE))
        return (
            line
            if quantization is None
            else f"{line}; weights by {quantization.values[METHOD_KEY]}"
        )
    except ValueError as error:
        reason = str(error).split("; what loads: ")[0]
        return f"refused: {reason.removeprefix(f'{directory}/')}"


def facts_line(model: ModelConfig) -> str:
    """The facts that differ from their defaults; layers that are the same follow each other as one."""
    runs = [(layer, sum(1 for _ in same)) for layer, same in itertools.groupby(model.layers)]
    # Kinds of layers in the order in which they appear, by letters
    kinds = list(dict.fromkeys(layer for layer, _ in runs))
    order = "".join(
        chr(ord("a") + kinds.index(layer)) + (str(count) if count > 1 else "")
        for layer, count in runs
    )
    described = "; ".join(
        f"{chr(ord('a') + index)}: {_shown(layer)}" for index, layer in enumerate(kinds)
    )
    return f"{_shown(model, skip='layers')}; layers {order}; {described}"


def _shown(value: Any, skip: str = "") -> str:
    if isinstance(value, float):
        return f"{value:.9g}"
    if isinstance(value, tuple) and len(value) > 8:  # factors of LongRoPE
        return f"({len(value)} numbers, sum {sum(value):.9g})"
    if not dataclasses.is_dataclass(value):
        return str(value)
    fields = [
        f"{each.name}={_shown(own)}"
        for each in dataclasses.fields(value)
        if (own := getattr(value, each.name)) != each.default and each.name != skip
    ]
    return f"{type(value).__name__.removesuffix('Config')}({' '.join(fields)})"


# -- cut down --------------------------------------------------------------------------------------

VOCAB_SIZE, HEAD_DIM, WINDOW = 128, 16, 8
_WIDTHS = ("intermediate_size", "n_inner", "moe_intermediate_size")
_SIZES: dict[str, int] = {
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), VOCAB_SIZE),
    **dict.fromkeys((*_WIDTHS, "shared_expert_intermediate_size", "block_ff_dim"), 48),
    **dict.fromkeys(("num_experts", "num_local_experts"), 6),
    **dict.fromkeys(("num_experts_per_tok", "top_k_experts"), 2),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), HEAD_DIM),
    "head_dim": HEAD_DIM,
    "global_head_dim": 2 * HEAD_DIM,
    "sliding_window": WINDOW,
    "hidden_size_per_layer_input": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
_LAYERS = {"gemma3_text": 6, "qwen3_5_text": 4, "qwen3_5_moe_text": 4, "smollm3": 4, "lfm2": 3}
_QUANTIZATION = ("quantization_config", "quantization")


def cut_down(config: dict[str, Any]) -> dict[str, Any]:
    """The same model with few layers, heads and tokens, in the spelling of its config.json."""
    config = {key: value for key, value in config.items() if key not in _QUANTIZATION}
    if isinstance(text := config.get("text_config"), dict):
        return config | {"text_config": _cut_text(text)}
    return _cut_text(config)


def _cut_text(config: dict[str, Any]) -> dict[str, Any]:
    cut = dict(config)
    for key, size in _SIZES.items():
        if cut.get(key) is not None:
            cut[key] = min(cut[key], size)
    layers, heads, hidden = ("num_hidden_layers", "num_attention_heads", "hidden_size")
    if "n_layer" in cut:
        layers, heads, hidden = "n_layer", "n_head", "n_embd"
    kv_heads = cut.get("num_key_value_heads")
    shared = max(1, cut[heads] // (kv_heads or cut[heads]))
    if kv_heads is not None:
        cut["num_key_value_heads"] = min(kv_heads, 2)
    cut[heads] = min(shared, 2) * min(kv_heads or 4, 2) if kv_heads else 4
    if cut.get("num_global_key_value_heads") is not None:
        cut["num_global_key_value_heads"] = 1
    cut[hidden] = cut[heads] * HEAD_DIM
    cut["vocab_size"], cut["pad_token_id"] = VOCAB_SIZE, 0
    types = cut.get("layer_types")
    cut[layers] = _LAYERS.get(cut["model_type"], 2)
    if types:  # up to where each type was there
        cut[layers] = max(2, *(types.index(each) + 1 for each in set(types)))
    if cut.get("num_kv_shared_layers"):
        cut["num_kv_shared_layers"] = cut[layers]
        cut[layers] *= 2
    if types:
        cut["layer_types"] = types[: cut[layers]]
    rope = cut.get("rope_scaling")
    if rope and rope.get("mrope_section") and not rope.get("mrope_interleaved"):
        cut["rope_scaling"] = rope | {"mrope_section": [2, 3, 3]}  # the pairs of a head
    if cut.get("no_rope_layers"):
        cut["no_rope_layers"] = cut["no_rope_layers"][: cut[layers]]
    if cut.get("full_attn_idxs"):
        cut["full_attn_idxs"] = [index for index in cut["full_attn_idxs"] if index < cut[layers]]
    return cut
