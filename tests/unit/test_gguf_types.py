"""The types of GGUF files are those of the gguf library."""

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from pellucid.loading.gguf_types import BLOCK_SIZES, TensorKind, ValueType


def test_types_of_tensors() -> None:
    for name, kind in TensorKind.__members__.items():
        library_kind = GGMLQuantizationType[name]
        assert (kind.value, BLOCK_SIZES[kind]) == (
            library_kind.value,
            tuple(GGML_QUANT_SIZES[library_kind]),
        )


def test_types_of_values() -> None:
    assert {name: each.value for name, each in ValueType.__members__.items()} == {
        each.name: each.value for each in GGUFValueType
    }
