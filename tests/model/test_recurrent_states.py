"""Recurrent states through the whole engine: heads that prompts share, restarts, the swap file and drafts."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pellucid.engine import LLMEngine
from pellucid.execution.state_pieces import join_pieces, split_state
from pellucid.facts.formulas import state_bytes
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.loaded_model import LoadedModel, load_draft_model, load_model
from pellucid.memory import engine_plan
from pellucid.observing.events import BlockOps, EventRecord, Hello, Level, PrefixMatched, StateOps
from pellucid.outputs import RequestOutput
from pellucid.scheduling.block_ops import BlockOp, Copy, SlotKind
from pellucid.scheduling.request import Request
from support.checkpoints import Weights, write_checkpoint
from support.traces import ScriptedProposer

BLOCK_SIZE = 16
PARAMS = SamplingParams(temperature=0.8, seed=3, max_tokens=20, logprobs=2, ignore_eos=True)
RNG = np.random.default_rng(0)
HEAD = RNG.integers(3, 300, 70).tolist()
PROMPTS = [[*HEAD, *RNG.integers(3, 300, 30).tolist()] for _ in range(3)]


@pytest.fixture(params=[("cpu", "qwen3.5"), ("numpy", "lfm2")], ids=" ".join)
def model(request: pytest.FixtureRequest, tmp_path: Path) -> LoadedModel:
    backend, family = request.param
    directory = write_checkpoint(tmp_path / "model", family)
    return load_model(EngineConfig(model=str(directory), backend=backend))


def engine(model: LoadedModel, **knobs: object) -> LLMEngine:
    knobs = {"speculation": "off", "block_size": BLOCK_SIZE, **knobs}
    return LLMEngine(EngineConfig(**knobs), model)


def generate(engine: LLMEngine, prompts: Sequence[list[int]]) -> list[RequestOutput]:
    """All at once."""
    outputs = [engine.add_request(prompt, PARAMS) for prompt in prompts]
    while engine.has_unfinished_requests:
        engine.step()
        engine.scheduler.check_integrity()
    return outputs


def answers(outputs: Sequence[RequestOutput]) -> list[object]:
    return [output.outputs for output in outputs]


def alone(model: LoadedModel, prompts: Sequence[list[int]]) -> list[object]:
    """What an engine without any reuse answers."""
    return answers(
        [generate(engine(model, enable_prefix_caching=False), [prompt])[0] for prompt in prompts]
    )


def test_the_third_prompt_with_a_head_goes_on_behind_it(model: LoadedModel) -> None:
    running = engine(model)
    records: list[EventRecord] = []
    running.events.subscribe(records.append, Level.STEP)
    (hello,) = (record.event for record in records if isinstance(record.event, Hello))
    kinds = ["full" if each.attention else "recurrent" for each in model.config.layers]
    assert [*hello.model.layer_kinds] == kinds and len({*kinds}) == 2
    outputs = [generate(running, [prompt])[0] for prompt in PROMPTS]
    assert answers(outputs) == alone(model, PROMPTS)
    assert [output.num_cached_tokens for output in outputs] == [0, 0, 64]
    events = [record.event for record in records]
    matches = [event for event in events if isinstance(event, PrefixMatched)]
    assert [event.miss_why for event in matches] == ["never_seen", "recurrent", "differs"]
    assert [event.snapshot_at_tok for event in matches] == [None, 64, None]
    rows = [row for event in events if isinstance(event, StateOps) for row in event.ops]
    prompt_rows = [row for row in rows if row[0] == "U" or (row[3] or 0) <= 96]
    taken = [row[3] for row in prompt_rows if row[0] == "T"]
    assert taken == [96, 64, 96, 96]
    assert [row[2:] for row in prompt_rows if row[0] == "U"] == [(outputs[2].request_id + "/0", 64)]


def test_a_restarted_engine_goes_on_from_a_snapshot_on_disk(
    model: LoadedModel, tmp_path: Path
) -> None:
    expected = alone(model, PROMPTS[:1])
    cached = []
    for _ in range(2):
        running = engine(model, prefix_store=str(tmp_path / "cache"))
        outputs = generate(running, PROMPTS[:1])
        assert answers(outputs) == expected
        cached.append(outputs[0].num_cached_tokens)
        running.close()
    assert cached == [0, 96]

    # The answer goes on from the latest snapshot of its output, in another process too.
    longer = [*PROMPTS[0], *outputs[0].outputs[0].token_ids, 5]
    running = engine(model, prefix_store=str(tmp_path / "cache"))
    outputs = generate(running, [longer])
    assert answers(outputs) == alone(model, [longer])
    assert outputs[0].num_cached_tokens == 112
    running.close()


def test_damaged_files_cost_time_and_nothing_else(model: LoadedModel, tmp_path: Path) -> None:
    expected = alone(model, PROMPTS[:1])
    running = engine(model, prefix_store=str(tmp_path / "cache"))
    generate(running, PROMPTS[:1])
    running.close()
    for path in (tmp_path / "cache").rglob("*.kv"):
        data = bytearray(path.read_bytes())
        data[-40] ^= 1
        path.write_bytes(data)
    running = engine(model, prefix_store=str(tmp_path / "cache"))
    outputs = generate(running, PROMPTS[:1])
    assert answers(outputs) == expected
    assert outputs[0].num_cached_tokens == 0
    running.close()


def test_a_snapshot_that_could_not_be_copied_is_found_by_nobody(
    model: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = alone(model, PROMPTS[:1])
    running = engine(model, prefix_store=str(tmp_path / "cache"))
    transfer, failures = running.model_runner.transfer, [OSError("injected")]

    def fail_once(ops: Sequence[BlockOp]) -> None:
        if failures and any(_copies_states(op) for op in ops):
            raise failures.pop()
        transfer(ops)

    monkeypatch.setattr(running.model_runner, "transfer", fail_once)
    failed = generate(running, PROMPTS[:1])
    assert failed[0].outputs[0].finish_reason == "error"
    outputs = generate(running, PROMPTS[:1])
    assert answers(outputs) == expected
    assert outputs[0].num_cached_tokens == 0
    running.close()
    restarted = engine(model, prefix_store=str(tmp_path / "cache"))
    assert answers(generate(restarted, PROMPTS[:1])) == expected
    restarted.close()


def test_preempted_requests_come_back_from_the_swap_file(model: LoadedModel) -> None:
    knobs = {"max_model_len": 128, "num_kv_blocks": 9, "enable_prefix_caching": False}
    running = engine(model, swap_space=8 << 20, **knobs)
    records: list[EventRecord] = []
    running.events.subscribe(records.append, Level.STEP)
    prompts = [PROMPTS[0][:50], PROMPTS[1][:70]]
    outputs = generate(running, prompts)
    assert answers(outputs) == alone(model, prompts)
    assert [output.metrics.num_preemptions for output in outputs] == [0, 1]
    rows = [row for each in records if isinstance(each.event, BlockOps) for row in each.event.ops]
    assert any(row[0] == "I" for row in rows)
    # Nothing is computed twice.
    assert all(output.ledger.num_recomputed_tokens == 0 for output in outputs)


def test_drafts_change_nothing(model: LoadedModel) -> None:
    expected = alone(model, PROMPTS)
    proposer = ScriptedProposer(0, model.config.vocab_size)
    running = LLMEngine(EngineConfig(block_size=BLOCK_SIZE), model, proposer=proposer)
    for index, (completion,) in enumerate(expected):
        proposer.expected[f"request-{index}/0"] = list(completion.token_ids)
    assert answers(generate(running, PROMPTS)) == expected
    assert running.speculation.num_drafts > running.speculation.num_right > 0


def test_states_are_moved_bit_for_bit(model: LoadedModel) -> None:
    running = engine(model, max_num_seqs=3)
    generate(running, PROMPTS[:2])
    cache = running.model_runner.kv_cache
    data = cache.read_state(0)
    assert data.any() and len(data) == cache.bytes_per_state
    pieces = split_state(data, 100)
    assert {len(piece) for piece in pieces} == {100}
    cache.write_state(2, join_pieces(pieces, cache.bytes_per_state))
    assert (cache.read_state(2) == data).all()
    cache.copy_state(1, 2)
    assert (cache.read_state(2) == cache.read_state(1)).all()
    assert (cache.read_state(0) == data).all()


def disturb(weights: Weights) -> None:
    """A model that is often of another opinion."""
    rng = np.random.default_rng(1)
    for tensor in weights.values():
        if tensor.ndim == 2:
            tensor += (0.05 * tensor.std() * rng.normal(size=tensor.shape)).astype(tensor.dtype)


@pytest.mark.parametrize(("backend", "family"), [("cpu", "qwen3.5"), ("numpy", "lfm2")])
@pytest.mark.parametrize("num_slots", [3, 1])
def test_a_draft_model_with_states_goes_on_behind_wrong_drafts(
    backend: str, family: str, num_slots: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its drafts are what it says behind the text so far, whatever drafts it has computed before."""
    write_checkpoint(tmp_path / "model", family)
    write_checkpoint(tmp_path / "draft", family, edit_weights=disturb)
    knobs = {"speculation": "draft", "num_draft_tokens": 4, "max_num_batched_tokens": 40}
    config = EngineConfig(
        model=str(tmp_path / "model"), draft_model=str(tmp_path / "draft"), backend=backend, **knobs
    )
    model = load_model(config)
    draft = load_draft_model(config, model)
    assert draft is not None and draft.config.states
    monkeypatch.setattr(engine_plan, "MAX_SPARE_BYTES", num_slots * state_bytes(draft.config))
    running = LLMEngine(replace(config, max_num_seqs=3), model, draft=draft)
    rounds: list[tuple[list[int], list[int]]] = []  # a text, and its drafts
    proposer = running._core.speculation._proposer
    propose = proposer.propose

    def record(requests: Sequence[Request], most: Mapping[str, int]) -> Mapping[str, Sequence[int]]:
        drafts = propose(requests, most)
        texts = {request.request_id: request.token_ids(0, 999) for request in requests}
        rounds.extend((list(texts[name]), list(own)) for name, own in drafts.items() if own)
        return drafts

    monkeypatch.setattr(proposer, "propose", record)
    greedy = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    outputs = [running.add_request(prompt, greedy) for prompt in PROMPTS]
    while running.has_unfinished_requests:
        running.step()
    assert running.speculation is not None
    assert 0 < running.speculation.num_right < running.speculation.num_drafts
    plain = engine(model)
    expected = [plain.add_request(prompt, greedy) for prompt in PROMPTS]
    while plain.has_unfinished_requests:
        plain.step()
    assert answers(outputs) == answers(expected)

    fresh = engine(draft, enable_prefix_caching=False)
    for text, drafts in rounds:
        params = replace(greedy, max_tokens=len(drafts))
        output = fresh.add_request(text, params)
        while fresh.has_unfinished_requests:
            fresh.step()
        assert output.outputs[0].token_ids == drafts


def _copies_states(op: BlockOp) -> bool:
    return isinstance(op, Copy) and op.source.kind is SlotKind.STATES
