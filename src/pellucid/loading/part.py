"""A part of a checkpoint: the tensors of some neighbouring layers, and of what stands before or after all layers."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from pellucid.backends.ops import Parameters, Weight
from pellucid.facts.model_config import ModelConfig
from pellucid.facts.model_parts import part_of
from pellucid.loading.stored_model import StoredModel
from pellucid.models.family import WeightNames
from pellucid.models.parts import decoder_parameters
from pellucid.models.registry import decoder_class


def stored_part(stored: StoredModel, layers: range) -> StoredModel:
    """Some layers of an open checkpoint as a model of its own: loading it reads their tensors alone.

    Raises:
        ValueError: as `part_of`.
    """
    config = part_of(stored.config, layers)
    own = _tensors_by_weight(stored, config).values()
    return _without_others(stored, config, own)


def layers_apart(stored: StoredModel) -> tuple[list[StoredModel], StoredModel, StoredModel]:
    """An open checkpoint as its layers, the embedding and the head, each with its tensors alone, to plan their
    memory. Their configurations are that of the whole."""
    by_layer: dict[int, set[str]] = defaultdict(set)
    embedding, head = set[str](), set[str]()
    for name, tensors in _tensors_by_weight(stored, stored.config).items():
        match name.split(".", 2):
            case ["layers", layer, _]:
                by_layer[int(layer)] |= tensors
            case ["embed_tokens"] if stored.config.tie_word_embeddings:
                embedding |= tensors
                head |= tensors
            case ["lm_head" | "norm", *_]:
                head |= tensors
            case _:
                embedding |= tensors
    config = stored.config
    layers = [
        _without_others(stored, config, [by_layer[index]]) for index in range(config.num_layers)
    ]
    ends = (_without_others(stored, config, [tensors]) for tensors in (embedding, head))
    first, last = ends
    return layers, first, last


def _without_others(
    stored: StoredModel, config: ModelConfig, own: Iterable[set[str]]
) -> StoredModel:
    """The checkpoint without tensors that other parts of the model read."""
    used = set[str]().union(*_tensors_by_weight(stored, stored.config).values())
    others = used.difference(*own)
    return replace(stored, config=config, names=replace(stored.names, left_out=frozenset(others)))


def _tensors_by_weight(stored: StoredModel, config: ModelConfig) -> Mapping[str, set[str]]:
    """The checkpoint's tensors that the decoder of `config` reads, by the names of weights."""
    read = _ReadTensors(stored.names)
    no_ops: Any = None  # a decoder that is only made computes nothing
    decoder_class(config.architecture)(config, decoder_parameters(read, config), no_ops)
    return {
        name: {tensor for tensor in tensors if tensor in stored.tensors}
        for name, tensors in read.tensors.items()
    }


class _ReadTensors(Parameters):
    """The `Parameters` that note which tensors each weight is made of, where a checkpoint has them.

    Attributes:
        tensors: by the names of weights.
    """

    def __init__(self, names: WeightNames) -> None:
        self.tensors: dict[str, set[str]] = defaultdict(set)
        self._names = names

    def make(self, weight: Weight) -> None:
        numbers = [weight, weight.bias] if weight.has_bias else [weight]
        for each in numbers:
            module, kind = each.numbers.rsplit(".", 1)
            for source in self._names.recipe(module).sources:
                own = [source]
                if weight.kind == "experts":
                    of_each = (source.of_expert(expert) for expert in range(weight.shape[0]))
                    own = [source.of_all_experts, *of_each]
                for one in own:
                    self.tensors[weight.name].update(self._names.candidates(one.tensor(kind)))
