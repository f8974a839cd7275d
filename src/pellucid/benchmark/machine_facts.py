"""The limits of the machine that an estimate is for: this machine, or one with a known data sheet."""

from dataclasses import dataclass
from typing import Literal

Provenance = Literal["M", "C", "E"]  # measured on this machine; counted, exact; estimated


@dataclass(frozen=True)
class MachineFacts:
    """The limits of a machine.

    Attributes:
        provenance: "M" where the ceilings were measured, "E" where they are a data sheet's.
        bandwidth_bytes_per_second, flops_per_second: ceilings.
        memory_bytes: for weights and KV cache.
    """

    name: str
    provenance: Provenance
    bandwidth_bytes_per_second: float
    flops_per_second: float
    memory_bytes: float

    def with_limits(
        self,
        bandwidth: float | None = None,
        flops: float | None = None,
        memory_bytes: float | None = None,
    ) -> "MachineFacts":
        """This machine with the limits that are given instead of its own: such ceilings were not measured."""
        is_given = bandwidth is not None or flops is not None
        return MachineFacts(
            self.name,
            "E" if is_given else self.provenance,
            self.bandwidth_bytes_per_second if bandwidth is None else bandwidth,
            self.flops_per_second if flops is None else flops,
            self.memory_bytes if memory_bytes is None else memory_bytes,
        )


# Data sheets: dense bf16 without sparsity. A step reaches less: measured ceilings are the better inputs.
KNOWN_MACHINES = {
    "a100-80g": MachineFacts("NVIDIA A100 SXM 80 GB", "E", 2.039e12, 312e12, 80e9),
    "h100-80g": MachineFacts("NVIDIA H100 SXM 80 GB", "E", 3.35e12, 989e12, 80e9),
}
THIS_MACHINE = "this"  # in a request for an estimate: measure the machine that runs it
MACHINE_NAMES = (THIS_MACHINE, *KNOWN_MACHINES)
