"""The weights that a step reads: how many bytes, and in which arithmetic they are multiplied."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pellucid import formulas
from pellucid.backends.base import Backend, Decoder
from pellucid.backends.quantization.formats import FORMATS
from pellucid.config import EngineConfig, ModelConfig

Arithmetic: TypeAlias = Literal["int8", "bf16", "f32"]

F32_BYTES, BF16_BYTES = 4, 2


@dataclass(frozen=True)
class StepWeights:
    """What a step reads of weights, however many tokens it has: each matrix once.

    Args:
        layer_bytes: of all layers, scales and zero points included.
        head_bytes: of the head, for steps that compute logits.
        arithmetic: in which most of them are multiplied.
    """

    layer_bytes: int
    head_bytes: int
    arithmetic: Arithmetic

    def num_bytes(self, with_head: bool) -> int:
        return self.layer_bytes + (self.head_bytes if with_head else 0)


def planned_matrix_bytes(
    engine_config: EngineConfig, backend: Backend
) -> Callable[[int, int], int]:
    """Bytes of a matrix of (outputs, inputs) that is not made yet: of the format that `engine_config`
    asks for; without one in f32 on NumPy, else in bf16."""
    integer_format = FORMATS.get(engine_config.quantization)
    if integer_format is None:
        float_bytes = F32_BYTES if backend.name == "numpy" else BF16_BYTES
        return lambda num_outputs, num_inputs: num_outputs * num_inputs * float_bytes

    def integer_bytes(num_outputs: int, num_inputs: int) -> int:
        arrays = integer_format.arrays(num_outputs, num_inputs).values()
        return sum(dtype.itemsize * math.prod(shape) for dtype, shape in arrays)

    return integer_bytes


def step_weights(
    engine_config: EngineConfig, config: ModelConfig, backend: Backend, decoder: Decoder
) -> StepWeights:
    """Counts the weights of a decoder that is there.

    Args:
        decoder: as `backend.compile` gave it.
    """
    if backend.name != "cpu":  # computes in f32, whatever the format
        matrix_bytes = planned_matrix_bytes(engine_config, backend)
        layer_bytes = formulas.weight_bytes(config, matrix_bytes, with_head=False)
        head_bytes = matrix_bytes(config.vocab_size, config.hidden_size)
        return StepWeights(layer_bytes, head_bytes, "f32")

    from pellucid.backends.compiled_decoder import CompiledDecoder  # needs the native extension

    assert isinstance(decoder, CompiledDecoder)
    *layers, head = decoder.weights
    bytes_by_arithmetic: dict[Arithmetic, int] = {}
    for weight in decoder.weights:
        arithmetic = _arithmetic(weight.format, engine_config.quantize_activations)
        counted = bytes_by_arithmetic.get(arithmetic, 0)
        bytes_by_arithmetic[arithmetic] = counted + weight.num_bytes
    return StepWeights(
        sum(weight.num_bytes for weight in layers),
        head.num_bytes,
        max(bytes_by_arithmetic, key=lambda arithmetic: bytes_by_arithmetic[arithmetic]),
    )


def _arithmetic(weight_format: str, quantize_activations: bool) -> Arithmetic:
    if not quantize_activations or weight_format in ("f32", "f16"):
        return "f32"
    return "bf16" if weight_format == "bf16" else "int8"
