"""`pellucid eval-kv` on the bundled model: the quality of each KV cache format."""

import functools

import pytest

from pellucid.benchmark.kv_quality import KVQuality, Texts, held_out_texts, measure_kv_quality
from pellucid.engine.kv_divergence import Divergence
from pellucid.inputs.config import EngineConfig
from pellucid.loaded_model import load_model
from support.bundled import bundled_model

NUM_TEXTS = 4
LARGEST_CHANGE = {"bf16": 0.001, "int8": 0.001, "int8,int4": 0.01, "int4": 0.02}  # of perplexity
LARGEST_DIVERGENCE = {"bf16": 0.0001, "int8": 0.001, "int8,int4": 0.01, "int4": 0.03}  # nats
# With heads of 32; of int4 3.37 with larger ones, whose tiles need no padding.
LEAST_CAPACITY = {"bf16": 1, "int8": 1.85, "int8,int4": 2.4, "int4": 3.2}  # beside bf16


def few_texts(count: int = NUM_TEXTS) -> Texts:
    everything = held_out_texts()
    return Texts(everything.texts[:count], everything.secrets[:count])


@functools.cache
def measure(kv_cache_dtype: str, num_texts: int = NUM_TEXTS) -> KVQuality:
    texts = few_texts(num_texts)
    return measure_kv_quality(EngineConfig(), bundled_model(), texts, kv_cache_dtype)


@pytest.mark.parametrize("kv_cache_dtype", LARGEST_CHANGE)
def test_formats_cost_little_and_save_much(kv_cache_dtype: str) -> None:
    reference, quality = measure("f32"), measure(kv_cache_dtype)
    assert abs(quality.perplexity / reference.perplexity - 1) <= LARGEST_CHANGE[kv_cache_dtype]
    assert 0 < quality.divergence.nats <= LARGEST_DIVERGENCE[kv_cache_dtype]
    assert quality.divergence.same_top > 0.9
    bf16_bytes = reference.bytes_per_token / 2
    assert bf16_bytes / quality.bytes_per_token >= LEAST_CAPACITY[kv_cache_dtype]
    assert sum(reference.recalled) >= NUM_TEXTS // 3  # or recall would say nothing
    assert abs(sum(quality.recalled) - sum(reference.recalled)) <= 2


def test_the_reference_does_not_differ_from_itself() -> None:
    reference = measure("f32", 2)
    assert measure.__wrapped__("f32", 2) == reference
    assert reference.divergence == Divergence(0.0, 1.0)
    assert reference.first_changes(reference) == []
    assert measure("int4").first_changes(measure("f32")) != []


def test_the_definition_has_all_formats() -> None:
    model = load_model(EngineConfig(backend="numpy"))
    texts = Texts((few_texts(1).texts[0][:300],), ())
    full, coarse = (
        measure_kv_quality(EngineConfig(backend="numpy"), model, texts, kv_format)
        for kv_format in ("f32", "int4")
    )
    assert full.perplexity != coarse.perplexity == pytest.approx(full.perplexity, rel=0.05)
