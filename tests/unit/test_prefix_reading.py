"""Reading prefixes from disk: only the request that needs them waits, not the steps."""

import secrets
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from pellucid.engine import LLMEngine
from pellucid.execution import prefix_store
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.observing.events import EventRecord, Level, RequestStateChanged
from pellucid.outputs import RequestOutput
from support.fake_model import fake_engine
from support.ticking_clock import TICK, TickingClock

PROMPT = [1, 2, 3, 4] * 16
PARAMS = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


@pytest.fixture(autouse=True)
def weights_of_the_fake_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "token_bytes", bytes)


def engine(directory: Path, **knobs: object) -> LLMEngine:
    return fake_engine(block_size=16, prefix_store=str(directory), **knobs)


def run(engine: LLMEngine) -> None:
    while engine.has_unfinished_requests:
        engine.step()
        engine.scheduler.check_integrity()
    assert engine.events.active or engine.events.last_seq == -1


def answered(engine: LLMEngine) -> RequestOutput:
    output = engine.add_request(PROMPT, PARAMS)
    run(engine)
    return output


def fill(directory: Path) -> RequestOutput:
    """Blocks of PROMPT on disk; its completion."""
    first = engine(directory)
    output = answered(first)
    first.close()
    return output


class Gate:
    """Lets no read of a file end before it is opened; until then, steps that would wait for one go on."""

    def __init__(self, engine: LLMEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened, self.threads = threading.Event(), set()
        self.waits: list[float] = []  # seconds for which steps would have waited
        store = engine._core.prefix_store
        find, take = store.find, store.take_read

        def slow_find(*args: object) -> object:
            self.threads.add(threading.current_thread())
            assert self.opened.wait(60)
            return find(*args)

        def take_read(max_seconds: float) -> object:
            self.waits.append(max_seconds)
            return take(max_seconds if self.opened.is_set() else 0.0)

        monkeypatch.setattr(store, "find", slow_find)
        monkeypatch.setattr(store, "take_read", take_read)


def test_others_go_on_while_a_prefix_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = fill(tmp_path)
    again = engine(tmp_path)
    records: list[EventRecord] = []
    again.events.subscribe(records.append, Level.STEP)
    gate = Gate(again, monkeypatch)
    other = again.add_request([9] * 5, SamplingParams(max_tokens=100, ignore_eos=True))
    again.step()
    reading = again.add_request(PROMPT, PARAMS)
    behind = again.add_request([8] * 5, PARAMS)
    for number in range(2, 12):
        again.step()
        again.scheduler.check_integrity()
        assert len(other.outputs[0].token_ids) == number
    assert reading.metrics.first_scheduled_time is None
    assert behind.finished and not any(gate.waits)
    states = [r.event for r in records if isinstance(r.event, RequestStateChanged)]
    assert [s.reason for s in states if s.req == f"{reading.request_id}/0"] == ["reading_prefix"]

    gate.opened.set()
    run(again)
    assert threading.main_thread() not in gate.threads
    assert reading.outputs == expected.outputs
    assert reading.num_cached_tokens == 48
    assert [s.reason for s in states if s.req == f"{reading.request_id}/0"] == ["reading_prefix"]


def test_a_store_is_told_how_long_tokens_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, told = engine(tmp_path, clock=TickingClock()), []
    store = first._core.prefix_store
    monkeypatch.setattr(store, "note_computed", lambda *noted: told.append(noted))
    answered(first)
    assert told == [(64, TICK), *[(1, TICK)] * 5]


def test_blocks_are_saved_in_the_step_that_fills_them(tmp_path: Path) -> None:
    """There may be no other step."""
    first, again = engine(tmp_path), engine(tmp_path)
    first.add_request(PROMPT, SamplingParams(max_tokens=1))
    run(first)
    first.close()
    output = answered(again)
    assert output.num_cached_tokens == 48


def test_a_request_that_reads_can_be_aborted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path)
    again = engine(tmp_path)
    gate = Gate(again, monkeypatch)
    output = again.add_request(PROMPT, PARAMS)
    again.step()
    again.step()
    other = again.add_request([8], SamplingParams(max_tokens=1))
    again.step()
    assert other.finished and [*map(bool, gate.waits)] == [False, True, False]
    again.abort(output.request_id)
    assert output.outputs[0].finish_reason == "abort"
    assert not again.has_unfinished_requests
    gate.opened.set()
    assert answered(again).num_cached_tokens == 48
    assert again.scheduler.kv_cache_manager.offload.reads._reads == {}


def test_blocks_that_cannot_be_moved_let_nobody_wait_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The read was never started."""
    expected = fill(tmp_path)
    again = engine(tmp_path)
    output = again.add_request(PROMPT, PARAMS)
    with monkeypatch.context() as patch:
        patch.setattr(again.model_runner, "transfer", lambda ops: 1 / 0)
        again.step()
    run(again)
    assert output.outputs == expected.outputs


def test_no_step_looks_at_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network drive that does not answer stops the threads of the prefix store alone."""
    running = engine(tmp_path)
    directory, threads = running._core.prefix_store._store, set()

    def watched(ask: Callable[..., object], *args: object) -> object:
        threads.add(threading.current_thread())
        return ask(*args)

    for name in ("has", "read", "write", "path", "remove"):
        monkeypatch.setattr(directory, name, partial(watched, getattr(directory, name)))
    answered(running)
    running.close()
    assert threads and threading.main_thread() not in threads


def test_a_request_that_the_read_limit_refuses_waits_without_spinning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = fill(tmp_path)
    again = engine(tmp_path, max_num_batched_tokens=16, max_num_seqs=1)  # two blocks at a time
    gate = Gate(again, monkeypatch)
    outputs = [again.add_request(PROMPT, PARAMS) for _ in range(2)]
    for _ in range(10):
        again.step()
    assert gate.waits[0] == 0.0 and all(gate.waits[1:])
    gate.opened.set()
    run(again)
    assert [output.outputs for output in outputs] == [expected.outputs] * 2


def test_prompts_are_computed_when_the_disk_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = fill(tmp_path)
    again = engine(tmp_path)
    gate, store, now = Gate(again, monkeypatch), again._core.prefix_store, 0.0
    monkeypatch.setattr(store, "_clock", lambda: now)
    monkeypatch.setattr(store, "_report", (reports := []).append)
    outputs = [again.add_request(PROMPT, PARAMS), again.add_request(PROMPT[:40], PARAMS)]
    while not gate.threads:  # until the disk has been asked
        again.step()
    again.step()
    now = prefix_store.MAX_DISK_SECONDS
    run(again)
    # Others do not wait again before the disk answers.
    outputs.append(again.add_request([5, *PROMPT], PARAMS))
    run(again)
    assert outputs[0].outputs == expected.outputs
    assert [output.num_cached_tokens for output in outputs] == [0, 0, 0]
    assert reports == ["no answer for 10 s: nothing is read until the store answers"]
    gate.opened.set()
    for thread in threading.enumerate():
        if thread.name == "pellucid-prefix-reader":
            thread.join()
    assert not store._is_stuck and not store._is_reading
    assert again.scheduler.kv_cache_manager.offload.reads._reads == {}
