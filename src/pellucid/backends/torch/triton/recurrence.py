"""Launches the kernels of recurrent layers."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
import triton
from torch import Tensor

from pellucid.backends.ops import ForwardBatch
from pellucid.backends.torch.batch import TorchBatch
from pellucid.backends.torch.kv_cache import TorchStateLayer
from pellucid.backends.torch.memory import to_device
from pellucid.backends.torch.triton.kernels.recurrence import (
    convolution_kernel,
    delta_kernel,
    keep_rows_kernel,
)
from pellucid.facts.model_config import GatedDeltaNetConfig

_WIDTH = 256  # channels of a program
_VALUES = 32  # columns of a state
_PLAN = "recurrence"
_ROW_COLUMNS, _REQUEST_COLUMNS = 3, 4


@dataclass(frozen=True)
class RecurrenceWork:
    """The rows and requests of a step, as the kernels read them: a `StepPlan`.

    Args:
        num_rows, num_requests: for which there is room; the last ones may be of no request.
        numbers: int32: the table of requests of `keep_rows_kernel`, whose size is a multiple of 16 bytes; then that of
            rows of `convolution_kernel`.
    """

    num_rows: int
    num_requests: int
    numbers: Tensor | None = None

    @classmethod
    def of(cls, batch: TorchBatch) -> "RecurrenceWork":
        """Made once for all layers of a step."""
        if _PLAN not in batch.plans:
            work = cls(len(batch.positions), len(batch.seq_lens))
            batch.plans[_PLAN] = work.over(to_device(work.numbers_of(batch), batch.device))
        found = batch.plans[_PLAN]
        assert isinstance(found, RecurrenceWork)
        return found

    def for_rows(self, num_rows: int) -> "RecurrenceWork":
        return RecurrenceWork(num_rows, num_rows)

    def numbers_of(self, batch: ForwardBatch) -> npt.NDArray[np.int32]:
        firsts, counts = batch.query_start[:-1], np.diff(batch.query_start)
        begins = batch.positions[firsts] == 0
        before = np.arange(len(batch.positions)) - np.repeat(firsts, counts)
        of_rows = (before, *(np.repeat(each, counts) for each in (batch.state_slots, begins)))
        of_requests = firsts, counts, batch.state_slots, begins
        rows = np.zeros((self.num_rows, _ROW_COLUMNS), np.int32)
        requests = np.zeros((self.num_requests, _REQUEST_COLUMNS), np.int32)
        rows[: len(before)] = np.stack(of_rows, axis=1)
        requests[: len(counts)] = np.stack(of_requests, axis=1)
        return np.concatenate((requests.ravel(), rows.ravel()))

    def over(self, numbers: Tensor) -> "RecurrenceWork":
        return replace(self, numbers=numbers)

    @property
    def requests(self) -> Tensor:
        assert self.numbers is not None
        return self.numbers

    @property
    def rows(self) -> Tensor:
        assert self.numbers is not None
        return self.numbers[self.num_requests * _REQUEST_COLUMNS :]


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    state_layer: TorchStateLayer,
    batch: TorchBatch,
    is_silu: bool,
) -> Tensor:
    """As `Ops.causal_convolution`, whose result may pass silu."""
    x, work = x.contiguous(), RecurrenceWork.of(batch)
    y = torch.empty_like(x)
    num_rows, num_channels = x.shape
    kernel = len(weight) // num_channels
    if num_rows == 0:
        return y
    width = min(_WIDTH, triton.next_power_of_2(num_channels))
    parts, states = triton.cdiv(num_channels, width), state_layer.rows
    convolution_kernel[(num_rows, parts)](
        *(y, x, weight, weight if bias is None else bias, states, work.rows, num_channels),
        KERNEL=kernel,
        HAS_BIAS=bias is not None,
        IS_SILU=is_silu,
        WIDTH=width,
        enable_fp_fusion=False,
    )
    if kernel > 1:
        keep_rows_kernel[(work.num_requests, parts)](
            *(states, x, work.requests, num_channels),
            KERNEL=kernel,
            TAPS=triton.next_power_of_2(kernel - 1),
            WIDTH=width,
        )
    return y


def delta_net(
    qkv: Tensor,
    b: Tensor,
    a: Tensor,
    log_decay: Tensor,
    step_bias: Tensor,
    net: GatedDeltaNetConfig,
    state_layer: TorchStateLayer,
    batch: TorchBatch,
) -> Tensor:
    """As `Ops.gated_delta_net`."""
    y = qkv.new_empty((len(qkv), net.num_value_heads, net.value_dim))
    if len(qkv) == 0:
        return y
    work = RecurrenceWork.of(batch)
    values = min(_VALUES, triton.next_power_of_2(net.value_dim))
    grid = work.num_requests, net.num_value_heads, triton.cdiv(net.value_dim, values)
    delta_kernel[grid](
        *(y, qkv.contiguous(), b.contiguous(), a.contiguous(), log_decay, step_bias),
        *(state_layer.matrices, work.requests, net.key_dim**-0.5),
        KEY_HEADS=net.num_key_heads,
        VALUE_HEADS=net.num_value_heads,
        KEY_DIM=net.key_dim,
        VALUE_DIM=net.value_dim,
        IS_TILED=net.tiled,
        KEYS=triton.next_power_of_2(net.key_dim),
        VALUES=values,
        enable_fp_fusion=False,
    )
    return y
