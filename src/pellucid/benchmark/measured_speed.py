"""How fast this machine computes each kind of work: fitted to what `pellucid bench` has measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pellucid.benchmark.step_work import BYTES, COUNTS, KINDS, Work

# How strongly a kind of work of which measurements say little stays as far from the machine's ceiling as all do.
_PRIOR = 1e-3
_SWEEPS, _REWEIGHTINGS = 400, 4
_LEAST_ERROR = 0.05  # relative: below it all measurements weigh the same


SecondsByKind: TypeAlias = Mapping[str, float]  # of a unit of each kind of work


@dataclass(frozen=True)
class MeasuredRun:
    """A workload that `bench` ran.

    Args:
        model, test: what ran; a newer run of both takes its place.
        seconds: in the median run.
        work: of the run.
    """

    model: str
    test: str
    seconds: float
    work: Work


@dataclass(frozen=True)
class MeasuredSpeed:
    """Measurements of one machine with one instruction set, number of threads and format of weights.

    Args:
        bandwidth, flops: the machine's ceilings, bytes and operations a second.
        runs: at least one.
    """

    bandwidth: float
    flops: float
    runs: Sequence[MeasuredRun]

    def seconds_by_kind(self) -> SecondsByKind:
        """The speeds of which a run takes the sum.

        The relative errors of all runs are made small, the larger ones counting less (least squares, reweighted), by
        coordinate descent with no time below zero.
        """
        work = np.array([[run.work.get(kind, 0.0) for kind in KINDS] for run in self.runs])
        seconds = np.array([run.seconds for run in self.runs])
        units = np.array([*seconds_at_ceilings(self.bandwidth, self.flops).values()])
        units *= np.median(seconds / (work @ units))  # all kinds alike, to begin with
        shares = work * units / seconds[:, None]
        factors = np.ones(len(KINDS))
        for _ in range(_REWEIGHTINGS):
            errors = np.abs(shares @ factors - 1)
            weights = 1 / np.maximum(errors, _LEAST_ERROR)
            weights /= weights.mean()
            factors = _fit(shares * weights[:, None] ** 0.5, weights**0.5, factors)
        return dict(zip(KINDS, (factors * units).tolist(), strict=True))


def seconds_at_ceilings(bandwidth: float, flops: float) -> SecondsByKind:
    """Of a machine that reaches its ceilings, bytes and operations a second, in all kinds of work."""
    own = {kind: 1 / (bandwidth if kind in BYTES else flops) for kind in KINDS}
    return own | COUNTS


def _fit(
    rows: npt.NDArray[np.float64],
    wanted: npt.NDArray[np.float64],
    factors: npt.NDArray[np.float64],
) -> npt.NDArray[np.float64]:
    """Factors >= 0 that make rows @ factors like `wanted`, and stay near 1 where that says nothing."""
    gram = rows.T @ rows + _PRIOR * np.eye(len(factors))
    target = rows.T @ wanted + _PRIOR
    factors = factors.copy()
    for _ in range(_SWEEPS):
        for index in range(len(factors)):
            rest = gram[index] @ factors - gram[index, index] * factors[index]
            factors[index] = max(0.0, (target[index] - rest) / gram[index, index])
    return factors


def predicted_seconds(speed: SecondsByKind, work: Work) -> float:
    """Of work on a machine of this speed."""
    return sum(speed[kind] * amount for kind, amount in work.items())
