"""Decode steps as graphs, with a fake of graphs: the bits of steps without, few captures, and no memory taken later."""

import contextlib
import weakref

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pellucid.backends.torch.arithmetic import capped, ordered_sum, softmax
from pellucid.backends.torch.backend import TorchBackend
from pellucid.backends.torch.batch import TorchBatch
from pellucid.backends.torch.graphs import CudaGraphs, StepArrays
from pellucid.backends.torch.memory import to_device, to_host
from pellucid.backends.torch.ops import TorchOps
from support.checkpoints import write_checkpoint
from support.decoders import load_decoder
from support.decoding import logits_in_steps
from support.host_ops import DEVICE

TEXTS = [np.random.default_rng(0).integers(3, 300, length).tolist() for length in (45, 8, 1)]
# Prompts, all of whose logits are asked for; a step with a draft; decode steps of 2 rows and of 1.
STEPS = [
    [(0, 0, 40), (1, 0, 5)],
    [(0, 40, 42), (1, 5, 6), (2, 0, 1)],
    [(1, 6, 7), (0, 42, 43)],
    [(1, 7, 8)],
    [(0, 43, 44)],
    [(0, 44, 45)],
]


class FakeGraph:
    def __init__(self, run, results):
        self._run, self._results = run, results

    def replay(self):
        for result, own in zip(self._results, self._run(), strict=True):
            result.copy_(own)


class FakeGraphs:
    """A graph that runs what was captured, over the arrays and the host's numbers of that time."""

    def __init__(self):
        self.captured = []

    def capture(self, run):
        logits, largest = run()
        self.captured.append(len(logits))
        results = torch.full_like(logits, torch.nan), torch.full_like(largest, -1)
        return FakeGraph(run, results), results


class Positions:
    """A plan of the positions and requests of rows."""

    def __init__(self, num_rows, numbers=None):
        self.num_rows, self.numbers = num_rows, numbers

    def for_rows(self, num_rows):
        return Positions(num_rows)

    def numbers_of(self, batch):
        counts = np.diff(batch.query_start)
        numbers = np.zeros((2, self.num_rows), np.int32)
        numbers[0, : len(batch.positions)] = batch.positions
        numbers[1, : len(batch.positions)] = np.repeat(np.arange(len(counts)), counts)
        return numbers

    def over(self, numbers):
        return Positions(self.num_rows, numbers)


class PlannedAttention(TorchOps):
    """Attention reads the device alone, as the kernels of attention do."""

    def paged_attention(self, q, kv_layer, batch, scale, window=None, softcap=None, sinks=None):
        step = TorchBatch.of(batch, self.device)
        if "positions" not in step.plans:
            plan = Positions(len(q))
            step.plans["positions"] = plan.over(to_device(plan.numbers_of(step), self.device))
        positions, requests = step.plans["positions"].numbers
        positions = positions[:, None, None]
        tables = step.tables[kv_layer.group][requests]
        tables = torch.nn.functional.pad(tables, (0, 64 - tables.shape[1]), value=-1)
        num_keys = 64 * kv_layer.block_size
        times = q.shape[1] // kv_layer.num_kv_heads
        k, v = (
            half.transpose(1, 2).repeat_interleave(times, dim=1)
            for half in kv_layer.read(tables, 0, num_keys)
        )
        scores = capped(ordered_sum(scale * q[:, :, None] * k)[..., 0], softcap)
        distances = positions - torch.arange(num_keys, device=self.device)
        is_hidden = (distances < 0) | (distances >= (window or num_keys))
        weights = softmax(scores.masked_fill(is_hidden, -torch.inf))
        return ordered_sum(weights[..., None] * v, dim=2)[:, :, 0]


def backend(graphs, kernels=()):
    own = TorchBackend(DEVICE)
    sizes = own.device, own.ops.sizes
    own.graphs = graphs
    if kernels:
        from pellucid.backends.torch.triton.ops import KernelChoice, TritonOps

        class PlannedOps(PlannedAttention, TritonOps):
            pass

        own.ops = PlannedOps(*sizes, KernelChoice().only(*kernels))
    else:
        own.ops = PlannedAttention(*sizes)
    return own


class OnHost:
    def __init__(self, decoder):
        self._decoder = decoder

    def forward(self, batch, kv_cache):
        return to_host(self._decoder.step(batch, kv_cache).rows.rows)


def assert_graphs_change_no_bit(path, texts, steps, kernels=()):
    """Returns the rows of the graphs that were captured."""

    def logits(graphs):
        own = backend(graphs, kernels)
        decoder, config = load_decoder(path, own)
        compiled = OnHost(own.compile(decoder, config))
        return logits_in_steps(compiled, config, own, texts, steps)

    graphs = FakeGraphs()
    for found, expected in zip(logits(graphs), logits(None), strict=True):
        assert np.isfinite(expected).all() and (found == expected).all()
    return graphs.captured


# Positions that are embedded; two windows; norms of heads.
@pytest.mark.parametrize("family", ["gpt2", "gemma2", "qwen3"])
def test_graphs_change_no_bit(family, tmp_path):
    path = write_checkpoint(tmp_path / family, family)
    assert assert_graphs_change_no_bit(path, TEXTS, STEPS) == [48, 4, 2, 1]


# Steps of 3 rows, of which graphs have a fourth; then one of 5, with drafts.
SHORT_TEXTS = [TEXTS[0][:5], TEXTS[1][:4], TEXTS[0][7:9]]
SHORT_STEPS = [
    [(0, 0, 2), (1, 0, 1)],
    [(0, 2, 3), (1, 1, 2), (2, 0, 1)],
    [(1, 2, 4), (2, 1, 2), (0, 3, 5)],
]


def test_graphs_hold_experts_and_recurrent_layers(tmp_path):
    pytest.importorskip("triton")
    path = write_checkpoint(tmp_path / "model", "qwen3.5-moe", dtype="bfloat16")
    kernels = "experts", "recurrence"
    assert assert_graphs_change_no_bit(path, SHORT_TEXTS, SHORT_STEPS, kernels) == [4, 8]


class Calls(TorchDispatchMode):
    """Functions that compute or take memory."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **kwargs or {})
        if not any(each.alias_info is not None for each in func._schema.returns) or "!" in str(
            func._schema
        ):
            self.names.append(func.overloadpacket.__name__)
        return result


def test_a_bucket_takes_no_memory_after_its_first_step():
    arrays = StepArrays([np.zeros((2, 3), np.int64), np.zeros(5, np.float32)], torch.device(DEVICE))
    places = [each.data_ptr() for each in arrays.tensors]
    contents = [np.arange(6).reshape(2, 3), np.arange(5) / 3]
    for view, wanted in zip(arrays.views, contents, strict=True):
        view[...] = wanted
    with Calls() as calls:
        arrays.load()
    assert calls.names == ["copy_"]
    assert places == [each.data_ptr() for each in arrays.tensors]
    assert all(
        (each.cpu().numpy() == wanted.astype(each.cpu().numpy().dtype)).all()
        for each, wanted in zip(arrays.tensors, contents, strict=True)
    )


class DriverPool:
    pass


POOLS = weakref.WeakSet()


class DriverGraph:
    """A graph of a driver whose pools of memory live as long as a graph that has them."""

    def pool(self):
        return self.own

    @staticmethod
    @contextlib.contextmanager
    def captured(graph, pool=None):
        graph.own = DriverPool() if pool is None else pool
        POOLS.add(graph.own)
        yield


def test_graphs_share_memory_until_the_last_one_is_gone(monkeypatch):
    monkeypatch.setattr(torch.cuda, "CUDAGraph", DriverGraph)
    monkeypatch.setattr(torch.cuda, "graph", DriverGraph.captured)
    graphs = CudaGraphs()
    living = [graphs.capture(lambda: None)[0] for _ in range(3)]
    assert len(POOLS) == 1
    del living[0]
    living.append(graphs.capture(lambda: None)[0])
    assert len(POOLS) == 1
    gone = weakref.ref(living[0].pool())
    living.clear()
    assert gone() is None
    graphs.capture(lambda: None)
