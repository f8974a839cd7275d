"""`pellucid eval-kv`: the quality and the size of each KV cache format."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pellucid.cli.generation import load
from pellucid.cli.output.json_output import print_json
from pellucid.cli.output.terminal import print_table, wrapped
from pellucid.cli.output.units import describe_count, num_bytes
from pellucid.cli.parsing.model_and_prompt import ModelName
from pellucid.cli.parsing.options import Json, ModelOptions
from pellucid.cli.parsing.panels import OTHERS
from pellucid.inputs.config import EngineConfig
from pellucid.progress import progress

if TYPE_CHECKING:
    from pellucid.benchmark.kv_quality import KVQuality

CAPACITY_REFERENCE = "bf16"  # the default format
COLUMNS = (
    "KV cache",
    "bytes per token",
    "capacity vs bf16",
    "KL to f32",
    "same top",
    "perplexity",
    "secrets recalled",
    "texts that differ",
)
EXPLANATION = """\
Capacity: tokens that fit into the same memory. KL to f32: how far the distribution of the next token moves, in
nats. Same top: tokens whose likeliest next token is that of f32. Perplexity: of texts that the bundled model was
not trained on, or of your text. Secrets recalled: facts in a text that the model repeats at the end of the text;
in your text, pass keys at five depths. Texts that differ: the model continues the first half of each text
greedily, and the continuation differs from the one with f32."""
NUM_BATCHED_TOKENS = 256  # logits of every token of a step are kept: few at a time


def eval_kv(
    model_name: ModelName,
    *,
    text: Path | None = OTHERS.option(
        "FILE",
        "UTF-8 text to read instead of the bundled texts; pass keys are hidden in it at five depths.",
    ),
    model_options: ModelOptions,
    json: Json = False,
) -> None:
    """Measure what small formats of the KV cache cost in quality.

    Reads the same texts with a KV cache in f32, bf16, int8 and int4. Shows for each format how far the
    distribution of the next token moves, the perplexity, how many secrets in a long text the model recalls, how
    many greedy texts differ, and how many tokens fit into the memory that the engine would take for its cache.
    """
    if model_options.kv_cache_dtype != EngineConfig.kv_cache_dtype:
        raise ValueError(
            f"--kv-cache-dtype {model_options.kv_cache_dtype}: cannot be chosen here; all formats are measured"
        )
    from pellucid.benchmark.kv_quality import (
        KV_FORMATS,
        held_out_texts,
        measure_kv_quality,
        texts_with_needles,
    )

    content = None if text is None else _read_text(text)
    settings = model_options.settings()
    settings["max_num_batched_tokens"] = min(
        model_options.max_num_batched_tokens, NUM_BATCHED_TOKENS
    )
    llm, _ = load(model_name.name(), settings, {})
    engine = llm.engine
    texts = (
        held_out_texts()
        if content is None
        else texts_with_needles(content, engine.model, engine.max_model_len)
    )
    qualities = []
    for kv_format in KV_FORMATS:
        with progress(kv_format, describe_count("texts")) as show:
            qualities.append(measure_kv_quality(llm.config, engine.model, texts, kv_format, show))
    memory = engine.memory_plan.kv_cache
    if json:
        print_json([quality_object(quality, qualities, memory) for quality in qualities])
    else:
        print_qualities(qualities, memory)


def quality_object(
    quality: "KVQuality", qualities: "list[KVQuality]", memory: int
) -> dict[str, Any]:
    """A format beside the others, the first of which is the reference; shares of 1.

    Args:
        memory: of the KV cache, in bytes.
    """
    reference = qualities[0]
    (default,) = (each for each in qualities if each.kv_cache_dtype == CAPACITY_REFERENCE)
    changes = quality.first_changes(reference)
    return {
        "kv_cache_dtype": quality.kv_cache_dtype,
        "bytes_per_token": quality.bytes_per_token,
        "capacity": default.bytes_per_token / quality.bytes_per_token,
        "tokens_that_fit": int(memory / quality.bytes_per_token),
        "divergence": quality.divergence.nats,
        "same_top": quality.divergence.same_top,
        "perplexity": quality.perplexity,
        "perplexity_change": quality.perplexity / reference.perplexity - 1,
        "num_tokens": quality.num_tokens,
        "num_recalled": sum(quality.recalled),
        "num_secrets": len(quality.recalled),
        "missed_depths": quality.missed_depths,
        "num_changed_continuations": len(changes),
        "num_continuations": len(quality.continuations),
        "first_changed_token": min(changes, default=None),
    }


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"--text {path}: is not UTF-8: {error}") from None


def print_qualities(qualities: "list[KVQuality]", memory: int) -> None:
    """Args: memory: of the KV cache, in bytes."""
    facts = [quality_object(quality, qualities, memory) for quality in qualities]
    print_table(COLUMNS, [_cells(each) for each in facts])
    fit = ", ".join(f"{each['kv_cache_dtype']} {each['tokens_that_fit']:,}" for each in facts)
    print(f"\n{wrapped(f'Tokens that fit into {num_bytes(memory)} of KV cache: {fit}.')}")
    for each in facts:
        if depths := each["missed_depths"]:
            where = ", ".join(f"{depth:.0%}" for depth in depths)
            print(wrapped(f"With {each['kv_cache_dtype']}, no pass key at {where} of the text."))
    print("\n" + wrapped(f"{qualities[0].num_tokens} tokens. {EXPLANATION}"), flush=True)


def _cells(facts: dict[str, Any]) -> tuple[str, ...]:
    changed, total = facts["num_changed_continuations"], facts["num_continuations"]
    secrets = facts["num_secrets"]
    return (
        facts["kv_cache_dtype"],
        f"{facts['bytes_per_token']:.0f}",
        f"{facts['capacity']:.2f}x",
        f"{facts['divergence']:.5f}",
        f"{facts['same_top']:.1%}",
        f"{facts['perplexity']:.4f}",
        f"{facts['num_recalled']} of {secrets}" if secrets else "-",
        f"{changed} of {total}",
    )
