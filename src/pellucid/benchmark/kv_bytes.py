"""The bytes of keys and values, by formula."""

from pellucid.facts.kv_formats import find_kv_format
from pellucid.facts.model_config import AttentionConfig, ModelConfig


def kv_position_bytes(model: ModelConfig, dtype: str) -> float:
    """Bytes of K and V of one position in all layers that have their own, scales included.

    Raises:
        ValueError: there is no such format.
    """
    halves = find_kv_format(dtype).halves

    def layer_bytes(attention: AttentionConfig) -> float:
        return attention.num_kv_heads * sum(half.num_bytes(attention.head_dim) for half in halves)

    own = (each for each in model.attentions if each.shared_kv_layer is None)
    return sum(layer_bytes(each) for each in own)
