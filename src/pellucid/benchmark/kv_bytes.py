"""The bytes of keys and values, by formula."""

from pellucid.facts.model_config import AttentionConfig, ModelConfig

NUMBER_BYTES = {"f32": 4.0, "bf16": 2.0, "int8": 1.0, "int4": 0.5}  # of keys and values
SCALE_BYTES = 2
INT4_GROUP_DIMS = 32


def kv_position_bytes(model: ModelConfig, dtype: str) -> float:
    """Bytes of K and V of one position in all layers that have their own, scales included.

    Raises:
        ValueError: there is no such format.
    """
    own = (each for each in model.attentions if each.shared_kv_layer is None)
    return sum(_layer_position_bytes(each, dtype) for each in own)


def _layer_position_bytes(attention: AttentionConfig, dtype: str) -> float:
    if dtype not in NUMBER_BYTES:
        raise ValueError(f"kv_cache_dtype={dtype!r}: must be one of {', '.join(NUMBER_BYTES)}")
    groups = {"int8": 1, "int4": -(-attention.head_dim // INT4_GROUP_DIMS)}.get(dtype, 0)
    head = attention.head_dim * NUMBER_BYTES[dtype] + groups * SCALE_BYTES
    return 2 * attention.num_kv_heads * head
