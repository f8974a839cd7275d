"""The largest logit of each row, which a greedy request takes, in plain PyTorch."""

import torch
from torch import Tensor

ROWS_TOGETHER = 16  # of logits


def find_largest(logits: Tensor) -> Tensor:
    """Of each row [R, V] the first token with the largest logit, or with a NaN, and the bits of that logit: int32
    [2, R]."""
    if len(logits) == 0:
        return logits.new_zeros((2, 0), dtype=torch.int32)
    token_ids = torch.arange(logits.shape[1], dtype=torch.int32, device=logits.device)
    firsts, peaks = [], []
    for rows in logits.split(ROWS_TOGETHER):
        own = rows.amax(dim=1)  # a NaN, if there is one
        is_peak = (rows == own[:, None]) | (rows.isnan() & own.isnan()[:, None])
        firsts.append(torch.where(is_peak, token_ids, logits.shape[1]).amin(dim=1))
        peaks.append(own)
    return torch.stack((torch.cat(firsts), torch.cat(peaks).view(torch.int32)))
