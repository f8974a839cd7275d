"""The backend on PyTorch: any device that it has, op by op."""

import torch

from pellucid.backends.base import Backend
from pellucid.backends.ops import Decoder, ForwardBatch
from pellucid.backends.quantization.weights import quantize_matrix
from pellucid.backends.torch.attention import AttentionSizes
from pellucid.backends.torch.batch import TorchBatch
from pellucid.backends.torch.decoder import TorchDecoder
from pellucid.backends.torch.device import (
    device_identity,
    device_memory,
    find_device,
    has_triton,
    measure_device,
)
from pellucid.backends.torch.graphs import CudaGraphs, Graphs, fits_graphs
from pellucid.backends.torch.kv_cache import (
    TorchKVCache,
    make_torch_kv_cache,
    torch_kv_bytes_per_block,
)
from pellucid.backends.torch.nvml import find_facts
from pellucid.backends.torch.ops import ProductSizes, TorchOps
from pellucid.backends.torch.self_check import checked_ops
from pellucid.backends.torch.weights import Quantize, TorchWeights
from pellucid.facts.machine import DeviceFacts, Machine
from pellucid.facts.model_config import ModelConfig

# On a GPU a call costs as much as the arithmetic of a larger product; on the host it costs next to nothing.
_HOST_TILE, _DEVICE_TILE = 16, 64
_HOST_ATTENTION, _DEVICE_ATTENTION = AttentionSizes(128, 1), AttentionSizes(1024, 16)


class TorchBackend(Backend):
    """The ops in plain PyTorch.

    Args:
        device: as in `EngineConfig.device`.
        num_threads: of PyTorch on the host, for the whole process; None: as many as PyTorch chooses.
        quantize: as `Weights.quantize`, on the host.

    Raises:
        ValueError: there is no such device.
    """

    name = "torch"

    def __init__(
        self,
        device: str = "auto",
        num_threads: int | None = None,
        quantize: Quantize = quantize_matrix,
    ) -> None:
        if num_threads is not None:
            torch.set_num_threads(num_threads)
        self.device = find_device(device)
        is_host = self.device.type == "cpu"
        tile = _HOST_TILE if is_host else _DEVICE_TILE
        attention = _HOST_ATTENTION if is_host else _DEVICE_ATTENTION
        ops = TorchOps(self.device, ProductSizes(tile, attention))
        self.ops: TorchOps = ops if is_host else checked_ops(ops)
        if self.device.type == "cuda" and has_triton():
            from pellucid.backends.torch.triton.self_check import with_kernels

            self.ops = with_kernels(self.ops)
        # Plain PyTorch reads the step on the host, which a graph cannot.
        has_graphs = self.device.type == "cuda" and "attention" in self.ops.parts_of_graphs
        self.graphs: Graphs | None = CudaGraphs() if has_graphs else None
        self.weights: TorchWeights = TorchWeights(self.device, quantize)

    @property
    def identity(self) -> str:
        ops = self.ops
        return f"torch {device_identity(self.device)} {ops.sizes.numbers} {ops.kernels}".rstrip()

    @property
    def device_facts(self) -> DeviceFacts | None:
        return find_facts(self.device)

    def available_memory(self) -> int | None:
        return device_memory(self.device)

    def measure(self, num_threads: int | None) -> Machine:
        return measure_device(self.device, bool(self.ops.kernels))

    def batch(self, batch: ForwardBatch) -> TorchBatch:
        return TorchBatch.of(batch, self.device)

    def kv_bytes_per_block(self, config: ModelConfig, block_size: int, dtype: str) -> int:
        return torch_kv_bytes_per_block(config, block_size, dtype)

    def make_kv_cache(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int,
        dtype: str,
        num_state_slots: int = 1,
    ) -> TorchKVCache:
        has_spare = self.graphs is not None and fits_graphs(config, dtype, self.ops.parts_of_graphs)
        return make_torch_kv_cache(
            config, num_blocks, block_size, dtype, num_state_slots, self.device, has_spare
        )

    def compile(self, decoder: Decoder, config: ModelConfig) -> TorchDecoder:
        return TorchDecoder(decoder, config, self.weights.finish(), self.ops, self.graphs)
