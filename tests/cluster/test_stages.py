"""A model whose layers several processes compute answers like one process, to the last bit."""

import random
import threading
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from pellucid.backends.base import StepLogits
from pellucid.backends.drawing import DrawTable
from pellucid.backends.ops import ForwardBatch, KVCache
from pellucid.engine import LLMEngine
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.loaded_model import LoadedModel, load_model
from pellucid.outputs import RequestOutput
from pellucid.speculation.proposers.proposer import Proposer
from pellucid.stages.messages import ROWS_TOGETHER, Compute, FromStage, ToStage
from pellucid.stages.part_host import PartHost
from pellucid.stages.staged_decoder import StagedDecoder
from pellucid.stages.staged_model import load_staged_model
from support.checkpoints import FAMILIES, checkpoint_config, text_config, write_checkpoint
from support.fake_model import FakeClock
from support.stages import deep, divisions, stages, write_key
from support.tiny_tokenizer import VOCAB_SIZE
from support.traces import (
    KNOBS_OF_THE_ANSWER,
    TraceSpace,
    check_trace,
    make_trace,
    with_room_for_groups,
)

PARAMS = SamplingParams(temperature=0.8, seed=3, max_tokens=8, logprobs=2, ignore_eos=True)
# With keys that layers share, windows, recurrent states, experts, and one group of layers.
TRACED_FAMILIES = ("llama", "gemma4", "gemma3", "lfm2", "qwen3.5-moe")


def write_deep(directory: Path, family: str) -> Path:
    overrides = deep(text_config(checkpoint_config(family)))
    return write_checkpoint(directory, family, config_overrides=overrides)


def answers(engine: LLMEngine, prompts: list[list[int]], params: SamplingParams) -> list[object]:
    outputs: list[RequestOutput] = [engine.add_request(prompt, params) for prompt in prompts]
    while engine.has_unfinished_requests:
        engine.step()
    assert all(output.outputs[0].finish_reason == "length" for output in outputs), outputs
    return [(each.outputs[0].token_ids, each.outputs[0].logprobs) for each in outputs]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family(family: str, tmp_path: Path) -> None:
    """With two and three stages, at random cuts: prompts at once, and again from the prefix cache."""
    model = write_deep(tmp_path / "model", family)
    key, rng = write_key(tmp_path), random.Random(family)
    text = [rng.randrange(3, 300) for _ in range(75)]
    prompts = [text[:24], text[:33], text, text[:32]]  # each begins another
    settings = dict(model=str(model), backend="cpu", num_threads=1, block_size=16)
    whole = LLMEngine.from_config(EngineConfig(**settings))
    expected = answers(whole, prompts, PARAMS)
    for num_parts in (2, 3):
        num_layers = rng.choice(divisions(whole.model_config, num_parts))
        with stages(model, num_layers) as addresses:
            config = EngineConfig(**settings, stages=addresses, stages_key=key)
            engine = LLMEngine.from_config(config)
            assert engine.identity == whole.identity
            for _ in range(2):
                assert answers(engine, prompts, PARAMS) == expected, addresses
            engine.close()


@pytest.mark.parametrize("backend", ["numpy", "cpu"])
@pytest.mark.parametrize("family", ["llama", "gemma4", "qwen3.5"])
def test_steps_in_pieces(family: str, backend: str, tmp_path: Path) -> None:
    """Prompts of more rows than travel together, in one step, with log-probabilities of the prompt."""
    overrides = deep(text_config(checkpoint_config(family))) | {"max_position_embeddings": 1024}
    model = write_checkpoint(tmp_path / "model", family, config_overrides=overrides)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(3, 300, length).tolist() for length in (700, 300, 411)]
    assert sum(map(len, prompts)) > 2 * ROWS_TOGETHER
    params = SamplingParams(
        temperature=0.0, max_tokens=2, logprobs=1, prompt_logprobs=1, ignore_eos=True
    )
    settings = dict(model=str(model), backend=backend, num_threads=1)

    def all_of(engine: LLMEngine) -> list[object]:
        outputs = [engine.add_request(prompt, params) for prompt in prompts]
        while engine.has_unfinished_requests:
            engine.step()
        return [(each.outputs, each.prompt_logprobs) for each in outputs]

    whole = LLMEngine.from_config(EngineConfig(**settings))
    with stages(model, divisions(whole.model_config, 3)[-1]) as addresses:
        config = EngineConfig(**settings, stages=addresses, stages_key=write_key(tmp_path))
        engine = LLMEngine.from_config(config)
        assert all_of(engine) == all_of(whole)
        engine.close()


class Meeting:
    """Machines that decode meet once, each in the middle of a step: all wait there for all others.

    Args:
        engine: on stages; it decodes as many requests as there are machines, and each is a step of its own.
    """

    def __init__(self, engine: LLMEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        assert isinstance(engine.model.decoder, StagedDecoder)
        self._own = engine.model.decoder._own
        num_machines = engine.model.decoder.num_machines
        self._barrier = threading.Barrier(num_machines, timeout=120)
        self._lock = threading.Lock()
        # The first machine meets the others in its last step, the last one in its first.
        self._num_before: dict[int, int] = {}
        self._numbers = iter(range(num_machines - 1, 0, -1))
        self._answer, self._step = PartHost.answer, self._own.step
        monkeypatch.setattr(PartHost, "answer", lambda host, message: self.of_stage(host, message))
        monkeypatch.setattr(self._own, "step", self.of_engine)

    def of_stage(self, host: PartHost, message: ToStage) -> FromStage:
        if isinstance(message, Compute):
            with self._lock:
                if id(host) not in self._num_before:  # the first step comes to the stages in order
                    self._num_before[id(host)] = next(self._numbers)
                self._num_before[id(host)] -= 1
                meets = self._num_before[id(host)] == -1
            if meets:
                self._barrier.wait()
        return self._answer(host, message)

    def of_engine(
        self, batch: ForwardBatch, kv_cache: KVCache, draws: DrawTable | None = None
    ) -> StepLogits:
        assert batch.received is not None
        batch.received[0:]  # waits for the rows
        if not self.has_taken_place:
            self._barrier.wait()
            self.has_taken_place = True
        return self._step(batch, kv_cache, draws)

    has_taken_place = False


@pytest.mark.parametrize("num_parts", [2, 3])
def test_all_machines_decode_at_the_same_time(
    num_parts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of different requests: as many as there are machines. The answers are those of one process."""
    model, key = write_deep(tmp_path / "model", "llama"), write_key(tmp_path)
    settings = dict(model=str(model), backend="cpu", num_threads=1, speculation="off")
    whole = LLMEngine.from_config(EngineConfig(**settings))
    prompts = [[5 + number] * 9 for number in range(num_parts)]
    expected = answers(whole, prompts, PARAMS)
    with stages(model, divisions(whole.model_config, num_parts)[0]) as addresses:
        engine = LLMEngine.from_config(EngineConfig(**settings, stages=addresses, stages_key=key))
        outputs = [engine.add_request(prompt, PARAMS) for prompt in prompts]
        engine.step()
        assert all(output.outputs[0].token_ids for output in outputs)  # one step had all prompts
        meeting = Meeting(engine, monkeypatch)
        while engine.has_unfinished_requests:
            engine.step()
        assert meeting.has_taken_place
        found = [(each.outputs[0].token_ids, each.outputs[0].logprobs) for each in outputs]
        assert found == expected
        engine.close()


@pytest.mark.traces(15)
def test_random_traces(trace_seeds: list[int], tmp_path: Path) -> None:
    """Arrivals, aborts, preemption, prefix stores, drafts, beams and faults."""
    key, rng = write_key(tmp_path), random.Random(trace_seeds[0])
    paths = {family: write_deep(tmp_path / family, family) for family in TRACED_FAMILIES}

    def settings(family: str) -> dict[str, object]:
        return dict(model=str(paths[family]), backend="cpu", num_threads=1)

    wholes = {family: load_model(EngineConfig(**settings(family))) for family in TRACED_FAMILIES}
    space = TraceSpace(
        vocab_size=VOCAB_SIZE,
        stops=["a", "e", "t", " ", "th", "the", "\n"],
        block_bytes=256 << 10,
        knobs={
            "kv_cache_dtype": ["bf16", "f32", "int8", "int8,int4", "int4"],
            "speculation": ["off", "auto", "ngram"],
        },
        prefix_store=str(tmp_path / "blocks"),
    )
    counts: Counter[str] = Counter()
    for seed in trace_seeds:
        family = TRACED_FAMILIES[seed % len(TRACED_FAMILIES)]
        whole = wholes[family]
        num_layers = rng.choice(divisions(whole.config, rng.choice([2, 3])))
        with stages(paths[family], num_layers) as addresses:
            staged = dict(**settings(family), stages=addresses, stages_key=key)
            make_engine = partial(_make_engine, whole, staged)
            counts += check_trace(make_trace(seed, space), make_engine)
    print(dict(counts))
    assert counts["loaded"] and counts["copied"] and counts["preempted"]


def _make_engine(
    whole: LoadedModel,
    staged: Mapping[str, object],
    knobs: Mapping[str, object],
    clock: FakeClock,
    proposer: Proposer | None,
) -> LLMEngine:
    """The engine of a trace on stages; those that a request has for itself in one process."""
    if set(knobs) <= {*KNOBS_OF_THE_ANSWER, "enable_prefix_caching"}:
        return LLMEngine(EngineConfig(**knobs), whole, clock)
    config = EngineConfig(**with_room_for_groups(knobs, whole.config), **staged)
    return LLMEngine(config, load_staged_model(config), clock, proposer=proposer)
