"""Random traces on native kernels and the bundled model: the same answers, to the last bit."""

import faulthandler
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from pellucid import loaded_model
from pellucid.backends.cpu.backend import CpuBackend
from pellucid.engine import LLMEngine
from pellucid.inputs.config import EngineConfig
from pellucid.loaded_model import LoadedModel, load_draft_model, load_model
from pellucid.speculation.proposers.proposer import Proposer
from support.checkpoints import write_checkpoint
from support.fake_model import FakeClock
from support.tiny_tokenizer import VOCAB_SIZE
from support.traces import TraceSpace, check_trace, make_trace, with_room_for_groups

KNOBS = {
    "kv_cache_dtype": ["bf16", "f32", "int8", "int8,int4", "int4"],
    "quantization": ["none", "int8", "int4"],
    "speculation": ["off", "auto", "ngram", "draft", "draft"],  # alone: off
}

# Seconds in which a trace ends on the most crowded machine: what takes longer hangs.
HANGS_AFTER = 300


@dataclass(frozen=True)
class ModelAndDraft:
    """A model and the one that drafts for it, on one backend."""

    model: LoadedModel
    draft: LoadedModel


class Models:
    """The bundled models in every quantization, on every number of threads; each loaded once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self._models: dict[tuple[object, object], ModelAndDraft] = {}

    def get(self, quantization: object = "none", num_threads: object = 1) -> ModelAndDraft:
        key = (quantization, num_threads)
        if key not in self._models:
            with self._monkeypatch.context() as patch:
                # Threads take part in every step, however small.
                backend = CpuBackend(num_threads, small_step_bytes=0)
                patch.setattr(loaded_model, "make_backend", lambda *_: backend)
                config = EngineConfig(quantization=quantization, speculation="draft")
                model = load_model(config)
                self._models[key] = ModelAndDraft(model, load_draft_model(config, model))
        return self._models[key]


@pytest.mark.traces(15)
def test_every_request_gets_what_it_gets_alone(
    trace_seeds: Iterable[int],
    trace_threads: list[int],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Alone is on one thread. A hang ends the tests, with what every thread was doing."""
    models = Models(monkeypatch)
    model = models.get().model
    space = TraceSpace(
        vocab_size=model.config.vocab_size,
        stops=["a", " the", "e", ".", "\n", " was"],
        block_bytes=model.backend.kv_bytes_per_block(model.config, 32, "f32"),
        knobs={**KNOBS, "num_threads": trace_threads},
        prefix_store=str(tmp_path / "blocks"),
    )

    def make_engine(
        knobs: Mapping[str, object], clock: FakeClock, proposer: Proposer | None
    ) -> LLMEngine:
        chosen = models.get(knobs.get("quantization", "none"), knobs.get("num_threads", 1))
        draft = chosen.draft if knobs.get("speculation") in ("auto", "draft") else None
        config = EngineConfig(**knobs)
        return LLMEngine(config, chosen.model, clock, proposer=proposer, draft=draft)

    counts: Counter[str] = Counter()
    for seed in trace_seeds:
        faulthandler.dump_traceback_later(HANGS_AFTER, exit=True)
        counts += check_trace(make_trace(seed, space), make_engine, resumes=seed % 2 == 0)
    faulthandler.cancel_dump_traceback_later()
    print(dict(counts))


@pytest.mark.traces(4)
@pytest.mark.parametrize(
    "family", ["qwen3-moe", "gpt-oss", "gemma3", "gemma4", "gemma4-moe", "lfm2-moe", "qwen3.5"]
)
def test_tiny_models_with_mechanisms_of_their_own(
    family: str, trace_seeds: Iterable[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Experts, whose choice a step's tokens decide, sinks, blocks that are freed behind windows, groups of layers
    with heads of different shapes, keys and values that layers share, and recurrent states: an answer does not
    depend on the step."""
    directory = write_checkpoint(tmp_path / family, family)
    models: dict[object, LoadedModel] = {}
    for num_threads in (1, 3):
        with monkeypatch.context() as patch:
            backend = CpuBackend(num_threads, small_step_bytes=0)
            patch.setattr(loaded_model, "make_backend", lambda *_, own=backend: own)
            models[num_threads] = load_model(EngineConfig(model=str(directory)))
    space = TraceSpace(
        vocab_size=VOCAB_SIZE,
        stops=["a", "e", "t", " ", "th", "the", "\n"],
        block_bytes=64 << 10,
        knobs={"kv_cache_dtype": ["bf16", "f32", "int8", "int4"], "num_threads": [1, 3]},
        prefix_store=str(tmp_path / "blocks"),
    )

    def make_engine(
        knobs: Mapping[str, object], clock: FakeClock, proposer: Proposer | None
    ) -> LLMEngine:
        model = models[knobs.get("num_threads", 1)]
        config = EngineConfig(**with_room_for_groups(knobs, model.config))
        return LLMEngine(config, model, clock, proposer=proposer)

    for seed in trace_seeds:
        check_trace(make_trace(seed, space), make_engine, resumes=seed % 2 == 0)
