"""Failures end the request that they belong to, with a reason; the engine and other requests go on."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from pellucid.backends.base import BlocksLostError
from pellucid.backends.ops import ForwardBatch, HostArray, KVCache
from pellucid.engine import LLMEngine
from pellucid.execution.sampler import SampledToken, SamplingRow
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.observing.events import EventRecord, RequestStateChanged
from pellucid.outputs import CompletionDelta, RequestOutput
from support.fake_model import (
    FakeClock,
    FakeDecoder,
    FakeTokenizer,
    fake_engine,
    step_without_moves,
)

PARAMS = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


def run(engine: LLMEngine) -> list[CompletionDelta]:
    deltas = []
    while engine.has_unfinished_requests:
        deltas += engine.step()
        engine.scheduler.check_integrity()
    pool = engine.scheduler.kv_cache_manager.block_pool
    assert pool.num_free_blocks == pool.num_blocks
    return deltas


def answer(prompt: list[int]) -> list[int]:
    """What a request gives when nothing goes wrong."""
    engine = fake_engine()
    output = engine.add_request(prompt, PARAMS)
    run(engine)
    return output.outputs[0].token_ids


def check_failed(output: RequestOutput, reason: str) -> None:
    assert output.finished and output.ledger is not None
    for completion in output.outputs:
        assert (completion.finish_reason, completion.stop_reason) == ("error", reason)


def check_fine(output: RequestOutput) -> None:
    assert output.outputs[0].finish_reason == "length"
    assert output.outputs[0].token_ids == answer(output.prompt_token_ids)


def explode(*arguments: object) -> str:
    raise RuntimeError("poisoned")


def test_a_sampler_that_fails_on_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = fake_engine()
    outputs = [engine.add_request([index] * 9, PARAMS) for index in (1, 2, 3)]
    sample = engine.model_runner.sampler.sample

    def poisoned(logits: HostArray, row: SamplingRow, drawn: int | None) -> SampledToken:
        if row.prompt_token_ids[0] == 2 and len(row.output_token_ids) == 4:
            explode()
        return sample(logits, row, drawn)

    monkeypatch.setattr(engine.model_runner.sampler, "sample", poisoned)
    deltas = run(engine)
    check_failed(outputs[1], "RuntimeError: poisoned")
    assert outputs[1].outputs[0].token_ids == answer([2] * 9)[:4]
    check_fine(outputs[0])
    check_fine(outputs[2])
    ends = [delta for delta in deltas if delta.finish_reason == "error"]
    assert [delta.request_id for delta in ends] == [outputs[1].request_id]


@pytest.mark.parametrize("method", ["push", "flush"])
@pytest.mark.parametrize("part", ["detokenizer", "stop_strings"])
def test_text_that_cannot_be_made(part: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = fake_engine()
    params = replace(PARAMS, stop="\N{SNOWMAN}")
    outputs = [engine.add_request([index] * 9, params) for index in (1, 2)]
    engine.step()
    poisoned = engine._completions.unfinished[f"{outputs[0].request_id}/0"]
    monkeypatch.setattr(getattr(poisoned, part), method, explode)
    run(engine)
    check_failed(outputs[0], "RuntimeError: poisoned")
    check_fine(outputs[1])


def test_text_that_cannot_be_closed_when_the_caller_gives_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = fake_engine()
    output = engine.add_request([1] * 9, PARAMS)
    engine.step()
    answer_ = engine._completions.unfinished[f"{output.request_id}/0"]
    monkeypatch.setattr(answer_.detokenizer, "flush", explode)
    (delta,) = engine.abort(output.request_id)
    assert delta.finish_reason == "error"
    check_failed(output, "RuntimeError: poisoned")
    run(engine)


def test_logits_that_are_not_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = fake_engine()
    outputs = [engine.add_request([index] * 9, PARAMS) for index in (1, 2)]
    decoder = engine.model_runner.decoder
    assert isinstance(decoder, FakeDecoder)
    forward = decoder.forward

    def poisoned(batch: ForwardBatch, kv_cache: KVCache) -> HostArray:
        logits = forward(batch, kv_cache)
        if batch.seq_lens[0] == 12:
            logits[0, 3] = np.nan
        return logits

    monkeypatch.setattr(decoder, "forward", poisoned)
    run(engine)
    assert outputs[0].outputs[0].finish_reason == "error"
    assert "define no distribution" in str(outputs[0].outputs[0].stop_reason)
    check_fine(outputs[1])


@pytest.mark.parametrize("failing_call", [0, 2])
def test_a_forward_that_fails_ends_the_requests_of_that_step_only(
    failing_call: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = fake_engine(max_num_seqs=4, max_num_batched_tokens=32)
    decoder = engine.model_runner.decoder
    assert isinstance(decoder, FakeDecoder)
    forward = decoder.forward
    num_calls = 0

    def poisoned(batch: ForwardBatch, kv_cache: KVCache) -> HostArray:
        nonlocal num_calls
        num_calls += 1
        if num_calls == failing_call + 1:
            kv_cache.token_ids[batch.slot_mapping[0]] = 31  # half written
            raise MemoryError("no room for the step")
        return forward(batch, kv_cache)

    monkeypatch.setattr(decoder, "forward", poisoned)
    several = engine.add_request([1] * 8, SamplingParams(n=2, max_tokens=12, ignore_eos=True))
    alone = engine.add_request([2] * 8, PARAMS)
    for _ in range(failing_call + 1):
        engine.step()
        engine.scheduler.check_integrity()
    check_failed(alone, "MemoryError: no room for the step")
    assert several.outputs[0].finish_reason == "error"
    assert "MemoryError" in caplog.text
    again = engine.add_request([2] * 8, PARAMS)
    run(engine)
    check_fine(again)
    assert several.finished


def test_a_plan_of_admission_that_cannot_be_kept_ends_its_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody frees the blocks that the second request needs, though it is told that it has them."""
    engine = fake_engine(context_length=48, num_kv_blocks=3, block_size=16)
    monkeypatch.setattr(engine.scheduler._preemption, "victims_to_admit", lambda *_: [])
    first, second = (engine.add_request([index] * 30, PARAMS) for index in (1, 2))
    run(engine)
    check_failed(second, "fewer blocks are free than the request's admission needs")
    check_fine(first)
    third = engine.add_request([3] * 30, PARAMS)
    run(engine)
    check_fine(third)


def test_blocks_that_cannot_be_moved_in_the_step_whose_plan_cannot_be_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = fake_engine(context_length=48, num_kv_blocks=3, block_size=16)
    monkeypatch.setattr(engine.scheduler._preemption, "victims_to_admit", lambda *_: [])
    first, second = (engine.add_request([index] * 30, PARAMS) for index in (1, 2))
    step_without_moves(engine)
    check_failed(first, "RuntimeError: poisoned")
    check_failed(second, "fewer blocks are free than the request's admission needs")
    check_fine_after(engine)


def test_blocks_that_cannot_be_moved() -> None:
    engine = fake_engine(max_num_seqs=2, block_size=16)
    running = [engine.add_request([index] * 40, PARAMS) for index in (1, 2)]
    waiting = engine.add_request([3] * 40, PARAMS)
    engine.step()
    step_without_moves(engine)
    engine.scheduler.check_integrity()
    for output in running:
        check_failed(output, "RuntimeError: poisoned")
    again = engine.add_request([1] * 40, PARAMS)
    run(engine)
    check_fine(waiting)
    check_fine(again)
    assert again.num_cached_tokens == 0


@pytest.mark.parametrize("is_running", [False, True])
def test_a_machine_that_is_lost_takes_its_part_of_all_blocks_with_it(is_running: bool) -> None:
    engine, losses = fake_engine(block_size=16), [None]
    engine._core.elsewhere = SimpleNamespace(take_loss=losses.pop)
    output = engine.add_request([1] * 40, PARAMS)
    for _ in range(2 if is_running else 12):
        losses.append(None)
        engine.step()
    assert output.finished != is_running
    losses.append(BlocksLostError("the second machine is gone"))
    if is_running:
        engine.step()
        check_failed(output, "BlocksLostError: the second machine is gone")
    again = engine.add_request([1] * 40, PARAMS)
    losses[:0] = [None] * 12
    run(engine)
    check_fine(again)
    assert again.num_cached_tokens == 0


def test_blocks_that_cannot_be_moved_in_the_step_in_which_a_request_times_out() -> None:
    clock = FakeClock()
    engine = fake_engine(clock=clock)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, max_time=2.0)
    late, other = engine.add_request([1] * 9, params), engine.add_request([2] * 9, PARAMS)
    engine.step()
    clock.now = 3.0
    deltas = step_without_moves(engine)
    assert len(deltas) == 2
    assert (late.outputs[0].finish_reason, late.outputs[0].stop_reason) == ("length", "max_time")
    check_failed(other, "RuntimeError: poisoned")
    check_fine_after(engine)


@pytest.mark.parametrize("n", [2, 3])
def test_blocks_that_cannot_be_moved_in_the_step_that_completes_the_prompt_of_several(
    n: int,
) -> None:
    """The completion that computes the prompt fails; those that waited for it compute it anew."""
    engine = fake_engine(max_num_batched_tokens=8)
    params = SamplingParams(n=n, max_tokens=5, ignore_eos=True, seed=3)
    output = engine.add_request([1] * 12, params)
    engine.step()
    step_without_moves(engine)
    run(engine)
    alone = fake_engine()
    expected = alone.add_request([1] * 12, params)
    run(alone)
    assert output.outputs[0].finish_reason == "error"
    assert output.outputs[1:] == expected.outputs[1:]
    check_fine_after(engine)


def check_fine_after(engine: LLMEngine) -> None:
    again = engine.add_request([2] * 9, PARAMS)
    run(engine)
    check_fine(again)


def test_a_stop_string_in_the_last_token_is_the_reason_for_output_and_events() -> None:
    """Also where the token ends the request by itself."""
    alone = answer([1] * 9)
    last = FakeTokenizer.alphabet[alone[-1]]
    engine = fake_engine()
    records: list[EventRecord] = []
    engine.events.subscribe(records.append)
    params = SamplingParams(
        temperature=0, max_tokens=12, ignore_eos=True, stop=[last], min_tokens=11
    )
    output = engine.add_request([1] * 9, params)
    run(engine)
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", last)
    changes = [r.event for r in records if isinstance(r.event, RequestStateChanged)]
    assert (changes[-1].finish, changes[-1].reason) == ("stop", "stop")
