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
    """

    def __init__(self, arrays: Sequence[npt.NDArray[Any]], device: torch.device) -> None:
        starts = np.cumsum([0, *(-(-each.nbytes // _ALIGNMENT) * _ALIGNMENT for each in arrays)])
        num_bytes = int(starts[-1])
        self._host = torch.zeros(num_bytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._device = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
        self._views = [
            self._host.numpy()[start : start + each.nbytes].view(each.dtype).reshape(each.shape)
            for each, start in zip(arrays, starts.tolist(), strict=False)
        ]
        self.tensors = [
            self._device[start : start + each.nbytes]
            .view(TORCH_DTYPES[each.dtype])
            .reshape(each.shape)
            for each, start in zip(arrays, starts.tolist(), strict=False)
        ]

    def load(self, arrays: Sequence[npt.NDArray[Any]]) -> None:
        """New contents. The device has read the ones before: a step ends with a copy to the host."""
        for view, array in zip(self._views, arrays, strict=True):
            view[...] = array
        self._device.copy_(self._host, non_blocking=True)


class _Bucket(NamedTuple):
    """Steps that share a graph.

    Attributes:
        rows: of the graph.
        width: of block tables.
    """

    rows: int
    width: int


@dataclass(frozen=True)
class _Inputs:
    """What layers have asked for, besides the arrays of the batch."""

    plans: tuple[StepPlan, ...]
    rotations: tuple[RopeConfig, ...]


@dataclass(frozen=True)
class _Recorded(_Inputs):
    """A graph with its arrays, and its results."""

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
        """What `forward` gives for a step, in memory of its own; None: the step is no graph.

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
        recorded.arrays.load(_contents(batch, bucket, kv_cache, recorded))
        recorded.graph.replay()
        logits, largest = recorded.results
        return logits[:num_rows].clone(), largest[:, :num_rows].clone()

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
        contents = _contents(batch, bucket, kv_cache, inputs)
        arrays = StepArrays(contents, device)
        static = _static_batch(_padded(batch, bucket, kv_cache), arrays.tensors, plans, inputs)
        arrays.load(contents)
        self._forward(static, kv_cache)  # compiles what only a bucket needs
        graph, results = self._graphs.capture(lambda: self._forward(static, kv_cache))
        return _Recorded(inputs.plans, inputs.rotations, arrays, graph, results)


_NUM_FIXED = 5  # arrays of `_contents` before rotations


def _contents(
    batch: ForwardBatch,
    bucket: _Bucket,
    kv_cache: TorchKVCache,
    inputs: _Inputs,
) -> list[npt.NDArray[Any]]:
    """What a graph reads of a step: tokens, positions, slots, block tables, rows of logits; rotations; plans."""
    padded = _padded(batch, bucket, kv_cache)
    fixed = (
        *(padded.token_ids, padded.positions, padded.slot_mapping),
        *(padded.block_tables, padded.logits_indices),
    )
    turns = [turn for rope in inputs.rotations for turn in turns_of(padded, rope)]
    return [*fixed, *turns, *(plan.numbers_of(batch) for plan in inputs.plans)]


def _static_batch(
    padded: ForwardBatch,
    tensors: Sequence[Tensor],
    plans: Mapping[Hashable, StepPlan],
    inputs: _Inputs,
) -> TorchBatch:
    """A batch over the arrays of `_contents`. What is left on the host is of no step."""
    fixed: Any = tensors[:_NUM_FIXED]
    token_ids, positions, slots, tables, logits_indices = fixed
    batch = TorchBatch(
        token_ids=token_ids,
        positions=positions,
        rope_lens=padded.rope_lens,
        slot_mapping=slots,
        query_start=padded.query_start,
        seq_lens=padded.seq_lens,
        block_tables=tables,
        logits_indices=logits_indices,
        state_slots=padded.state_slots,
        device=token_ids.device,
    )
    turns = iter(tensors[_NUM_FIXED:])
    batch.rotations.update({rope: (next(turns), next(turns)) for rope in inputs.rotations})
    batch.plans.update({key: plan.over(next(turns)) for key, plan in plans.items()})
    return batch


def _padded(batch: ForwardBatch, bucket: _Bucket, kv_cache: TorchKVCache) -> ForwardBatch:
    """The step with as many rows as the bucket: the last ones are requests with token 0 at position 0, in the spare
    block."""
    assert kv_cache.spare_block is not None
    rows = bucket.rows
    num_groups, num_requests, width = batch.block_tables.shape
    num_rows = len(batch.positions)
    own_requests = num_requests + rows - num_rows

    def filled(array: npt.NDArray[Any], value: int = 0, size: int = rows) -> npt.NDArray[Any]:
        result = np.full((*array.shape[:-1], size), value, np.int64)
        result[..., : array.shape[-1]] = array
        return result

    tables = np.full((num_groups, rows, bucket.width), -1, np.int64)
    tables[:, :num_requests, :width] = batch.block_tables
    return ForwardBatch(
        token_ids=filled(batch.token_ids),
        positions=filled(batch.positions),
        rope_lens=filled(batch.rope_lens, 1),
        slot_mapping=filled(batch.slot_mapping, kv_cache.spare_block * kv_cache.block_size),
        query_start=np.concatenate((batch.query_start, np.arange(num_rows + 1, rows + 1))),
        seq_lens=filled(batch.seq_lens, 1, own_requests),
        block_tables=tables,
        logits_indices=np.arange(rows),
        state_slots=filled(batch.state_slots, 0, own_requests),
    )
