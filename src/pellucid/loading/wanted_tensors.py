"""The tensors of a GGUF file that a model's decoder reads: their names and shapes, without any weights."""

from dataclasses import dataclass

from pellucid.backends.numpy_backend import NumpyBackend
from pellucid.model_config import ModelConfig
from pellucid.models.family import WeightNames
from pellucid.models.registry import family_of


@dataclass(frozen=True)
class WantedTensor:
    """A tensor that a decoder reads.

    Args:
        shape: rows first; experts before them.
        vector: our name of a vector, which other numbers fill than those of matrices; None: a matrix.
    """

    shape: tuple[int, ...]
    vector: str | None = None


class WantedTensors:
    """The `Parameters` that note which tensors of a GGUF file a decoder reads.

    Args:
        names: of the file.

    Attributes:
        tensors: by llama.cpp's names, in the order in which the decoder reads them.
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
        self.tensors[f"{source}.weight"] = WantedTensor((num_experts, num_rows, num_columns))
        if bias:
            self._add_bias(f"{source}.bias", (num_experts, num_rows), name)

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
    family_of(config.architecture).decoder(config, wanted, NumpyBackend().ops)
    return wanted.tensors
