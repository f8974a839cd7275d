"""What a format of the KV cache would cost, before any kernel has it: numbers rounded in f32.

    python benchmarks/kv_trials.py MODEL --text FILE [--max-tokens N] [--only WORD]

Prints, for each trial, the mean over all tokens of KL(f32 || trial) in nats, and the share of tokens
whose likeliest successor stays the same. The text is read as one prompt by the native backend, with the
checkpoint's weights and without rounded activations; attention runs in NumPy, over keys, values, queries
and probabilities as a trial rounds them. `kv_divergence.py` measures the formats that exist.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

import ml_dtypes
import numpy as np
import numpy.typing as npt
from quantization_quality import compare, next_token_log_probs

from pellucid.backends.numpy.kv_codes import quantize_rows, restore_rows
from pellucid.backends.ops import Array, ForwardBatch, KVLayer, Ops
from pellucid.facts.kv_formats import KV_FORMATS, NumberFormat
from pellucid.inputs.config import EngineConfig
from pellucid.loaded_model import load_model

Floats: TypeAlias = npt.NDArray[np.float32]
Rounding: TypeAlias = Callable[[Floats], Floats]  # of [T, K, D]

# Positions whose keys share scales of dimensions, and dimensions whose queries share one.
GROUP = 32
RANGE = 256  # positions over which the native kernels compute at a time
SMALLEST = np.float32(2.0**-100)


def exact(x: Floats) -> Floats:
    return x


def in_bf16(x: Floats) -> Floats:
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def as_stored(number_format: NumberFormat) -> Rounding:
    """Rounds as a format of the cache does that exists."""

    def rounded(x: Floats) -> Floats:
        codes, scales = quantize_rows(x, number_format)
        return restore_rows(codes, scales, number_format, x.shape[-1]).astype(np.float32)

    return rounded


def rotated(x: Floats, size: int) -> Floats:
    """Each `size` neighbouring dimensions times an orthonormal Hadamard matrix, which is its own inverse."""
    y, distance = x, 1
    while distance < size:
        pairs = y.reshape(*x.shape[:-1], -1, 2, distance)
        a, b = pairs[..., 0, :], pairs[..., 1, :]
        y = np.stack([a + b, a - b], axis=-2).reshape(x.shape)
        distance *= 2
    return np.asarray(y * np.float32(size**-0.5))


@dataclass(frozen=True)
class RotatedCodes:
    """Codes of a token's rotated dimensions; of nine scales the one with the smallest squared error.

    Args:
        bits: of a code.
        scale_dims: dimensions that share a scale in bf16.
        rotated_dims: that are rotated together; at most those of a head.
    """

    bits: int
    scale_dims: int = 32
    rotated_dims: int = 32

    def __call__(self, x: Floats) -> Floats:
        size = min(self.rotated_dims, x.shape[-1])
        groups = rotated(x, size).reshape(*x.shape[:-1], -1, min(self.scale_dims, x.shape[-1]))
        least = -(2 ** (self.bits - 1))
        extreme = np.take_along_axis(groups, np.abs(groups).argmax(-1)[..., None], -1)
        extreme = np.where(np.abs(extreme) < SMALLEST, np.float32(1), extreme)
        best = error = None
        for offset in (0, 0.25, -0.25, 0.5, -0.5, 0.75, -0.75, 1, -1):
            scale = up_to_bf16(extreme / np.float32(least + offset))
            numbers = np.clip(np.rint(groups / scale), least, -least - 1) * scale
            off = np.square(numbers - groups).sum(-1, keepdims=True)
            if best is None or error is None:
                best, error = numbers, off
            else:
                best = np.where(off < error, numbers, best)
                error = np.minimum(off, error)
        assert best is not None
        return rotated(best.reshape(x.shape).astype(np.float32), size)


def up_to_bf16(x: Floats) -> Floats:
    """Rounded away from zero to what a bf16 can hold."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return np.asarray((bits + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000)).view(np.float32)


@dataclass(frozen=True)
class KeyGroup:
    """Keys of `GROUP` positions, each dimension with a scale and a minimum of its own (KIVI, arXiv 2402.02750).

    Args:
        scales, minimums: [K, D].
        codes: [GROUP, K, D].
    """

    scales: Floats
    minimums: Floats
    codes: Floats

    @classmethod
    def of(cls, k: Floats, bits: int) -> "KeyGroup":
        minimums, greatest = k.min(0), 2**bits - 1
        scales = np.maximum(up_to_bf16((k.max(0) - minimums) / np.float32(greatest)), SMALLEST)
        return cls(scales, minimums, np.clip(np.rint((k - minimums) / scales), 0, greatest))


def in_8_bits(x: Floats, peaks: Floats | None = None, dims: int = GROUP) -> Floats:
    """x [..., D] in codes of 8 bits; neighbouring dimensions share a scale.

    Args:
        peaks: [..., D], whose largest magnitude is the code 127; None: those of x.
    """
    shape = *x.shape[:-1], -1, min(dims, x.shape[-1])
    most = np.abs(x if peaks is None else peaks).reshape(shape).max(-1, keepdims=True)
    unit = np.maximum(most, SMALLEST) / np.float32(127)
    return np.asarray((np.rint(x.reshape(shape) / unit) * unit).reshape(x.shape))


@dataclass(frozen=True)
class Trial:
    """How a cache, and attention over it, would round.

    Args:
        keys, values: as they are stored.
        grouped_bits: of keys with scales of dimensions over 32 positions, in place of `keys`: a query reads its own
            group in bf16, and earlier ones as codes; None: there are no such groups.
        query_dims: dimensions of a query that share a scale of its codes of 8 bits; None: queries are exact.
        query_peaks: of queries over grouped keys: what gives their unit. "range": the widest scales of 256 positions;
            "group": the products themselves; "product": the greatest number times the greatest scale.
        has_codes: whether probabilities become codes of 8 bits, sixteen with a scale.
        rotated_dims: of queries that are rotated together before they become codes, as keys are; 1: none are.
    """

    name: str
    keys: Rounding = exact
    values: Rounding = exact
    grouped_bits: int | None = None
    query_dims: int | None = None
    query_peaks: str = "range"
    has_codes: bool = False
    rotated_dims: int = 1


INT8, INT4 = KV_FORMATS["int8"], KV_FORMATS["int4"]
int8_keys, int8_values = as_stored(INT8.keys), as_stored(INT8.values)
int4_values = as_stored(INT4.values)
grouped_8_bits = as_stored(NumberFormat("int8", 8, GROUP))
in_kernels: dict[str, Any] = {"query_dims": GROUP, "has_codes": True}
TRIALS = (
    Trial("bf16", in_bf16, in_bf16),
    Trial("int8, K and V alone", int8_keys, int8_values),
    Trial("int8, K alone", int8_keys),
    Trial("int8, V alone", values=int8_values),
    Trial("int8, queries", int8_keys, int8_values, query_dims=GROUP, rotated_dims=32),
    Trial("int8, probabilities", int8_keys, int8_values, has_codes=True),
    Trial("int8, all", int8_keys, int8_values, rotated_dims=32, **in_kernels),
    Trial("int8, V g32, all", int8_keys, grouped_8_bits, rotated_dims=32, **in_kernels),
    Trial("int8, not rotated, K and V alone", grouped_8_bits, int8_values),
    Trial("int8, not rotated, all", grouped_8_bits, int8_values, **in_kernels),
    Trial("K rotated, V int4, all", int4_values, int4_values, rotated_dims=32, **in_kernels),
    Trial("int4, V alone", values=int4_values),
    Trial("int4, V g64 alone", values=RotatedCodes(4, 64)),
    Trial("K 5 bits g32 alone", RotatedCodes(5)),
    Trial("K 5 bits g64 alone", RotatedCodes(5, 64)),
    Trial("K 5 bits g64 rot64 alone", RotatedCodes(5, 64, 64)),
    Trial(
        "K 5 bits g32, V 4 bits g32, all",
        RotatedCodes(5),
        int4_values,
        rotated_dims=32,
        **in_kernels,
    ),
    Trial("K by dimension alone", grouped_bits=4),
    Trial("K by dimension, V int4", grouped_bits=4, values=int4_values),
    Trial("int4, all", grouped_bits=4, values=int4_values, **in_kernels),
    Trial(
        "K by dimension, group's peaks, all",
        grouped_bits=4,
        values=int4_values,
        query_peaks="group",
        **in_kernels,
    ),
    Trial(
        "K by dimension, product of peaks, all",
        grouped_bits=4,
        values=int4_values,
        query_peaks="product",
        **in_kernels,
    ),
    Trial(
        "K by dimension, a scale a head, all",
        grouped_bits=4,
        values=int4_values,
        query_dims=512,
        has_codes=True,
    ),
    Trial("K by dimension, 3 bits, V int4, all", grouped_bits=3, values=int4_values, **in_kernels),
    Trial("K by dimension, 5 bits, V int4, all", grouped_bits=5, values=int4_values, **in_kernels),
)


class TrialOps:
    """`Ops` whose attention rounds as a trial does. A batch is one prompt.

    Args:
        ops: of the backend; they compute all else.
        trial: may be replaced between prompts.
    """

    def __init__(self, ops: Ops, trial: Trial) -> None:
        self.trial = trial
        self._ops = ops
        self._kv: dict[KVLayer, tuple[Floats, Floats]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)

    def store_kv(self, kv_layer: KVLayer, k: Array, v: Array, batch: ForwardBatch) -> None:
        self._kv[kv_layer] = k.astype(np.float32), self.trial.values(v.astype(np.float32))

    def paged_attention(
        self,
        q: Array,
        kv_layer: KVLayer,
        batch: ForwardBatch,
        scale: float,
        sliding_window: int | None = None,
        softcap: float | None = None,
        sinks: Array | None = None,
    ) -> Array:
        assert len(batch.seq_lens) == 1 and sinks is None
        k, v = self._kv[kv_layer]
        num_tokens, num_kv_heads, head_dim = k.shape
        queries = (q * np.float32(scale)).astype(np.float32)
        queries = queries.reshape(num_tokens, num_kv_heads, -1, head_dim).transpose(1, 2, 0, 3)
        keys = Keys(self.trial, k)
        outputs = []
        for first in range(0, num_tokens, GROUP):
            end = min(first + GROUP, num_tokens)
            scores = keys.scores(queries[:, :, first:end], first, end)
            if softcap is not None:
                scores = softcap * np.tanh(scores / softcap)
            distance = np.arange(first, end)[:, None] - np.arange(end)
            hidden = distance < 0
            if sliding_window is not None:
                hidden |= distance >= sliding_window
            scores[..., hidden] = -np.inf
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            totals = weights.sum(-1, keepdims=True)
            if self.trial.has_codes:
                weights = probability_codes(weights)
            outputs.append(np.einsum("kgqn,nkd->qkgd", weights / totals, v[:end]))
        return np.concatenate(outputs).reshape(q.shape).astype(np.float32)


class Keys:
    """The keys of a prompt as a trial stores them.

    Args:
        k: [T, K, D].
    """

    def __init__(self, trial: Trial, k: Floats) -> None:
        self._trial = trial
        self._numbers = trial.keys(k) if trial.grouped_bits is None else in_bf16(k)
        self._groups: list[KeyGroup] = []
        if trial.grouped_bits is not None:
            starts = range(0, len(k) - GROUP + 1, GROUP)
            groups = (self._numbers[start : start + GROUP] for start in starts)
            self._groups = [KeyGroup.of(group, trial.grouped_bits) for group in groups]

    def scores(self, q: Floats, first: int, end: int) -> Floats:
        """Scores [K, H / K, q, end] of queries [K, H / K, q, D] at positions `first` .. `end` - 1, a whole group."""
        if self._trial.grouped_bits is None:
            return _products(self._rounded(q), self._numbers[:end])
        parts = []
        for start in range(0, first, GROUP):
            in_range = slice(
                start // RANGE * RANGE // GROUP, min(start // RANGE * RANGE + RANGE, first) // GROUP
            )
            widest = np.max([group.scales for group in self._groups[in_range]], axis=0)
            group = self._groups[start // GROUP]
            codes = self._codes(q, group, widest)
            minimums = np.einsum("kgqd,kd->kgq", q, group.minimums)
            parts.append(_products(codes, group.codes) + minimums[..., None])
        parts.append(_products(in_bf16(q), self._numbers[first:end]))
        return np.concatenate(parts, axis=-1)

    def _rounded(self, q: Floats) -> Floats:
        dims, size = self._trial.query_dims, self._trial.rotated_dims
        if dims is None:
            return q
        return rotated(in_8_bits(rotated(q, size), dims=dims), size)

    def _codes(self, q: Floats, group: KeyGroup, widest: Floats) -> Floats:
        """Products of queries and the scales of a group."""
        products = q * group.scales[:, None, None]
        dims = self._trial.query_dims
        if dims is None:
            return products
        match self._trial.query_peaks:
            case "range":
                peaks = q * widest[:, None, None]
            case "product":
                shape = len(group.scales), -1, min(dims, q.shape[-1])
                greatest = group.scales.reshape(shape).max(-1, keepdims=True)
                greatest = np.broadcast_to(greatest, group.scales.reshape(shape).shape)
                peaks = q * greatest.reshape(group.scales.shape)[:, None, None]
            case _:
                peaks = products
        return in_8_bits(products, peaks, dims)


def _products(q: Floats, k: Floats) -> Floats:
    return np.asarray(np.einsum("kgqd,nkd->kgqn", q, k, optimize=True))


def probability_codes(weights: Floats) -> Floats:
    """Weights [..., n] in codes of 8 bits. Sixteen share a scale: the same four of each of four tiles of 16."""
    num_keys = weights.shape[-1]
    padded = np.zeros((*weights.shape[:-1], -(-num_keys // 64) * 64), np.float32)
    padded[..., :num_keys] = weights
    strips = padded.reshape(*weights.shape[:-1], -1, 4, 4, 4)
    unit = np.maximum(strips.max(axis=(-3, -1), keepdims=True), SMALLEST) / np.float32(127)
    return (np.rint(strips / unit) * unit).reshape(padded.shape)[..., :num_keys]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", help="as `pellucid run`")
    parser.add_argument("--text", type=Path, required=True, help="UTF-8 text to read")
    parser.add_argument("--max-tokens", type=int, default=256, help="of the text (256)")
    parser.add_argument("--only", default="", help="trials whose name contains this")
    arguments = parser.parse_args()
    model = load_model(
        EngineConfig(model=arguments.model, backend="cpu", quantize_activations=False)
    )
    assert model.decoder_on is not None
    text = arguments.text.read_text(encoding="utf-8")
    token_ids = list(model.tokenizer.encode(text))[: arguments.max_tokens]
    ops = TrialOps(model.backend.ops, Trial("f32"))
    decoder = model.decoder_on(cast(Ops, ops))
    reference = next_token_log_probs(decoder, model.config, model.backend, token_ids)
    print(f"{model.name}: {len(token_ids)} tokens of {arguments.text}")
    print(f"{'trial':>40} {'KL (nats)':>10} {'same best':>10}")
    for trial in TRIALS:
        if arguments.only not in trial.name:
            continue
        ops.trial = trial
        own = next_token_log_probs(decoder, model.config, model.backend, token_ids)
        quality = compare([reference], [own], [token_ids])
        print(f"{trial.name:>40} {quality.divergence:10.5f} {quality.agreement:10.2%}", flush=True)


if __name__ == "__main__":
    main()
