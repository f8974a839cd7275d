"""The facts of an open checkpoint, summarized for people."""

from collections import Counter

from pellucid.checking.report import LayerFacts, ModelFacts, StoredType
from pellucid.facts.model_config import LayerConfig
from pellucid.loading.stored_model import StoredModel


def model_facts(stored: StoredModel) -> ModelFacts:
    """The facts of `stored`."""
    config = stored.config
    kinds = Counter(_layer_facts(layer) for layer in config.layers)
    return ModelFacts(
        config.architecture,
        "safetensors" if stored.path.is_dir() else "gguf",
        config.num_layers,
        tuple(LayerFacts(count, *kind) for kind, count in kinds.most_common()),
        config.hidden_size,
        config.context_length,
        config.vocab_size,
        _stored_types(stored),
    )


def _layer_facts(layer: LayerConfig) -> tuple[str, int, int, int, int | None, int, int]:
    """The fields of `LayerFacts` after `count`."""
    attention, experts = layer.attention, layer.experts
    chosen = (0, 0) if experts is None else (experts.num_experts, experts.num_chosen)
    if attention is None:
        return ("recurrence", 0, 0, 0, None, *chosen)
    heads = attention.num_heads, attention.num_kv_heads, attention.head_dim
    return ("attention", *heads, attention.window, *chosen)


def _stored_types(stored: StoredModel) -> tuple[StoredType, ...]:
    num_tensors: Counter[str] = Counter()
    num_bytes: Counter[str] = Counter()
    for name in stored.tensors:
        info = stored.tensors.info(name)
        num_tensors[info.type_name] += 1
        num_bytes[info.type_name] += info.num_bytes
    return tuple(
        StoredType(name, num_tensors[name], size) for name, size in num_bytes.most_common()
    )
