"""Times of repeated runs, and their share of the machine's bandwidth and peak."""

import statistics
from dataclasses import dataclass

from pellucid.benchmark.workloads import Workload
from pellucid.facts.machine import Arithmetic, Machine


@dataclass(frozen=True)
class Cost:
    """The least bytes and operations of one run of a workload, by `formulas`."""

    num_steps: int
    num_bytes: int
    flops: int


@dataclass(frozen=True)
class Measurement:
    """A workload, measured.

    Args:
        seconds: of each repetition.
        arithmetic: in which the matrices are multiplied: says which peak is the ceiling.
    """

    workload: Workload
    seconds: tuple[float, ...]
    cost: Cost
    arithmetic: Arithmetic

    @property
    def median_seconds(self) -> float:
        return statistics.median(self.seconds)

    @property
    def tokens_per_second(self) -> float:
        """In the median run; for a batch, of all sequences together."""
        return self.workload.num_tokens / self.median_seconds

    @property
    def spread(self) -> float:
        """From the slowest to the fastest repetition, as a share of the median."""
        rates = [self.workload.num_tokens / seconds for seconds in self.seconds]
        return (max(rates) - min(rates)) / self.tokens_per_second

    @property
    def bytes_per_step(self) -> int:
        return round(self.cost.num_bytes / self.cost.num_steps)

    @property
    def flops_per_step(self) -> int:
        return round(self.cost.flops / self.cost.num_steps)

    def bandwidth_share(self, machine: Machine) -> float:
        """Of the bandwidth that the machine has, in the median run."""
        return self.cost.num_bytes / self.median_seconds / machine.bandwidth_bytes_per_second

    def peak_share(self, machine: Machine) -> float:
        """Of the operations per second that the machine can do, in the median run."""
        return self.cost.flops / self.median_seconds / machine.peak(self.arithmetic)
