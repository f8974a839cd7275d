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
        source: where the ceilings were read; "" where they were measured or given.
    """

    name: str
    provenance: Provenance
    bandwidth_bytes_per_second: float
    flops_per_second: float
    memory_bytes: float
    source: str = ""

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
            self.source,
        )


def _data_sheet(
    name: str, bandwidth_gb: float, tflops: float, memory_gb: float, source: str
) -> MachineFacts:
    return MachineFacts(name, "E", bandwidth_gb * 1e9, tflops * 1e12, memory_gb * 1e9, source)


def _apple(
    chip: str, num_cores: int, bandwidth_gb: float, tflops: float, memory_gb: float, ghz: float
) -> MachineFacts:
    source = f"Apple's bandwidth; f32 of {num_cores} x 256 lanes at {ghz} GHz"
    return _data_sheet(
        f"Apple {chip}, {num_cores} GPU cores", bandwidth_gb, tflops, memory_gb, source
    )


# Data sheets: memory bandwidth in GB/s, dense bf16 without sparsity in TFLOP/s, memory in GB. A step reaches less:
# measured ceilings are the better inputs. Where no sheet states bf16, the source says how it was computed.
_NVIDIA = "NVIDIA's data sheet"
_PAPER = "architecture paper, bf16 with f32 sums"
KNOWN_MACHINES = {
    "a100-40g": _data_sheet("NVIDIA A100 SXM 40 GB", 1555, 312, 40, f"{_NVIDIA} of A100"),
    "a100-80g": _data_sheet("NVIDIA A100 SXM 80 GB", 2039, 312, 80, f"{_NVIDIA} of A100"),
    "h100-80g": _data_sheet("NVIDIA H100 SXM 80 GB", 3350, 989, 80, f"{_NVIDIA} of H100"),
    "h200-141g": _data_sheet("NVIDIA H200 SXM 141 GB", 4800, 989, 141, f"{_NVIDIA} of H200"),
    "b200-180g": _data_sheet(
        "NVIDIA B200 180 GB", 7700, 2250, 180, f"{_NVIDIA} of DGX B200, an eighth"
    ),
    "l4-24g": _data_sheet(
        "NVIDIA L4 24 GB", 300, 121, 24, f"{_NVIDIA} of L4, half of the sparse figure"
    ),
    "l40s-48g": _data_sheet("NVIDIA L40S 48 GB", 864, 362, 48, f"{_NVIDIA} of L40S"),
    "rtx-4090": _data_sheet("NVIDIA GeForce RTX 4090", 1008, 165.2, 24, f"NVIDIA's Ada {_PAPER}"),
    "rtx-5090": _data_sheet(
        "NVIDIA GeForce RTX 5090", 1792, 209.5, 32, f"NVIDIA's Blackwell {_PAPER}"
    ),
    "m4-pro": _apple("M4 Pro", 20, 273, 9.2, 48, 1.8),
    "m4-max": _apple("M4 Max", 40, 546, 18.4, 128, 1.8),
    "m3-ultra": _apple("M3 Ultra", 80, 819, 28.7, 512, 1.4),
    "epyc-9654": _data_sheet(
        "AMD EPYC 9654, 96 cores",
        460.8,
        29.5,
        768,
        "12 channels of DDR5-4800; 96 cores x 128 operations x 2.4 GHz",
    ),
    "epyc-9965": _data_sheet(
        "AMD EPYC 9965, 192 cores",
        576,
        110.6,
        1152,
        "12 channels of DDR5-6000; 192 cores x 256 operations x 2.25 GHz",
    ),
    "xeon-8592": _data_sheet(
        "Intel Xeon Platinum 8592+, 64 cores",
        358.4,
        249,
        512,
        "8 channels of DDR5-5600; 64 cores x 2,048 AMX operations x 1.9 GHz",
    ),
}
THIS_MACHINE = "this"  # in a request for an estimate: measure the machine that runs it
MACHINE_NAMES = (THIS_MACHINE, *KNOWN_MACHINES)
