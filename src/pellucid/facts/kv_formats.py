"""The formats of the KV cache: how each stores the numbers of keys and of values."""

import sys

from msgspec import Struct

GROUP_DIMS = 32  # dimensions of a head whose codes share a scale
# Positions whose codes of a dimension share a scale; groups begin at multiples.
GROUP_POSITIONS = 32
OPEN_GROUPS = 2  # the latest groups of a sequence, which its slot keeps in bf16
SCALE_BYTES = 2
_WHOLE_HEAD = sys.maxsize


class NumberFormat(Struct, frozen=True):
    """How the keys, or the values, of a token and kv-head are stored.

    Args:
        name: "f32", "bf16", "int8" or "int4".
        bits: of a number.
        group_dims: dimensions that share a scale; None: there are no scales.
        is_rotated: codes are made of the head after a Hadamard rotation of every `GROUP_DIMS` dimensions, so
            that they stand for whole groups, with zeros behind the head's end.
        is_by_dimension: each dimension has a scale and a minimum for `GROUP_POSITIONS` positions. Codes exist once
            all of them are known; a head is padded to whole groups of dimensions.
    """

    name: str
    bits: int
    group_dims: int | None = None
    is_rotated: bool = False
    is_by_dimension: bool = False

    def num_numbers(self, head_dim: int) -> int:
        """Numbers of a head that are stored."""
        is_padded = self.is_rotated or self.is_by_dimension
        return -(-head_dim // GROUP_DIMS) * GROUP_DIMS if is_padded else head_dim

    def num_groups(self, head_dim: int) -> int:
        """Scales of a token's head."""
        return 0 if self.group_dims is None else -(-head_dim // self.group_dims)

    def num_bytes(self, head_dim: int) -> float:
        """Of a token's head, scales included."""
        count = self.num_numbers(head_dim)
        scales = float(self.num_groups(head_dim))
        if self.is_by_dimension:
            scales = 2 * count / GROUP_POSITIONS
        return count * self.bits / 8 + scales * SCALE_BYTES


class KVFormat(Struct, frozen=True):
    """A format of the cache, as in `EngineConfig.kv_cache_dtype`."""

    keys: NumberFormat
    values: NumberFormat

    @property
    def halves(self) -> tuple[NumberFormat, NumberFormat]:
        return self.keys, self.values

    @property
    def open_positions(self) -> int:
        """Positions that become codes together: a query reads its own ones in bf16, and blocks have whole groups
        of them; 0: each position becomes codes, or floats, on its own."""
        return GROUP_POSITIONS if self.keys.is_by_dimension else 0


_F32, _BF16 = NumberFormat("f32", 32), NumberFormat("bf16", 16)
# Outliers of keys are dimensions: a rotation spreads each over its group, whose scale keeps it from the others; with
# 4 bits each has a scale of its own.
_INT8_KEYS = NumberFormat("int8", 8, GROUP_DIMS, is_rotated=True)
_INT8_VALUES = NumberFormat("int8", 8, _WHOLE_HEAD)
_INT4_KEYS = NumberFormat("int4", 4, is_by_dimension=True)
_INT4_VALUES = NumberFormat("int4", 4, GROUP_DIMS, is_rotated=True)
KV_FORMATS = {
    "bf16": KVFormat(_BF16, _BF16),
    "f32": KVFormat(_F32, _F32),
    "int8": KVFormat(_INT8_KEYS, _INT8_VALUES),
    "int8,int4": KVFormat(_INT8_KEYS, _INT4_VALUES),
    "int4": KVFormat(_INT4_KEYS, _INT4_VALUES),
}


def find_kv_format(dtype: str) -> KVFormat:
    """The format of that name.

    Raises:
        ValueError: there is none.
    """
    if dtype not in KV_FORMATS:
        raise ValueError(
            f"kv_cache_dtype={dtype!r}: allowed are {', '.join(map(repr, KV_FORMATS))}"
        )
    return KV_FORMATS[dtype]
