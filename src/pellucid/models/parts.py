"""The weights of a part of a model: neighbouring layers, and what stands before or after all layers."""

from dataclasses import replace
from typing import Any

from pellucid.backends.ops import Parameters, Weight
from pellucid.facts.model_config import ModelConfig

# What later parts need beside the first one: embeddings of tokens for each layer follow from those of the tokens.
_LAYER_EMBEDDINGS = ("layer_embeddings", "layer_embeddings_proj", "layer_embeddings_norm.weight")


class PartParameters(Parameters):
    """The `Parameters` of the decoder of a part: asks those of the whole model for the weights of this part alone.
    The handle of every other weight is None.

    Args:
        source: of the whole model.
        config: of the part.
    """

    def __init__(self, source: Parameters, config: ModelConfig) -> None:
        self._source = source
        self._config = config

    def make(self, weight: Weight) -> Any:
        match weight.name.split(".", 2):
            case ["layers", layer, module]:
                number = int(layer) + self._config.first_layer
                own = replace(weight, name=f"layers.{number}.{module}")
                return self._source.make(own)
            case _:
                return self._source.make(weight) if self._is_needed(weight.name) else None

    def _is_needed(self, name: str) -> bool:
        config = self._config
        if name in _LAYER_EMBEDDINGS:
            return True
        if name == "embed_tokens":
            is_head = config.is_last and config.tie_word_embeddings
            return config.is_first or is_head or bool(config.layer_vocab_size)
        return config.is_first if name == "embed_positions" else config.is_last


def decoder_parameters(parameters: Parameters, config: ModelConfig) -> Parameters:
    """What the decoder of `config` asks for its weights.

    Args:
        parameters: of the whole model.
    """
    return parameters if config.part is None else PartParameters(parameters, config)
