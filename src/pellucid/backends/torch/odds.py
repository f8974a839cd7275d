"""The weights of tokens on a device, bit for bit those of execution/odds.py, and the tokens that truncation keeps.

Numbers are products and sums of single elements; what is added up are whole numbers. So nothing depends on the device.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pellucid.backends.draw_arithmetic import MASS_UNIT
from pellucid.backends.torch.race import FindWeights, exponents_of, weights_of_rows


@dataclass(frozen=True, eq=False)
class TorchOdds:
    """As `Odds`, of N rows.

    Args:
        logits: [N, V] f32, without NaN; -inf for tokens that are no candidates. The largest is finite.
        sharpness: [N, 1] f32, > 0.
        find_weights: as `DrawKernels.weights`.
    """

    logits: Tensor
    sharpness: Tensor
    find_weights: FindWeights = weights_of_rows

    @cached_property
    def peaks(self) -> Tensor:
        """[N] f32, the largest logits."""
        return self.logits.amax(dim=1)

    @cached_property
    def distances(self) -> Tensor:
        """[N, V] f32 to the largest logit."""
        return self.logits - self.peaks[:, None]

    @cached_property
    def exponents(self) -> Tensor:
        """[N, V] f32."""
        return exponents_of(self.distances, self.sharpness)

    @cached_property
    def weights(self) -> Tensor:
        """[N, V] f32, 0 .. 1."""
        return self.find_weights(self.logits, self.peaks, self.sharpness)

    @cached_property
    def masses(self) -> Tensor:
        """[N, V] int64: weights in units of `MASS_UNIT`."""
        return (self.weights * (1 / MASS_UNIT) + 0.5).to(torch.int64)

    @cached_property
    def is_candidate(self) -> Tensor:
        """[N, V]."""
        return self.logits > -torch.inf

    @cached_property
    def order(self) -> Tensor:
        """[N, V] token ids, the likeliest first; of equals the lower id first."""
        return torch.sort(self.logits, dim=1, descending=True, stable=True).indices

    def top_k(self, is_kept: Tensor, k: Tensor) -> Tensor:
        """The `k` [N, 1] likeliest tokens; k = 0 keeps all of `is_kept` [N, V]."""
        places = torch.arange(self.order.shape[1], device=self.order.device)
        is_first = (places < k) | (k == 0)
        return is_kept & torch.zeros_like(is_kept).scatter(1, self.order, is_first)

    def share(self, is_kept: Tensor, order: Tensor, share: Tensor) -> Tensor:
        """The shortest prefix of `order` [N, V] that holds `share` [N, 1] f64 of the mass of `is_kept`; a share of 1
        keeps all."""
        masses = self.masses * is_kept
        target = torch.ceil(share * masses.sum(dim=1, keepdim=True).double()).to(torch.int64)
        own = masses.gather(1, order)
        before = own.cumsum(dim=1) - own
        is_first = (before < target) | (share >= 1)
        return is_kept & torch.zeros_like(is_kept).scatter(1, order, is_first)

    def typical(self, is_kept: Tensor, share: Tensor) -> Tensor:
        """As `typical_p`; arguments are those of `share`."""
        exponents = self.exponents.double()
        masses = self.masses * is_kept
        surprise = (masses.double() * exponents).trunc().to(torch.int64).sum(dim=1, keepdim=True)
        mean = surprise.double() / masses.sum(dim=1, keepdim=True).double()
        distances = (exponents - mean).abs().masked_fill(~is_kept, torch.inf)
        order = torch.sort(distances, dim=1, stable=True).indices
        return self.share(is_kept, order, share)
