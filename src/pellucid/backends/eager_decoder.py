"""A decoder as it is written: Python calls one op after the other."""

from pellucid.backends.base import CompiledDecoder, StepWeights
from pellucid.backends.ops import Decoder
from pellucid.facts import formulas
from pellucid.facts.model_config import ModelConfig


class EagerDecoder(CompiledDecoder):
    """What decoders share that backends run op by op.

    Args:
        decoder: over the backend's ops.
        config: its shape.
        bytes_per_number: of matrices, on average.
    """

    def __init__(self, decoder: Decoder, config: ModelConfig, bytes_per_number: float) -> None:
        self._decoder = decoder
        self._config = config
        self._bytes_per_number = bytes_per_number

    @property
    def vocab_size(self) -> int:
        return self._config.vocab_size

    @property
    def step_weights(self) -> StepWeights:
        def matrix_bytes(num_outputs: int, num_inputs: int) -> int:
            return round(num_outputs * num_inputs * self._bytes_per_number)

        layers = formulas.weight_bytes(self._config, matrix_bytes, with_head=False)
        head = formulas.weight_bytes(self._config, matrix_bytes) - layers
        return StepWeights(layers, head, "f32")

    @property
    def _mlp_width(self) -> int:
        """Numbers of a token within the widest MLP, where a step's arrays are largest."""
        return max(
            part.intermediate_size
            for layer in self._config.layers
            for part in (layer.mlp, layer.experts)
            if part is not None
        )
