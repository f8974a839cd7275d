"""Writes docs/numbers.md: numbers that lessons about inference often say, and what the formulas give.

python docs/write_numbers.py            writes
python docs/write_numbers.py --check    fails if it would write something else
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from generated_file import write_or_check

from pellucid.backends.quantization.formats import BF16
from pellucid.benchmark.machine_facts import KNOWN_MACHINES
from pellucid.cli.output.units import num_bytes
from pellucid.facts import formulas
from pellucid.facts.formulas import kv_position_bytes
from pellucid.shapes import find_shape

PAGE = Path(__file__).with_name("numbers.md")
HEADER = """\
# Numbers that are often said

<!-- Written by docs/write_numbers.py; do not edit. -->

What lessons and articles about inference say, the formula that decides it, what it gives, and where pellucid measures
or computes it on your machine. N: prompt tokens, T: tokens of the answer, n: tokens in the cache, L: layers, Hq and
Hkv: query and kv-heads, d: head dimension, b: bytes of a number, P: parameters, B: requests in a step, F: operations
a second, W: bytes a second. The [formulas](../src/pellucid/facts/formulas.py) are those of the planner and the page.
Sizes of models are their published ones ([shapes](../src/pellucid/shapes.json)); machines are as their data sheets say.
"""
COLUMNS = ("often said", "formula", "it gives", "so", "here")


class Row(NamedTuple):
    """A number that is often said.

    Attributes:
        said: by lessons.
        formula: that decides it.
        value: what the formula gives.
        verdict: in a sentence.
        here: where pellucid measures or computes it.
    """

    said: str
    formula: str
    value: str
    verdict: str
    here: str


def kv_bytes(shape: str, dtype: str = "bf16") -> float:
    """Of one token."""
    return kv_position_bytes(find_shape(shape), dtype)


def weights(shape: str) -> float:
    """Bytes in bf16."""
    return formulas.stored_weight_bytes(find_shape(shape), BF16.num_bytes)


def flops(shape: str, start: int, end: int) -> float:
    """Operations of one request's forward over positions start .. end - 1, with one row of logits."""
    return formulas.forward_flops(find_shape(shape), start, end, 1)


def count(value: float) -> str:
    return f"{value:,.0f}"


def times(value: float) -> str:
    return f"{value:,.1f} times"


def passes(prompt: int, output: int) -> tuple[int, int]:
    """With and without a cache."""
    cached, naive = (formulas.token_passes(prompt, output, cache) for cache in (True, False))
    return cached, naive


LLAMA2_7B, LLAMA2_13B, LLAMA3, LLAMA3_70B, GPT2 = (
    "llama-2-7b",
    "llama-2-13b",
    "llama-3.1-8b",
    "llama-3.1-70b",
    "gpt2",
)
H100 = KNOWN_MACHINES["h100-80g"]
LONG = 100_000
KV = "2 L Hkv d b"
PASSES = "with a cache N + T - 1; without N T + T (T - 1) / 2"
PLAN, COMPARE = "`pellucid plan`; the page's Plan", "`pellucid compare`; the page's Compare"
SPECULATE, CACHE, BENCH = "the page's Speculate", "the page's Cache", "`pellucid bench`"


def prefill_seconds(tokens: int, share: float = 0.5) -> float:
    """Of Llama 3.1 8B on an H100 that reaches this share of its peak."""
    return flops(LLAMA3, 0, tokens) / (share * H100.flops_per_second)


def decode_seconds(tokens: int, share: float = 0.7) -> float:
    """Of one token of Llama 3.1 8B with so many in its cache, at this share of an H100's bandwidth."""
    moved = weights(LLAMA3) + tokens * kv_bytes(LLAMA3)
    return moved / (share * H100.bandwidth_bytes_per_second)


def users(memory: float, context: int) -> float:
    return (memory - weights(LLAMA3)) / (context * kv_bytes(LLAMA3))


def memory_rows() -> Sequence[Row]:
    old, new = kv_bytes(LLAMA2_13B), kv_bytes(LLAMA3)
    at_8k = 8192 * new
    without_gqa = 2 * 32 * 32 * 128 * 8192 * 2
    eight, four = new * (8 + 16 / 32) / 16, new * (4 + 16 / 32) / 16
    layer = 2 * 12 * 64
    return [
        Row(
            '"About 1 MB of cache a token for large models; 128K tokens are 128 GB"',
            KV,
            f"Llama 2 13B {num_bytes(old)}, Llama 3.1 8B {num_bytes(new)}, 70B"
            f" {num_bytes(kv_bytes(LLAMA3_70B))}, Qwen2.5 0.5B {num_bytes(kv_bytes('qwen2.5-0.5b'))}",
            "Only of models whose every query head has keys of its own. At 131,072 tokens Llama 3.1 8B takes"
            f" {num_bytes(131_072 * new)}.",
            PLAN,
        ),
        Row(
            '"Llama 3 8B takes 4 GB of cache at 8,192 tokens, 32 GB for a batch of 8"',
            f"{KV} n B",
            f"{num_bytes(at_8k)}, and {num_bytes(8 * at_8k)} for 8; with 32 kv-heads it would be"
            f" {num_bytes(without_gqa)}",
            "Wrong: the cache holds 8 kv-heads, not 32 query heads.",
            PLAN,
        ),
        Row(
            '"How many bytes do 4,096 tokens of 768 components take?"',
            "2 n 768 b, times the layers",
            f"keys of one layer {count(4096 * 768)} numbers; keys and values"
            f" {num_bytes(2 * 4096 * 768 * 4)} in f32, {num_bytes(2 * 4096 * 768 * 2)} in 16 bits;"
            f" 12 layers {num_bytes(4096 * kv_bytes(GPT2))}",
            "Without layers and format the question has no answer; and GPT-2's context ends at"
            " 1,024.",
            CACHE,
        ),
        Row(
            '"102, 198, 294 and 384 KB at 17, 33, 49 and 64 tokens"',
            "n 2 Hkv d b",
            ", ".join(f"{n * layer * 4 // 1024} KiB" for n in (17, 33, 49, 64)),
            "Right for one layer of GPT-2 small in f32, which the chart does not say.",
            CACHE,
        ),
        Row(
            '"8 bits halve the cache, 4 bits quarter it"',
            "bits and scales: 8 + 16/32, 4 + 16/32",
            f"{new / eight:.2f} and {new / four:.2f} times fewer bytes",
            "Scales take their share. pellucid's formats have one scale for 32 numbers, values in int8 for a head:"
            f" {new / kv_bytes(LLAMA3, 'int8'):.2f} and {new / kv_bytes(LLAMA3, 'int4'):.2f}"
            " times.",
            "`pellucid eval-kv`; the page's Compare",
        ),
        Row(
            '"A cache saves memory"',
            f"{KV} n",
            f"{num_bytes(2048 * new)} held at 2,048 tokens by Llama 3.1 8B, nothing without a"
            " cache",
            "It costs memory and saves operations.",
            COMPARE,
        ),
        Row(
            '"The cache is often larger than the weights"',
            "n B kv > weights",
            f"from {count(weights(LLAMA3) / new)} tokens on, Llama 3.1 8B in bf16",
            "Only past that, over all requests.",
            PLAN,
        ),
        Row(
            '"32 requests of a 7B model fit into 20 GB"',
            "(memory - weights) / (B kv)",
            f"{count((20e9 - weights(LLAMA2_7B)) / 32 / kv_bytes(LLAMA2_7B))} tokens each, Llama 2"
            " 7B",
            "If texts are that short.",
            PLAN,
        ),
        Row(
            '"Pages of 16 tokens serve hundreds of users"',
            "(memory - weights) / (n kv)",
            f"{count(users(80e9, 2048))} users of 2,048 tokens: Llama 3.1 8B in 80 GB; a block of 16"
            f" tokens is {num_bytes(16 * new)}",
            "Plausible, by memory alone. A sequence wastes at most 15 tokens.",
            f"{CACHE}; {PLAN}",
        ),
    ]


def work_rows() -> Sequence[Row]:
    cached, naive = passes(50, 200)
    long_cached, long_naive = passes(1000, 100)
    prefill = flops(LLAMA3, 0, LONG)
    linear = 2 * formulas.active_matrix_parameters(find_shape(LLAMA3)) * LONG
    grown = decode_seconds(LONG) / decode_seconds(0)
    old = (weights(LLAMA2_7B) + LONG * kv_bytes(LLAMA2_7B)) / weights(LLAMA2_7B)
    share = prefill_seconds(50) / (prefill_seconds(50) + 199 * decode_seconds(250))
    double = flops(LLAMA3, 0, 16_384) / flops(LLAMA3, 0, 8192)
    shorter = (35 + 667) / (35 + 3)
    return [
        Row(
            '"Token 1,000 processes the 999 before it again"',
            PASSES,
            f"for 50 in and 200 out {count(cached)} passes and not {count(naive)}:"
            f" {times(naive / cached)} fewer",
            "Right without a cache.",
            COMPARE,
        ),
        Row(
            '"The cache makes the work linear"',
            "passes N + T - 1; attention pairs (N + T)^2 / 2",
            f"{count(formulas.attention_pairs(0, 4096))} pairs at 4,096 tokens, a head and layer",
            "Of passes, yes. Attention looks at every pair, with a cache too.",
            COMPARE,
        ),
        Row(
            '"Without a cache is fine below 100 tokens"',
            PASSES,
            f"{times(long_naive / long_cached)} the passes for 1,000 in and 100 out",
            "Wrong where the prompt is long.",
            COMPARE,
        ),
        Row(
            '"4,096 tokens mean 16 million operations for each new token"',
            "n^2 score entries of a whole prompt; n (n + 1) / 2 of them are seen",
            f"{count(4096**2)} and {count(formulas.attention_pairs(0, 4096))}",
            "The size is right, the noun is not: a new token adds 4,096 scores a head and layer.",
            COMPARE,
        ),
        Row(
            '"Twice the length, four times the work"',
            "2 P N + 4 L Hq d pairs",
            f"{times(double)} for 16,384 tokens instead of 8,192, Llama 3.1 8B",
            "Of attention alone.",
            BENCH,
        ),
        Row(
            '"Billions of operations for each token"',
            "2 P + 4 L Hq d n",
            f"{flops(LLAMA3, 2047, 2048):.3g} for token 2,048, Llama 3.1 8B",
            "Right.",
            BENCH,
        ),
        Row(
            '"A prompt of 100,000 tokens makes the first word slow"',
            "(2 P N + 4 L Hq d pairs) / F",
            f"{prefill:.2g} operations, {1 - linear / prefill:.0%} of them attention:"
            f" {prefill_seconds(LONG):.1f} s at half of an H100's peak",
            "Right, and attention is the larger half.",
            PLAN,
        ),
        Row(
            '"Tokens after a long prompt come at the same rate"',
            "(weights + n kv) / W",
            f"{times(grown)} as slow at {count(LONG)} tokens, Llama 3.1 8B; {times(old)} for Llama 2"
            " 7B",
            "Wrong: each step reads the cache of the whole text.",
            BENCH,
        ),
        Row(
            '"Prefill takes most of the time"',
            "2 P N / F against T (weights + n kv) / W",
            f"{share:.1%} for 50 in and 200 out, Llama 3.1 8B on an H100",
            "Only of long prompts with short answers.",
            "`pellucid explain`; the page's Timeline",
        ),
        Row(
            '"max_tokens 10 instead of 4,096 is 18 times as fast"',
            "(first + T1) / (first + T2), in tokens",
            f"{times(shorter)} for 3 tokens instead of 667, if the first takes as long as 35",
            "Tokens that are written cost time, not the limit. A limit below the answer's length cuts"
            " it off.",
            "`pellucid run --max-tokens 10`",
        ),
        Row(
            '"After four tokens on a prompt of ten the cache holds fourteen"',
            "N + T - 1",
            "13",
            "The newest token is not in the cache: its keys and values are written when it is fed"
            " back.",
            CACHE,
        ),
        Row(
            '"3,000 tokens a second at 10 ms a step of 32 requests"',
            "B / step; bytes / step",
            f"{count(32 / 0.010)} tokens/s; 20 GB in 10 ms are 2.0 TB/s,"
            f" {20e9 / 0.010 / H100.bandwidth_bytes_per_second:.0%} of an H100's bandwidth",
            "Consistent, without prefill.",
            "`pellucid bench --batch 32`",
        ),
    ]


def draft_rows() -> Sequence[Row]:
    def speedup(acceptance: float, cost: float) -> str:
        return f"{formulas.draft_speedup(acceptance, 4, cost, 1.0):.2f}"

    chips, conditional = 1.0, 1.0
    for share in (1.0, 0.85, 0.7, 0.55):
        conditional *= share
        chips += conditional
    return [
        Row(
            '"With four drafts, four times as fast"',
            "(1 - a^(k+1)) / (1 - a) / (k c + v)",
            f"k = 4, c = 0.05, v = 1: {speedup(0.6, 0.05)} at a = 0.6, {speedup(0.8, 0.05)} at 0.8,"
            f" {speedup(1.0, 0.05)} at 1; with c = 0.1 {speedup(0.6, 0.1)} and {speedup(0.8, 0.1)}",
            "It depends on how often drafts are right, and on what they and their verification cost."
            " The bonus token counts.",
            SPECULATE,
        ),
        Row(
            '"Drafts that are right with 100, 85, 70 and 55 % make it 0.95 times as fast"',
            "1 + a1 + a1 a2 + ..., over k c + v",
            f"{chips:.2f} tokens a round, {chips / (4 * 0.05 + 1):.2f} times as fast with c = 0.05",
            "That counted the cost of drafts and not what they save.",
            SPECULATE,
        ),
        Row(
            '"Drafts are rarely rejected"',
            "1 - a^k",
            ", ".join(f"{1 - a**4:.0%} at a = {a}" for a in (0.6, 0.7, 0.8, 0.9)),
            "Some draft of a round of four is wrong more often than not.",
            SPECULATE,
        ),
    ]


SECTIONS: Sequence[tuple[str, Callable[[], Sequence[Row]]]] = (
    ("Memory", memory_rows),
    ("Work and time", work_rows),
    ("Speculation", draft_rows),
)


def page() -> str:
    parts = [HEADER.strip()]
    for title, rows in SECTIONS:
        table = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
        table += [f"| {' | '.join(row)} |" for row in rows()]
        parts += [f"## {title}", "\n".join(table)]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page()))
