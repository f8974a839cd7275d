"""The tensors of a checkpoint that a model's decoder reads: their names and shapes, without any weights."""

from dataclasses import dataclass
from typing import Any

from pellucid.facts.model_config import ModelConfig
from pellucid.loading.stored_model import StoredModel
from pellucid.models.family import WeightNames
from pellucid.models.registry import family_of


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


class WantedTensors:
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

    def matrix(
        self,
        name: str,
        num_rows: int,
        num_columns: int,
        bias: bool = False,
        parts: tuple[int, ...] = (),
    ) -> None:
        recipe = self._names.recipe(name)
        if len(recipe.sources) == 1:
            parts = (num_rows,)
        for source, rows in zip(recipe.sources, parts, strict=True):
            tensor = recipe.tensor(source, "weight")
            if recipe.rows is not None and tensor in self.tensors:  # it holds several weights
                rows += self.tensors[tensor].shape[0]
            self.tensors[tensor] = WantedTensor((rows, num_columns))
            if bias:
                self._add_bias(recipe.tensor(source, "bias"), (rows,), name)

    def router(self, name: str, num_experts: int, num_columns: int, bias: bool = False) -> None:
        self.matrix(name, num_experts, num_columns, bias)

    def experts(
        self, name: str, num_experts: int, num_rows: int, num_columns: int, bias: bool = False
    ) -> None:
        recipe = self._names.recipe(name)
        source = recipe.sources[0].replace(".{e}", "")
        if recipe.half is not None:  # of gate and up, one after the other in each expert
            num_rows *= 2
        first = recipe.tensor(recipe.sources[0].replace("{e}", "0"), "weight")
        self.tensors[recipe.tensor(source, "weight")] = WantedTensor(
            (num_experts, num_rows, num_columns), of_first_expert=first
        )
        if bias:
            self._add_bias(recipe.tensor(source, "bias"), (num_experts, num_rows), name)

    def table(self, name: str, num_rows: int, num_columns: int) -> None:
        self.matrix(name, num_rows, num_columns)

    def vector(self, name: str, size: int, scale: float = 1.0) -> None:
        module, kind = name.rsplit(".", 1)
        recipe = self._names.recipe(module)
        self.tensors[recipe.tensor(recipe.sources[0], kind)] = WantedTensor((size,), name)

    def convolution(self, name: str, num_channels: int, kernel_size: int) -> None:
        self.matrix(name, num_channels, kernel_size)

    def _add_bias(self, tensor: str, shape: tuple[int, ...], name: str) -> None:
        self.tensors[tensor] = WantedTensor(shape, f"{name}.bias")


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
