"""Each rank reads, checks and keeps its share of the rows and of the experts, in the memory that is planned for it."""

import tracemalloc
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType

from pellucid.backends.base import Backend, MatrixShape
from pellucid.backends.cpu.backend import CpuBackend
from pellucid.backends.cpu.ranks import planned_ranks
from pellucid.backends.cpu.weights import divide
from pellucid.backends.joined_matrix import UniformMatrix
from pellucid.backends.numpy.backend import NumpyBackend
from pellucid.backends.numpy.weights import NumpyMatrix, NumpyWeights
from pellucid.loading.decoder import make_decoder
from pellucid.loading.open_model import open_stored_model
from pellucid.loading.tensor_source import as_floats
from pellucid.memory.memory_plan import plan_weights
from support.checkpoints import write_checkpoint
from support.decoders import load_decoder
from support.gguf_files import write_gguf

NUM_RANKS = 2


class RankWeights(NumpyWeights):
    """Weights of a rank, which keeps the matrices of each handle. Experts of other ranks are None.

    Args:
        rank: None: there are no other ranks.
    """

    def __init__(self, rank: int | None) -> None:
        super().__init__(np.float32, quantize_activations=True)
        self._rank = rank
        self.shares: list[NumpyMatrix] = []
        self.stacks: list[tuple[NumpyMatrix | None, ...]] = []

    def uniform(self, weight: UniformMatrix, bias: Any, rounds_activations: bool) -> NumpyMatrix:
        return NumpyMatrix(np.asarray(as_floats(weight), np.float32), bias)

    def own_rows(self, num_rows: int) -> slice:
        starts = divide(num_rows, NUM_RANKS)
        rank = self._rank
        return slice(num_rows) if rank is None else slice(starts[rank], starts[rank + 1])

    def own_experts(self, num_experts: int) -> range:
        return range(num_experts)[self.own_rows(num_experts)]

    def shared(self, own: NumpyMatrix, num_rows: int) -> NumpyMatrix:
        self.shares.append(own)
        return own

    def planned(self, parts: Iterable[MatrixShape], bias: bool, rounds: bool = True) -> None:
        return None

    def stack(self, experts: Iterable[NumpyMatrix | None]) -> Any:
        self.stacks.append(tuple(experts))
        return self.stacks[-1]


def loaded(path: Path, quantization: str, rank: int | None) -> RankWeights:
    backend = NumpyBackend()
    backend.weights = weights = RankWeights(rank)
    load_decoder(path, backend, quantization=quantization)
    return weights


def rows(*handles: Any) -> list[Any]:
    """The numbers of handles whose rows follow each other, and their biases."""
    parts = [part for handle in handles for part in getattr(handle, "parts", (handle,))]
    numbers = np.concatenate([part.weight for part in parts])
    biases = [part.bias for part in parts if part.bias is not None]
    return [numbers.tolist(), np.concatenate(biases).tolist() if biases else None]


@pytest.mark.parametrize(
    ("family", "matrix_type", "quantization"),
    [
        ("llama", None, "int4"),
        ("gpt2", None, "none"),  # stored transposed
        ("phi3", None, "none"),  # q, k and v in one tensor
        ("qwen3-moe", None, "int8"),  # a tensor of each expert
        ("gpt-oss", None, "none"),  # one of all, the rows of two weights in turn
        ("qwen3.5-moe", None, "none"),  # other orders of rows
        ("llama", GGMLQuantizationType.Q4_0, "none"),
        ("mixtral", GGMLQuantizationType.Q8_0, "none"),
    ],
)
def test_ranks_have_the_rows_of_the_whole(
    family: str, matrix_type: GGMLQuantizationType | None, quantization: str, tmp_path: Path
) -> None:
    """Each row is on one rank, with the bits that it has in one process; so is each expert."""
    path = write_checkpoint(tmp_path / "model", family)
    if matrix_type is not None:
        path = write_gguf(tmp_path / "model.gguf", path, matrix_type=matrix_type)
    whole = loaded(path, quantization, None)
    ranks = [loaded(path, quantization, rank) for rank in range(NUM_RANKS)]
    for handle, *shares in zip(whole.shares, *(each.shares for each in ranks), strict=True):
        assert rows(*shares) == rows(handle)
    for stack, *parts in zip(whole.stacks, *(each.stacks for each in ranks), strict=True):
        for expert, *owners in zip(stack, *parts, strict=True):
            [owner] = [each for each in owners if each is not None]
            assert rows(owner) == rows(expert)


def test_numbers_that_are_not_finite_are_counted_among_the_rows_of_the_rank(
    tmp_path: Path,
) -> None:
    def edit(weights: dict[str, Any]) -> None:
        weights["model.layers.0.self_attn.o_proj.weight"][-1, 3] = np.nan

    path = write_checkpoint(tmp_path, "llama", edit_weights=edit)
    loaded(path, "none", 0)
    for rank, place in ((None, r"\[63, 3\]"), (1, r"\[31, 3\] of the rows of this process")):
        with pytest.raises(ValueError, match=rf"holds nan at {place}: weights must be finite"):
            loaded(path, "none", rank)


def test_shares_are_whole_panels_of_rows_and_whole_experts() -> None:
    weights = CpuBackend(1, ranks=planned_ranks(3)).weights
    own = [weights.own_rows(num_rows) for num_rows in (95, 96, 100)]
    assert own == [slice(0, 95), slice(64, 96), slice(64, 100)]
    assert divide(8, 3) == (0, 2, 5, 8) and weights.own_experts(8) == range(5, 8)
    assert divide(3, 3) == (0, 1, 2, 3)
    with pytest.raises(ValueError, match="size=3: 2 experts cannot be divided among so many"):
        divide(2, 3)


def test_a_rank_has_its_share_of_the_memory_and_one_model(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = replace(planned_ranks(3), num_on_machine=2)
    for free, own in ((101, 50), (None, None)):
        monkeypatch.setattr(Backend, "available_memory", lambda backend, free=free: free)
        assert CpuBackend(1, ranks=ranks).available_memory() == own
        assert CpuBackend(1).available_memory() == free
    ranks.claim()
    with pytest.raises(ValueError, match=r"size=3: .*load one model, .*; start others"):
        ranks.claim()


def measured(path: Path, num_ranks: int) -> tuple[int, int]:
    """Bytes of the weights that one of so many ranks keeps in int8, and the most that NumPy had allocated at a time."""
    backend = CpuBackend(1, ranks=planned_ranks(num_ranks) if num_ranks > 1 else None)
    stored = open_stored_model(path)
    tracemalloc.start()
    decoder = make_decoder(stored, backend, quantization="int8").decoder
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    weights = backend.compile(decoder, stored.config).step_weights
    kept = weights.layer_bytes + weights.head_bytes
    planned = plan_weights(stored, None, "int8", num_ranks=num_ranks).total
    assert abs(kept / planned - 1) < 0.05
    return kept, peak


def test_a_rank_takes_what_is_planned(tmp_path: Path) -> None:
    """For the weights that it keeps, and beside them for a while."""
    overrides = {"num_hidden_layers": 1, "hidden_size": 256, "intermediate_size": 4096}
    path = write_checkpoint(tmp_path, "llama", config_overrides=overrides)
    kept, peak = measured(path, 1)
    kept_by_rank, peak_of_rank = measured(path, NUM_RANKS)
    assert kept_by_rank < 0.52 * kept
    assert peak_of_rank < 0.5 * peak
