"""Decode steps as graphs: the launches of a forward, recorded once and repeated with a single call.

A graph holds addresses. So each bucket of rows has arrays of its own, whose contents a step replaces with one copy;
rows up to its size write into a spare block. Kernels whose work depends on the step read a list (`StepPlan`).
"""

import warnings
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pellucid.backends.ops import ForwardBatch
from pellucid.backends.torch.batch import StepPlan, TorchBatch, turns_of
from pellucid.backends.torch.kv_cache import TorchKVCache
from pellucid.backends.torch.memory import TORCH_DTYPES
from pellucid.facts.kv_formats import find_kv_format
from pellucid.facts.model_config import ModelConfig, RopeConfig

BUCKETS = (1, 2, 4, *range(8, 257, 8))  # rows
_LEAST_WIDTH = 64  # of block tables
_ALIGNMENT = 64  # bytes, of an array of the buffer


def fits_graphs(config: ModelConfig, kv_dtype: str, parts: AbstractSet[str]) -> bool:
    """Whether no op of a decode step asks the host what the step is made of: rows that stay in a file, and keys whose
    groups the host plans do.

    Args:
        parts: `TorchOps.parts_of_graphs`. Experts and recurrent layers of other ops do likewise.
    """
    return (
        config.is_first
        and config.is_last
        and config.layer_vocab_size == 0
        and find_kv_format(kv_dtype).open_positions == 0
        and all(
            (each.attention is not None or "recurrence" in parts)
            and (each.experts is None or "experts" in parts)
            for each in config.layers
        )
    )


Results: TypeAlias = tuple[Tensor, Tensor]


class Graph(Protocol):
    """Launches that have been recorded."""

    def replay(self) -> None: ...


class Graphs(Protocol):
    """Records what a device computes."""

    def capture(self, run: Callable[[], Results]) -> tuple[Graph, Results]:
        """The graph of `run`, and the results that each replay overwrites."""
        ...


class CudaGraphs:
    """Those of CUDA. They share memory, as one is replayed at a time."""

    def __init__(self) -> None:
        # The shared memory is gone with the last graph, and CUDA refuses its name then.
        self._living: weakref.WeakSet[torch.cuda.CUDAGraph] = weakref.WeakSet()

    def capture(self, run: Callable[[], Results]) -> tuple[Graph, Results]:
        graph = torch.cuda.CUDAGraph()
        pool = next((each.pool() for each in self._living), None)
        with torch.cuda.graph(graph, pool=pool):
            results = run()
        self._living.add(graph)
        return graph, results


class StepArrays:
    """Arrays of fixed shapes in one buffer of the device, which one copy fills.

    Args:
        arrays: their shapes and dtypes.

    Attributes:
        views: the arrays on the host.
        tensors: those on the device.
    """

    def __init__(self, arrays: Sequence[npt.NDArray[Any]], device: torch.device) -> None:
        starts = np.cumsum([0, *(-(-each.nbytes // _ALIGNMENT) * _ALIGNMENT for each in arrays)])
        num_bytes = int(starts[-1])
        self._host = torch.zeros(num_bytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._device = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
        self.views = [
            self._host.numpy()[start : start + each.nbytes].view(each.dtype).reshape(each.shape)
            for each, start in zip(arrays, starts.tolist(), strict=False)
        ]
        self.tensors = [
            self._device[start : start + each.nbytes]
            .view(TORCH_DTYPES[each.dtype])
            .reshape(each.shape)
            for each, start in zip(arrays, starts.tolist(), strict=False)
        ]

    def load(self) -> None:
        """Copies `views`, the arrays on the host. The device has read what was there: a step ends with a copy to the
        host."""
        self._device.copy_(self._host, non_blocking=True)


class _Bucket(NamedTuple):
    """Steps that share a graph.

    Attributes:
        rows: of the graph.
        width: of block tables.
    """

    rows: int
    width: int


_NUM_FIXED = 6  # arrays of a graph before rotations


@dataclass(frozen=True)
class _Inputs:
    """What a graph reads of a step: tokens, positions, lengths, slots, block tables, rows of logits; then what layers
    have asked for."""

    plans: tuple[StepPlan, ...]
    rotations: tuple[RopeConfig, ...]

    def shapes(self, bucket: _Bucket, batch: ForwardBatch) -> list[npt.NDArray[Any]]:
        """Arrays for all steps of a bucket.

        Args:
            batch: one of them.
        """
        rows, num_groups = bucket.rows, len(batch.block_tables)
        of_rows = np.zeros(rows, np.int64)
        return [
            *(of_rows, of_rows, of_rows, np.zeros((num_groups, rows), np.int64)),
            *(np.zeros((num_groups, *bucket), np.int64), of_rows),
            *(
                np.zeros((rows, 1, each.dim // 2), np.float32)
                for each in self.rotations
                for _ in (0, 1)
            ),
            *(plan.numbers_of(batch) for plan in self.plans),
        ]

    def write(
        self, views: Sequence[npt.NDArray[Any]], batch: ForwardBatch, spare_slot: int
    ) -> None:
        """Writes a step into arrays of `shapes`. Rows that it has not are requests with token 0 at position 0, whose
        keys go to `spare_slot`."""
        token_ids, positions, lengths, slots, tables, logits_indices, *others = views
        rows = len(batch.positions)
        for view, own, value in (
            (token_ids, batch.token_ids, 0),
            (positions, batch.positions, 0),
            (lengths, batch.rope_lens, 1),
            (slots, batch.slot_mapping, spare_slot),
        ):
            view[..., :rows], view[..., rows:] = own, value
        _, num_requests, width = batch.block_tables.shape
        tables[...] = -1
        tables[:, :num_requests, :width] = batch.block_tables
        logits_indices[...] = np.arange(len(logits_indices))
        rest = iter(others)
        for rope in self.rotations:
            for turn in turns_of(positions, lengths, rope):
                next(rest)[...] = turn
        for plan in self.plans:
            next(rest)[...] = plan.numbers_of(batch)


@dataclass(frozen=True)
class _Recorded:
    """A graph with its arrays, and its results."""

    inputs: _Inputs
    arrays: StepArrays
    graph: Graph
    results: Results


class GraphRunner:
    """Runs decode steps, with drafts or without: the logits of all rows are needed.

    Args:
        forward: gives logits [T, V], and which are largest [2, T].
    """

    def __init__(self, forward: Callable[[Any, Any], Results], graphs: Graphs) -> None:
        self._forward = forward
        self._graphs = graphs
        self._recorded: dict[_Bucket, _Recorded] = {}
        self._kv_cache: Callable[[], object] = lambda: None
        self._works = True

    def run(
        self, batch: ForwardBatch, kv_cache: TorchKVCache, device: torch.device
    ) -> Results | None:
        """What `forward` gives for a step, until the next one; None: the step is no graph.

        Args:
            batch: on the host.
        """
        num_rows = len(batch.positions)
        if not self._takes(batch, kv_cache):
            return None
        rows = next(each for each in BUCKETS if num_rows <= each)
        width = max(_LEAST_WIDTH, 1 << (batch.block_tables.shape[2] - 1).bit_length())
        bucket = _Bucket(rows, width)
        if bucket not in self._recorded:
            try:
                self._recorded[bucket] = self._record(bucket, batch, kv_cache, device)
            except Exception as error:  # of the driver, or of an op that asks the host
                self._works = False
                self._recorded.clear()
                message = f"device={device.type!r}: decode steps are no graphs ({error}): slower"
                warnings.warn(message, RuntimeWarning, stacklevel=3)
                return None
        recorded = self._recorded[bucket]
        recorded.inputs.write(recorded.arrays.views, batch, _spare_slot(kv_cache))
        recorded.arrays.load()
        recorded.graph.replay()
        logits, largest = recorded.results
        return logits[:num_rows], largest

    def _takes(self, batch: ForwardBatch, kv_cache: TorchKVCache) -> bool:
        """Whether graphs are recorded of such a step. The first cache has them, until it is gone."""
        if self._kv_cache() is None and kv_cache.spare_block is not None:
            self._recorded.clear()
            self._kv_cache = weakref.ref(kv_cache)
        num_rows = len(batch.positions)
        return (
            self._works
            and self._kv_cache() is kv_cache
            and 0 < num_rows <= BUCKETS[-1]
            and len(batch.logits_indices) == num_rows
        )

    def _record(
        self, bucket: _Bucket, batch: ForwardBatch, kv_cache: TorchKVCache, device: torch.device
    ) -> _Recorded:
        # Rows that are stored again are the same ones; a state would go on.
        with kv_cache.states_kept(batch.state_slots):
            return self._recorded_step(bucket, batch, kv_cache, device)

    def _recorded_step(
        self, bucket: _Bucket, batch: ForwardBatch, kv_cache: TorchKVCache, device: torch.device
    ) -> _Recorded:
        asking = TorchBatch.of(batch, device)
        self._forward(asking, kv_cache)  # compiles kernels; asks for plans and rotations
        plans = {key: plan.for_rows(bucket.rows) for key, plan in asking.plans.items()}
        inputs = _Inputs(tuple(plans.values()), tuple(asking.rotations))
        arrays = StepArrays(inputs.shapes(bucket, batch), device)
        inputs.write(arrays.views, batch, _spare_slot(kv_cache))
        static = _static_batch(batch, arrays, plans, inputs)
        arrays.load()
        self._forward(static, kv_cache)  # compiles what only a bucket needs
        graph, results = self._graphs.capture(lambda: self._forward(static, kv_cache))
        return _Recorded(inputs, arrays, graph, results)


def _spare_slot(kv_cache: TorchKVCache) -> int:
    assert kv_cache.spare_block is not None
    return kv_cache.spare_block * kv_cache.block_size


def _static_batch(
    batch: ForwardBatch,
    arrays: StepArrays,
    plans: Mapping[Hashable, StepPlan],
    inputs: _Inputs,
) -> TorchBatch:
    """A batch over the arrays of a graph, of which `batch` is a step. What is left on the host is of no step."""
    tensors: Any = arrays.tensors
    token_ids, positions, lengths, slots, tables, logits_indices = tensors[:_NUM_FIXED]
    num_added = len(positions) - len(batch.positions)  # each a request
    own_requests = np.zeros(len(batch.seq_lens) + num_added, np.int64)
    static = TorchBatch(
        token_ids=token_ids,
        positions=positions,
        rope_lens=lengths,
        slot_mapping=slots,
        query_start=np.concatenate(
            (batch.query_start, batch.query_start[-1] + np.arange(1, num_added + 1))
        ),
        seq_lens=own_requests + 1,
        block_tables=tables,
        logits_indices=logits_indices,
        state_slots=own_requests,
        device=token_ids.device,
    )
    turns = iter(tensors[_NUM_FIXED:])
    static.rotations.update({rope: (next(turns), next(turns)) for rope in inputs.rotations})
    static.plans.update({key: plan.over(next(turns)) for key, plan in plans.items()})
    return static
