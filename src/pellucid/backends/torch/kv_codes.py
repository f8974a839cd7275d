"""Keys and values as codes on a device: the definition of `numpy.kv_codes`, bit for bit."""

import torch
from torch import Tensor

from pellucid.backends.numpy.dimension_codes import MOST_CODE
from pellucid.backends.numpy.kv_codes import EXTREME_CODES, ROTATE_BACK, ROTATE_IN, SMALLEST
from pellucid.facts.kv_formats import GROUP_POSITIONS, NumberFormat


def quantize_rows(x: Tensor, number_format: NumberFormat) -> tuple[Tensor, Tensor]:
    """As `numpy_kv_codes.CodeRows` stores x [T, K, D]: codes [T, K, ...], and bf16 scales [T, K, groups]."""
    *rows, head_dim = x.shape
    padded = torch.nn.functional.pad(x, (0, number_format.num_numbers(head_dim) - head_dim))
    if number_format.is_rotated:
        padded = _rotated(padded, float(ROTATE_IN))
    grouped = padded.reshape(*rows, number_format.num_groups(head_dim), -1)

    one, none = grouped.new_ones(()), grouped.new_zeros(())
    is_finite = torch.isfinite(grouped).all(dim=-1, keepdim=True)
    extreme = _first_extreme(grouped)
    is_zero = extreme.abs() < float(SMALLEST)
    extreme = torch.where(is_finite & ~is_zero, extreme, one)
    finite = torch.where(is_finite, grouped, none)
    bits = number_format.bits
    scale = _away_from_zero(extreme.abs() / 127) if bits == 8 else _best_scale(finite, extreme)
    codes = _rounded(finite, scale, bits) * ~is_zero
    codes = codes.reshape(padded.shape)
    scales = torch.where(is_finite, torch.where(is_zero, none, scale), torch.inf)
    return _stored(codes, number_format), scales[..., 0].to(torch.bfloat16)


def restore_rows(
    codes: Tensor, scales: Tensor, number_format: NumberFormat, head_dim: int
) -> Tensor:
    """The numbers [..., K, D] in f32 that stored codes and scales [..., K, groups] stand for."""
    if number_format.bits == 4:
        codes = _nibbles(codes).to(torch.int8) - 8
    width = codes.shape[-1] // number_format.num_groups(head_dim)
    by_dim = scales.float().repeat_interleave(width, dim=-1)
    numbers = codes.float() * by_dim
    if number_format.is_rotated:
        numbers = _rotated(numbers, float(ROTATE_BACK))
    return numbers[..., :head_dim]


def _stored(codes: Tensor, number_format: NumberFormat) -> Tensor:
    if number_format.bits == 8:
        return codes.to(torch.int8)
    return _packed((codes + 8).to(torch.uint8))


def quantize_groups(keys: Tensor) -> tuple[Tensor, Tensor]:
    """As `numpy_dimension_codes.DimensionCodes` stores keys [G, 32, K, numbers] in bf16, padded: codes
    [G, 32, K, numbers / 2], and bf16 scales and minimums [G, 2, K, numbers]."""
    keys = keys.float()
    one, none = keys.new_ones(()), keys.new_zeros(())
    least = keys.amin(dim=1)
    spread = keys.amax(dim=1) - least
    is_finite = torch.isfinite(spread)
    has_codes = is_finite & (spread >= float(SMALLEST))
    scales = _away_from_zero(torch.where(has_codes, spread, one) / MOST_CODE)
    finite = torch.where(has_codes[:, None], keys, none)
    steps = (finite - torch.where(has_codes, least, none)[:, None]) * (1 / scales)[:, None]
    minimums = torch.where(is_finite, least, torch.nan)
    factors = torch.stack((torch.where(has_codes, scales, none), minimums), dim=1)
    return _packed(torch.round(steps).to(torch.uint8)), factors.to(torch.bfloat16)


def restore_groups(codes: Tensor, factors: Tensor, head_dim: int) -> Tensor:
    """The numbers [..., positions, K, D] in f32 of codes [..., positions, K, numbers / 2] with scales and minimums
    [..., groups, 2, K, numbers]."""
    grouped = _nibbles(codes).unflatten(-3, (-1, GROUP_POSITIONS)).float()
    scales, minimums = factors.float().unsqueeze(-4).unbind(-3)
    numbers = grouped * scales + minimums
    return numbers.flatten(-4, -3)[..., :head_dim]


def _packed(codes: Tensor) -> Tensor:
    """Two codes of 4 bits to a byte, the even one in the low half."""
    return codes[..., 0::2] | codes[..., 1::2] << 4


def _nibbles(packed: Tensor) -> Tensor:
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)


def _rotated(x: Tensor, factor: float) -> Tensor:
    """As `numpy_kv_codes.rotate`."""
    y = x * factor
    for distance in (16, 8, 4, 2, 1):
        pairs = y.reshape(*x.shape[:-1], -1, 2, distance)
        a, b = pairs[..., 0, :], pairs[..., 1, :]
        y = torch.stack((a + b, a - b), dim=-2)
    return y.reshape(x.shape)


def _first_extreme(groups: Tensor) -> Tensor:
    """Of each group [..., numbers] the first number of greatest magnitude, [..., 1]."""
    magnitude = groups.abs()
    places = torch.arange(groups.shape[-1], device=groups.device)
    is_extreme = magnitude == magnitude.amax(dim=-1, keepdim=True)
    first = torch.where(is_extreme, places, groups.shape[-1] - 1).amin(dim=-1, keepdim=True)
    return groups.gather(-1, first)


def _rounded(x: Tensor, scale: Tensor, bits: int) -> Tensor:
    codes = torch.round(x * (1 / scale))
    return codes if bits == 8 else codes.clamp(-8, 7)


def _best_scale(x: Tensor, extreme: Tensor) -> Tensor:
    """Of groups x [..., 32]: [..., 1]."""
    best = error = None
    for code in EXTREME_CODES:
        scale = _away_from_zero(extreme / -code)
        off = _rounded(x, scale, 4) * scale - x
        off = off * off
        for half in (16, 8, 4, 2, 1):  # in the order of the definition
            off = off[..., :half] + off[..., half:]
        if best is None or error is None:
            best, error = scale, off
        else:
            best = torch.where(off < error, scale, best)
            error = torch.minimum(off, error)
    assert best is not None
    return best


def _away_from_zero(x: Tensor) -> Tensor:
    """Rounded to what a bf16 can hold, f32 still."""
    bits = x.contiguous().view(torch.int32)
    return ((bits + 0xFFFF) & ~0xFFFF).view(torch.float32)
