"""The types of GGUF files are those of the gguf library."""

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from pellucid.loading.gguf_types import BLOCK_SIZES, TensorKind, ValueType


def test_types_of_tensors() -> None:
    for kind in TensorKind:
        library_kind = GGMLQuantizationType[kind.name]
        assert (kind.value, BLOCK_SIZES[kind]) == (
            library_kind.value,
            tuple(GGML_QUANT_SIZES[library_kind]),
        )


def test_types_of_values() -> None:
    assert {each.name: each.value for each in ValueType} == {
        each.name: each.value for each in GGUFValueType
    }
