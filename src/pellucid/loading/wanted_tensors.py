"""The tensors of a checkpoint that a model's decoder reads: their names and shapes, without any weights."""

from dataclasses import dataclass
from typing import Any

from pellucid.backends.ops import Parameters, Weight
from pellucid.facts.model_config import ModelConfig
from pellucid.loading.stored_model import StoredModel
from pellucid.models.family import WeightNames
from pellucid.models.registry import family_of
from pellucid.models.stored_weights import Rows, Shape, Source


@dataclass(frozen=True)
class WantedTensor:
    """A tensor that a decoder reads.

    Args:
        shape: rows first; experts before them.
        vector: our name of a vector, which other numbers fill than those of matrices; None: a matrix.
        of_first_expert: the tensor of the first expert, where each may have its own.
    """

    shape: tuple[int, ...]
    vector: str | None = None
    of_first_expert: str | None = None


class WantedTensors(Parameters):
    """The `Parameters` that note which tensors of a checkpoint a decoder reads.

    Args:
        names: of the checkpoint.

    Attributes:
        tensors: by the names of recipes, in the order in which the decoder reads them. Shapes are those of GGUF
            files.
    """

    def __init__(self, names: WeightNames) -> None:
        self.tensors: dict[str, WantedTensor] = {}
        self._names = names

    def make(self, weight: Weight) -> None:
        module, kind = weight.numbers.rsplit(".", 1)
        sources = self._names.recipe(module).sources
        match weight.kind:
            case "experts":
                self._add_experts(sources[0], weight)
            case "vector":
                self.tensors[sources[0].tensor(kind)] = WantedTensor(weight.shape, weight.name)
            case _:
                rows_of_sources = weight.shape[:1] if len(sources) == 1 else weight.parts
                for source, num_rows in zip(sources, rows_of_sources, strict=True):
                    self._add_matrix(source, weight, (num_rows, *weight.shape[1:]))

    def _add_matrix(self, source: Source, weight: Weight, shape: Shape) -> None:
        tensor = source.tensor("weight")
        if tensor in self.tensors and any(isinstance(step, Rows) for step in source.steps):
            # It holds several weights.
            shape = (shape[0] + self.tensors[tensor].shape[0], *shape[1:])
        self.tensors[tensor] = WantedTensor(shape)
        if weight.has_bias:
            self.tensors[source.tensor("bias")] = WantedTensor(shape[:1], weight.bias.name)

    def _add_experts(self, source: Source, weight: Weight) -> None:
        num_experts, *own = weight.shape
        shape = (num_experts, *source.shapes(tuple(own))[0])
        together = source.of_all_experts
        self.tensors[together.tensor("weight")] = WantedTensor(
            shape, of_first_expert=source.of_expert(0).tensor("weight")
        )
        if weight.has_bias:
            self.tensors[together.tensor("bias")] = WantedTensor(shape[:2], weight.bias.name)


def wanted_tensors(config: ModelConfig, names: WeightNames) -> dict[str, WantedTensor]:
    """The tensors that the decoder of `config` reads, by name, in its order."""
    wanted = WantedTensors(names)
    no_ops: Any = None  # a decoder that is only made computes nothing
    family_of(config.architecture).decoder(config, wanted, no_ops)
    return wanted.tensors


def check_matrices_are_there(stored: StoredModel) -> None:
    """Checks by the headers what loading would find when it reads the weights.

    Raises:
        ValueError: a matrix that the decoder reads is missing.
    """
    for name, wanted in wanted_tensors(stored.config, stored.names).items():
        tensors = (name, wanted.of_first_expert or name)
        candidates = [each for tensor in tensors for each in stored.names.candidates(tensor)]
        if wanted.vector is None and not any(each in stored.tensors for each in candidates):
            raise ValueError(
                f"{stored.tensors.location}: tensor {' or '.join(dict.fromkeys(candidates))} is missing"
            )
