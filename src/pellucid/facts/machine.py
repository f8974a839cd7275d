"""The roofline of a machine: the bandwidth and peak that speeds are compared with (Williams, Waterman,
Patterson 2009)."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Arithmetic: TypeAlias = Literal["int8", "bf16", "f32"]


@dataclass(frozen=True)
class DeviceFacts:
    """What computes in place of the host's processor, as far as its driver says.

    Args:
        name: of the chip.
        memory_bytes: of the device, whoever uses it.
        power_watts: its limit.
        clock_hz: the fastest one of its processors.
    """

    name: str
    driver: str | None = None
    memory_bytes: int | None = None
    power_watts: float | None = None
    clock_hz: float | None = None

    @property
    def words(self) -> str:
        words = [self.name]
        if self.driver is not None:
            words.append(f"driver {self.driver}")
        if self.memory_bytes is not None:
            words.append(f"{self.memory_bytes / 1e9:.0f} GB")
        if self.power_watts is not None:
            words.append(f"limit {self.power_watts:.0f} W")
        if self.clock_hz is not None:
            words.append(f"up to {self.clock_hz / 1e6:.0f} MHz")
        return ", ".join(words)


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
        device: that was measured; None: the host's processor.
    """

    isa: str
    num_threads: int
    bandwidth_bytes_per_second: float
    peak_int8_ops: float
    peak_bf16_flops: float
    peak_f32_flops: float
    device: DeviceFacts | None = None

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
        bandwidth, int8, bf16, f32 = map(max, self.ceilings, other.ceilings)
        return Machine(self.isa, self.num_threads, bandwidth, int8, bf16, f32, self.device)

    def largest_change(self, other: "Machine") -> float:
        """Between two measurements of a ceiling, as a share of the faster one."""
        pairs = zip(self.ceilings, other.ceilings, strict=True)
        return max(1 - min(pair) / max(pair) for pair in pairs)

    @property
    def ceilings(self) -> tuple[float, ...]:
        """Bandwidth and the three peaks."""
        peaks = self.peak_int8_ops, self.peak_bf16_flops, self.peak_f32_flops
        return self.bandwidth_bytes_per_second, *peaks
