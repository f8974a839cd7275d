"""The page's formulas beside formulas.py: 200 drawn inputs, and the numbers that lessons often get wrong."""

import random
from typing import Any

import pytest

from pellucid.facts import formulas
from pellucid.shapes import find_shape

COMPUTE = """async (cases) => {
  const path = document.querySelector('script[type="module"]').src.replace("app.js", "formulas.js");
  const page = await import(path);
  return cases.map(([name, inputs]) => page[name].of(inputs));
}"""
NUM_VECTORS = 200
Case = tuple[str, dict[str, float], float]


def drawn_cases() -> list[Case]:
    """Each formula that both have, with inputs as people set them."""
    draw = random.Random(13)
    cases: list[Case] = []
    names = ("qwen2.5-0.5b", "llama-3.2-1b", "smollm2-135m")
    while len(cases) < NUM_VECTORS:
        prompt, output = draw.randint(1, 100_000), draw.randint(1, 5000)
        lengths = {"N": prompt, "T": output}
        cases.append(("passesCached", lengths, formulas.token_passes(prompt, output, True)))
        cases.append(("passesNaive", lengths, formulas.token_passes(prompt, output, False)))
        start = draw.randint(0, 5000)
        end = start + draw.randint(1, 5000)
        pairs = formulas.attention_pairs(start, end)
        cases.append(("attentionPairs", {"start": start, "end": end}, pairs))
        a, k = draw.random(), draw.randint(0, 12)
        c, v = draw.random(), draw.uniform(0.5, 3)
        cases.append(("expectedTokens", {"a": a, "k": k}, formulas.expected_tokens(a, k)))
        speedup = formulas.draft_speedup(a, k, c, v)
        cases.append(("draftSpeedup", {"a": a, "k": k, "c": c, "v": v}, speedup))
        shape = find_shape(draw.choice(names))
        attention = shape.layers[0].attention
        heads = {"L": len(shape.layers), "Hq": attention.num_heads, "d": attention.head_dim}
        parameters = formulas.active_matrix_parameters(shape)
        flops = formulas.forward_flops(shape, start, end, 0)
        inputs = {**heads, "P": parameters, "q": end - start, "pairs": pairs}
        cases.append(("forwardFlops", inputs, flops))
        own = {"L": len(shape.layers), "Hkv": attention.num_kv_heads, "d": attention.head_dim}
        per_position = 2.0 * sum(
            2 * each.attention.num_kv_heads * each.attention.head_dim for each in shape.layers
        )
        held = formulas.KVBytes(shape, per_position)(0, end)
        cases.append(("kvBytes", {**own, "b": 2, "n": end}, held))
    return cases


LLAMA_3_8B = {"L": 32, "Hkv": 8, "d": 128, "b": 2}
KNOWN: list[Case] = [
    ("kvBytesPerToken", LLAMA_3_8B, 128 * 1024),
    ("kvBytesPerToken", {"L": 40, "Hkv": 40, "d": 128, "b": 2}, 800 * 1024),  # Llama 2 13B
    ("kvBytesPerToken", {"L": 80, "Hkv": 8, "d": 128, "b": 2}, 320 * 1024),  # Llama 3 70B
    ("kvBytesPerToken", {"L": 24, "Hkv": 2, "d": 64, "b": 2}, 12 * 1024),  # Qwen2.5 0.5B
    ("kvBytesPerToken", {"L": 1, "Hkv": 12, "d": 64, "b": 4}, 6144),
    ("kvBytesPerToken", {**LLAMA_3_8B, "b": 17 / 16}, 68 * 1024),  # 8 bits and scales
    ("kvBytesPerToken", {**LLAMA_3_8B, "b": 9 / 16}, 36 * 1024),
    ("kvBytes", {**LLAMA_3_8B, "n": 8192}, 2**30),
    ("kvBytes", {**LLAMA_3_8B, "n": 131_072}, 2**34),
    ("passesNaive", {"N": 50, "T": 200}, 29_900),
    ("passesCached", {"N": 50, "T": 200}, 249),
    ("attentionPairs", {"start": 0, "end": 4096}, 8_390_656),
    ("cachedTokens", {"N": 10, "m": 1}, 10),
    ("cachedTokens", {"N": 10, "m": 4}, 13),
    ("draftSpeedup", {"a": 0.6, "k": 4, "c": 0.05, "v": 1}, 1.92),
    ("draftSpeedup", {"a": 0.8, "k": 4, "c": 0.05, "v": 1}, 2.80),
    ("draftSpeedup", {"a": 1.0, "k": 4, "c": 0.05, "v": 1}, 4.17),
    ("draftSpeedup", {"a": 0.8, "k": 4, "c": 0.1, "v": 1}, 2.40),  # without the bonus token: 1.69
    ("tokensByPosition", {"a": [1, 0.85, 0.7, 0.55]}, 3.7723),
    ("blocksOf", {"n": 33, "s": 16}, 3),
    ("wastedSlots", {"n": 33, "s": 16}, 15),
    ("usersThatFit", {"memory": 80e9, "weights": 16.06e9, "n": 2048, "kv": 128 * 1024}, 238),
    ("costPerMillion", {"price": 3.6, "rate": 1000}, 1.0),
    ("entropyBits", {"p": [0.5, 0.25, 0.25]}, 1.5),
]  # type: ignore[list-item]


def test_the_pages_formulas_are_those_of_python(page: Any) -> None:
    cases = drawn_cases()
    assert len(cases) >= NUM_VECTORS
    found = page.evaluate(COMPUTE, [[name, inputs] for name, inputs, _ in cases])
    assert found == [pytest.approx(expected, rel=1e-12) for _, _, expected in cases]
    found = page.evaluate(COMPUTE, [[name, inputs] for name, inputs, _ in KNOWN])
    assert found == [pytest.approx(expected, rel=2e-3) for _, _, expected in KNOWN]
