"""Random traces on tiny models of all kinds of families: the same answers, to the last bit."""

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

import pytest

from pellucid.engine import LLMEngine
from pellucid.inputs.config import EngineConfig
from pellucid.loaded_model import LoadedModel, load_model
from pellucid.speculation.proposers.proposer import Proposer
from support.checkpoints import write_checkpoint
from support.fake_model import FakeClock
from support.tiny_tokenizer import VOCAB_SIZE
from support.traces import NO_DRAFTS, TraceSpace, check_trace, make_trace, with_room_for_groups

# Without a window, with windows, keys that depend on the prompt's length, layers that rotate on bases of
# their own or not at all, norms behind the parts of a layer, keys and values that layers share, experts,
# sinks, recurrent states, and recurrent states beside experts.
FAMILIES = (
    *("llama", "gemma2", "llama-dynamic", "gemma3", "smollm3", "olmo3"),
    *("gemma4", "qwen3-moe", "gpt-oss", "lfm2", "qwen3.5-moe"),
)
# Plain, with recurrent states, with windows, and with padding behind the vocabulary; one tokenizer for all.
DRAFT_FAMILIES = {"llama": {}, "lfm2": {}, "gemma3": {}, "qwen3": {"vocab_size": 352}}


def make_engine(
    model: LoadedModel,
    draft: LoadedModel,
    knobs: Mapping[str, object],
    clock: FakeClock,
    proposer: Proposer | None,
) -> LLMEngine:
    config = EngineConfig(**with_room_for_groups(knobs, model.config))
    used = draft if config.speculation in ("auto", "draft") else None
    return LLMEngine(config, model, clock, proposer=proposer, draft=used)


def check_family_traces(
    backend: str,
    device: str,
    trace_seeds: Iterable[int],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Every request gets what it gets alone.

    Args:
        backend, device: of the engines, as in `EngineConfig`.
    """

    def load(family: str, **overrides: object) -> LoadedModel:
        directory = tmp_path / f"{family} {overrides}"
        write_checkpoint(directory, family, config_overrides=overrides)
        return load_model(EngineConfig(model=str(directory), backend=backend, device=device))

    models = {family: load(family) for family in FAMILIES}
    drafts = [load(family, **overrides) for family, overrides in DRAFT_FAMILIES.items()]

    space = TraceSpace(
        vocab_size=VOCAB_SIZE,
        stops=["a", "e", "t", " ", "th", "the", "\n"],
        block_bytes=64 << 10,
        knobs={
            "kv_cache_dtype": ["bf16", "f32", "int8", "int8,int4", "int4"],
            "speculation": ["off", "auto", "ngram", "draft", "draft"],  # alone: off
        },
        prefix_store=str(tmp_path / "blocks"),
    )
    counts: Counter[str] = Counter()
    for seed in trace_seeds:
        model = models[FAMILIES[seed % len(FAMILIES)]]
        draft = drafts[seed % len(drafts)]
        counts += check_trace(make_trace(seed, space), partial(make_engine, model, draft))
    print(dict(counts))
    failures = [record.exc_info for record in caplog.records if "proposer" in record.message]
    assert all(failure is not None and failure[1].args == NO_DRAFTS for failure in failures)
    if counts["traces"] >= 12:
        assert all(counts[what] > 0 for what in ("cached", "preempted", "abort", "error")), counts
