"""Random traces on native kernels and the bundled model: the same answers, to the last bit."""

from collections import Counter
from pathlib import Path

import pytest

from pellucid import loaded_model
from pellucid.backends.cpu_backend import CpuBackend
from pellucid.config import EngineConfig
from pellucid.engine import LLMEngine
from support.traces import TraceSpace, check_trace, make_trace

KNOBS = {
    "kv_cache_dtype": ["bf16", "f32", "int8", "int4"],
    "num_threads": [1, 2, 3],  # alone: 1
    "speculation": ["off", "auto", "ngram", "draft", "draft"],  # alone: off
}


@pytest.mark.traces(15)
def test_every_request_gets_what_it_gets_alone(
    trace_seeds: range, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    models, drafts = {}, {}
    for num_threads in KNOBS["num_threads"]:
        with monkeypatch.context() as patch:
            # Threads take part in every step, however small.
            backend = CpuBackend(num_threads, small_step_bytes=0)
            patch.setattr(loaded_model, "make_backend", lambda *_, backend=backend: backend)
            models[num_threads] = loaded_model.load_model(EngineConfig())
            drafts[num_threads] = loaded_model.load_draft_model(
                EngineConfig(speculation="draft"), models[num_threads]
            )
    space = TraceSpace(
        vocab_size=models[1].config.vocab_size,
        stops=["a", " the", "e", ".", "\n", " was"],
        block_bytes=models[1].backend.kv_bytes_per_block(models[1].config, 32, "f32"),
        knobs=KNOBS,
        prefix_cache_dir=str(tmp_path / "blocks"),
    )

    counts: Counter[str] = Counter()
    for seed in trace_seeds:
        counts += check_trace(
            make_trace(seed, space),
            lambda knobs, clock, proposer: LLMEngine(
                EngineConfig(**knobs),
                models[knobs.get("num_threads", 1)],
                clock,
                proposer=proposer,
                draft=drafts[knobs.get("num_threads", 1)]
                if knobs.get("speculation") in ("auto", "draft")
                else None,
            ),
        )
    print(dict(counts))
