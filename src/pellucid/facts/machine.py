"""The roofline of a machine: the bandwidth and peak that speeds are compared with (Williams, Waterman,
Patterson 2009)."""

from dataclasses import astuple, dataclass
from typing import Literal, TypeAlias

Arithmetic: TypeAlias = Literal["int8", "bf16", "f32"]


@dataclass(frozen=True)
class Machine:
    """The ceilings of this machine with `num_threads` threads, as measured.

    Args:
        isa: level of the instructions that the ceilings were measured with.
        num_threads: threads that ran at the same time.
        bandwidth_bytes_per_second: reading memory beyond all caches.
        peak_int8_ops: operations per second; a multiplication and its addition are two.
        peak_bf16_flops: likewise, bf16 products summed in f32.
        peak_f32_flops: likewise, f32.
    """

    isa: str
    num_threads: int
    bandwidth_bytes_per_second: float
    peak_int8_ops: float
    peak_bf16_flops: float
    peak_f32_flops: float

    def peak(self, arithmetic: Arithmetic) -> float:
        """Operations per second."""
        peaks: dict[Arithmetic, float] = {
            "int8": self.peak_int8_ops,
            "bf16": self.peak_bf16_flops,
            "f32": self.peak_f32_flops,
        }
        return peaks[arithmetic]

    def at_best(self, other: "Machine") -> "Machine":
        """The faster of two measurements, ceiling by ceiling: what was reached once can be reached."""
        return Machine(self.isa, self.num_threads, *map(max, self.ceilings, other.ceilings))

    def largest_change(self, other: "Machine") -> float:
        """Between two measurements of a ceiling, as a share of the faster one."""
        pairs = zip(self.ceilings, other.ceilings, strict=True)
        return max(1 - min(pair) / max(pair) for pair in pairs)

    @property
    def ceilings(self) -> tuple[float, ...]:
        """Bandwidth and the three peaks."""
        return astuple(self)[2:]
