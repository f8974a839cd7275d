"""`LLM` with a fake model: lists of any length, threads, streams, interrupts, progress."""

import io
import random
import signal
import sys
import threading
import time
from dataclasses import replace
from types import FrameType

import numpy as np
import pytest

from pellucid import llm as llm_module
from pellucid.engine.turns import DeferredInterrupt, FairLock
from pellucid.inputs.beam_search_params import BeamSearchParams
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.llm import LLM
from pellucid.outputs import CompletionDelta, RequestOutput
from support.fake_model import fake_engine
from support.refusals import check_refusals


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> LLM:
    engine = fake_engine(max_num_seqs=4, max_num_batched_tokens=32)
    monkeypatch.setattr(llm_module.LLMEngine, "from_config", lambda *_: engine)
    return LLM(max_num_seqs=4)


def alone(prompt: list[int], params: SamplingParams) -> list:
    engine = fake_engine()
    output = engine.add_request(prompt, params)
    while engine.has_unfinished_requests:
        engine.step()
    return output.outputs


def test_a_long_list_is_added_as_places_become_free(llm: LLM) -> None:
    prompts = [[1 + i % 31, 1 + i // 31] for i in range(60)]
    all_params = [SamplingParams(max_tokens=1 + i % 5, seed=i, n=1 + i % 2) for i in range(60)]
    most, step = 0, llm.engine.step

    def watched():
        nonlocal most
        most = max(most, len(llm.engine.unfinished_request_ids))
        return step()

    llm.engine.step = watched
    outputs = llm.generate(prompts, all_params)
    assert [output.prompt_token_ids for output in outputs] == prompts
    for prompt, params, output in zip(prompts, all_params, outputs, strict=True):
        assert output.outputs == alone(prompt, params)
    assert most == 8
    assert not llm.engine.unfinished_request_ids


def test_a_bad_prompt_far_down_the_list_is_refused_before_anything_is_computed(llm: LLM) -> None:
    prompts = [[1, 2]] * 50
    with pytest.raises(ValueError, match=r"prompts\[50\]: is empty"):
        llm.generate([*prompts, []])
    with pytest.raises(ValueError, match="stop_token_ids"):
        llm.generate(prompts, [SamplingParams()] * 49 + [SamplingParams(stop_token_ids=[99])])
    with pytest.raises(ValueError, match="sampling_params: 3 given for 50 prompts"):
        llm.generate(prompts, [SamplingParams()] * 3)
    assert not llm.engine.model_runner.decoder.batches


def test_a_list_that_can_never_fit_is_refused_by_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = fake_engine(context_length=64, num_kv_blocks=4, block_size=16)
    engine.scheduler.kv_cache_manager.fits_alone = lambda num_tokens: num_tokens < 30
    monkeypatch.setattr(llm_module.LLMEngine, "from_config", lambda *_: engine)
    with pytest.raises(ValueError, match=r"prompts\[2\].* needs up to 36 positions"):
        LLM().generate([[1], [1, 2], [3] * 21])
    assert not engine.has_unfinished_requests


def test_interrupted_it_leaves_the_engine_to_others(llm: LLM) -> None:
    step = llm.engine.step

    def interrupted():
        if len(llm.engine.model_runner.decoder.batches) == 3:
            raise KeyboardInterrupt
        return step()

    with llm.stream([5, 6], SamplingParams(max_tokens=30, seed=1, ignore_eos=True)) as stream:
        llm.engine.step = interrupted
        with pytest.raises(KeyboardInterrupt):
            llm.generate([[1, 2]] * 50)
        llm.engine.step = step
        assert list(llm.engine.unfinished_request_ids) == [stream.output.request_id]
        tokens = [token_id for delta in stream for token_id in delta.token_ids]
    assert tokens == stream.output.outputs[0].token_ids
    assert len(tokens) == 30


@pytest.mark.parametrize(
    ("screen", "options", "is_shown"),
    [(Terminal(), {}, True), (io.StringIO(), {}, False), (Terminal(), {"use_tqdm": False}, False)],
)
def test_progress_on_a_terminal(
    llm: LLM,
    monkeypatch: pytest.MonkeyPatch,
    screen: io.StringIO,
    options: dict[str, bool],
    is_shown: bool,
) -> None:
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("pellucid.progress.BAR_DELAY", 0.0)
    monkeypatch.setattr("pellucid.progress.FIRST_LINE", 3600.0)
    llm.generate([[1, 2]] * 30, SamplingParams(max_tokens=5), **options)
    assert ("of 30 prompts" in screen.getvalue()) == is_shown
    assert is_shown or screen.getvalue() == ""


def test_progress_where_nothing_can_be_drawn_is_lines(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pellucid.progress.FIRST_LINE", 0.0)
    monkeypatch.setattr("pellucid.progress.LINE_INTERVAL", 0.0)
    llm.generate([[1, 2]] * 9, SamplingParams(max_tokens=3), use_tqdm=True)
    assert capsys.readouterr().err.splitlines()[-1].startswith("generate: 9 of 9 prompts, ")


def test_answers_that_are_ranked_cannot_be_streamed(llm: LLM) -> None:
    with pytest.raises(ValueError, match="best_of=4: a stream allows at most n=2"):
        llm.stream("abc", SamplingParams(n=2, best_of=4))


def test_threads_share_one_engine(llm: LLM) -> None:
    prompts = [[[1 + thread, 1 + i] for i in range(10)] for thread in range(4)]
    params = SamplingParams(max_tokens=6, seed=3)
    outputs: dict[int, list] = {}

    def generate(thread: int) -> None:
        outputs[thread] = llm.generate(prompts[thread], params)

    threads = [threading.Thread(target=generate, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    streamed = [delta for _ in range(5) for delta in llm.stream([9, 9], params)]
    for thread in threads:
        thread.join(timeout=120)
    assert sorted(outputs) == [0, 1, 2, 3]
    for thread, own in outputs.items():
        for prompt, output in zip(prompts[thread], own, strict=True):
            assert output.outputs == alone(prompt, params)
    [expected] = alone([9, 9], params)
    assert [token_id for delta in streamed for token_id in delta.token_ids] == (
        expected.token_ids * 5
    )
    assert not llm.engine.unfinished_request_ids


def test_a_long_list_does_not_keep_another_thread_waiting(llm: LLM) -> None:
    """The other request comes after those that the engine has, not after the whole list."""
    clock, step, num_steps = llm.engine.clock, llm.engine.step, 0
    others: list[RequestOutput] = []
    other = threading.Thread(
        target=lambda: others.extend(llm.generate([9, 9], SamplingParams(max_tokens=1)))
    )
    ended: list[bool] = []  # whether the other request had ended, after each request of the list

    def watched() -> list[CompletionDelta]:
        nonlocal num_steps
        num_steps += 1
        clock.now += 1.0
        if num_steps == 3:
            other.start()
            while not llm._shared._turns._waiting:  # until it has asked for its turn
                time.sleep(0.001)
        deltas = step()
        ended.extend(bool(others) for delta in deltas if delta.request_id.startswith("request"))
        return deltas

    llm.engine.step = watched
    llm.generate([[1 + i % 31, 2] for i in range(100)], SamplingParams(max_tokens=1))
    other.join(timeout=60)
    assert len(others) == 1 and sum(ended) > 60


@pytest.mark.parametrize("n", [1, 3])
def test_max_time_passes_for_the_prompts_of_a_list_that_have_a_seat(llm: LLM, n: int) -> None:
    clock, step = llm.engine.clock, llm.engine.step

    def ticking() -> list[CompletionDelta]:
        clock.now += 1.0
        return step()

    llm.engine.step = ticking
    params = SamplingParams(max_tokens=99, max_time=5.0, n=n, ignore_eos=True)
    outputs = llm.generate([[1 + i, 2] for i in range(30)], params)
    for output in outputs:
        for completion in output.outputs:
            assert completion.stop_reason == "max_time"
            assert 4 <= len(completion.token_ids) <= 5


def test_max_time_waits_for_a_seat_of_streams_that_nobody_reads(llm: LLM) -> None:
    streams = [llm.stream([1, 2 + i], SamplingParams(max_tokens=9)) for i in range(4)]
    [output] = llm.generate([3, 4], SamplingParams(max_tokens=2, max_time=1e9, ignore_eos=True))
    assert len(output.outputs[0].token_ids) == 2
    assert any(stream.output.finished for stream in streams)


def test_a_subscriber_cannot_call_the_llm_that_is_calling_it(llm: LLM) -> None:
    step = llm.engine.step
    llm.engine.step = lambda: (llm.generate([1, 2]), step())[1]
    with pytest.raises(RuntimeError, match="the engine is running a step"):
        llm.generate([1, 2])
    llm.engine.step = step
    assert not llm.engine.unfinished_request_ids


@pytest.mark.parametrize("num_read", [0, 1, 3])
def test_a_stream_that_is_dropped_is_aborted(llm: LLM, num_read: int) -> None:
    stream = iter(llm.stream([5, 6], SamplingParams(max_tokens=99, seed=1, ignore_eos=True)))
    for _ in range(num_read):
        next(stream)
    assert len(llm.engine.unfinished_request_ids) == 1
    del stream
    assert not llm.engine.unfinished_request_ids
    llm.engine.scheduler.kv_cache_manager.check_integrity()


def test_a_stream_dropped_during_a_step_of_another_thread_is_aborted_after_it(llm: LLM) -> None:
    stream = llm.stream([5, 6], SamplingParams(max_tokens=99, seed=1, ignore_eos=True))
    held = [stream]
    del stream
    step = llm.engine.step

    def dropping():
        held.clear()
        return step()

    llm.engine.step = dropping
    llm.generate([1, 2], SamplingParams(max_tokens=3, ignore_eos=True))
    assert not llm.engine.unfinished_request_ids


def test_streams_that_are_read_to_their_ends_leave_nothing(llm: LLM) -> None:
    for seed in range(20):
        for _ in llm.stream([5, 6], SamplingParams(max_tokens=3, seed=seed)):
            pass
    assert not llm._shared._readers


class InterruptAt:
    """A trace function that sends Ctrl-C to this process at its n-th event."""

    def __init__(self, n: int) -> None:
        self.num_left = n

    def __call__(self, frame: FrameType, event: str, arg: object) -> "InterruptAt":
        self.num_left -= 1
        if self.num_left == 0:
            signal.raise_signal(signal.SIGINT)
        return self


def run_traced(llm: LLM, trace: InterruptAt) -> bool:
    """Whether Ctrl-C ended a run of `generate` and of a stream."""
    params = SamplingParams(max_tokens=3, seed=1)
    before = sys.gettrace()
    try:
        sys.settrace(trace)
        llm.generate([[1, 2], [3, 4], [5]], params, use_tqdm=False)
        for _ in llm.stream([7, 8], params):
            pass
        return False
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)


# Python swallows an exception in the callback of a weak reference, with this warning.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_at_any_point_leaves_the_engine_empty_and_usable(llm: LLM) -> None:
    for _ in range(2):  # the first run has more events: caches are empty
        counter = InterruptAt(0)
        assert not run_traced(llm, counter)
    num_events = -counter.num_left - 20  # not while the test itself returns
    rng = random.Random(0)
    expected = alone([1, 2], SamplingParams(max_tokens=3, seed=1))
    handler = signal.getsignal(signal.SIGINT)
    num_interrupted = 0
    for n in sorted(rng.sample(range(1, num_events), 60)):
        num_interrupted += run_traced(llm, InterruptAt(n))
        assert not llm.engine.unfinished_request_ids, n
        assert not llm.engine.has_unfinished_requests, n
        assert signal.getsignal(signal.SIGINT) is handler
    assert num_interrupted >= 57
    [output] = llm.generate([1, 2], SamplingParams(max_tokens=3, seed=1))
    assert output.outputs == expected


def test_a_second_ctrl_c_does_not_wait_for_the_step(llm: LLM) -> None:
    waited = []

    def stuck() -> None:
        for is_last in (False, True):
            signal.raise_signal(signal.SIGINT)
            waited.append(is_last)

    llm.engine.step = stuck
    with pytest.raises(KeyboardInterrupt):
        llm.generate([1, 2])
    assert waited == [False]


def test_a_handler_of_ctrl_c_that_goes_on_is_called_once(llm: LLM) -> None:
    calls, step = list[int](), llm.engine.step
    llm.engine.step = lambda: (calls or signal.raise_signal(signal.SIGINT), step())[1]
    before = signal.signal(signal.SIGINT, lambda number, _: calls.append(number))
    try:
        llm.generate([1, 2], SamplingParams(max_tokens=5, ignore_eos=True))
    finally:
        signal.signal(signal.SIGINT, before)
    assert calls == [signal.SIGINT]


def test_ctrl_c_that_is_ignored_stays_ignored(llm: LLM) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        for delta in llm.stream([1, 2], SamplingParams(max_tokens=3, ignore_eos=True)):
            signal.raise_signal(signal.SIGINT)
            assert delta.token_ids
        with DeferredInterrupt():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_closed_it_answers_no_more(llm: LLM) -> None:
    stream = llm.stream([5, 6], SamplingParams(max_tokens=99, ignore_eos=True))
    next(stream)
    engine = llm.engine
    with llm as same:
        assert same is llm
    assert stream.output.outputs[0].finish_reason == "abort"
    assert list(stream) == []
    assert not engine.unfinished_request_ids
    for call in (lambda: llm.generate("a"), lambda: llm.stream("a"), lambda: llm.engine):
        with pytest.raises(ValueError, match="this LLM is closed"):
            call()
    llm.close()


def test_prompts_of_every_form(llm: LLM) -> None:
    params = SamplingParams(max_tokens=4, seed=1)
    [expected] = llm.generate([[1, 2, 3]], params)
    for prompts in (
        "abc",
        ["abc"],
        ("abc",),
        (text for text in ["abc"]),
        [1, 2, 3],
        (1, 2, 3),
        range(1, 4),
        [(1, 2, 3)],
        np.array([1, 2, 3]),
        np.array([[1, 2, 3]], dtype=np.uint8),
        [np.array([1, 2, 3])],
        [np.int64(1), np.int64(2), np.int64(3)],
        {"prompt": "abc"},
        [{"prompt": "abc"}],
        {"prompt_token_ids": [1, 2, 3]},
        [{"prompt_token_ids": np.array([1, 2, 3]), "cache_salt": "mine"}],
    ):
        [output] = llm.generate(prompts, params)
        assert output.outputs == expected.outputs
        assert [*map(type, output.prompt_token_ids)] == [int] * 3
    assert llm.generate([], params) == []


NO_PROMPTS: list[object] = [
    None,
    3.5,
    b"abc",
    ["abc", b"abc"],
    ["abc", None],
    [1, 2.5],
    [[1], [True]],
    [["abc"]],
    {"text": "abc"},
    {"prompt": "abc", "prompt_token_ids": [1]},
    {"prompt": "abc", "multi_modal_data": {}},
    {"prompt": [1, 2]},
    {"prompt_token_ids": "abc"},
    [{"role": "user", "content": "abc"}],
    [[]],
    ["abc", ""],
]


def test_prompts_of_no_form_are_refused_by_name(llm: LLM) -> None:
    check_refusals("prompts", NO_PROMPTS, llm.generate)


REFUSED_CALLS: list[dict[str, object]] = [
    *({"sampling_params": wrong} for wrong in ({"temperature": 0}, 7, [{"temperature": 0}] * 2)),
    *({"priority": wrong} for wrong in ([1], [0, "high"], "high", 1.5)),
]


def test_parameters_of_another_type_are_refused_by_name(llm: LLM) -> None:
    check_refusals("generate", REFUSED_CALLS, lambda given: llm.generate([[1]] * 2, **given))
    assert not llm.engine.unfinished_request_ids
    with pytest.raises(ValueError, match=r"pass SamplingParams\(\*\*params\)"):
        llm.stream("abc", {"temperature": 0})
    with pytest.raises(ValueError, match="2 prompts given; a stream takes one"):
        llm.stream(["abc", "abc"])


def test_a_priority_for_all_or_for_each(llm: LLM) -> None:
    params = SamplingParams(max_tokens=2, ignore_eos=True)
    outputs = llm.generate([[1]] * 12, params, priority=[*range(12)][::-1])
    finished = [output.metrics.finished_time for output in outputs]
    assert finished[-1] <= finished[0]
    assert len(llm.generate([[1]] * 2, params, priority=3)) == 2


def test_the_seed_of_the_llm_repeats_what_has_none_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def texts(seed: int | None) -> list[str]:
        monkeypatch.setattr(llm_module.LLMEngine, "from_config", lambda *_: fake_engine())
        llm = LLM(seed=seed)
        params = SamplingParams(max_tokens=20, ignore_eos=True)  # long enough to differ
        outputs = llm.generate([[1, 2]] * 3 + [[1]], params)
        outputs += llm.generate([[1, 2]], replace(params, seed=4))
        return [output.outputs[0].text for output in outputs]

    assert texts(1) == texts(1)
    assert len({*texts(1)[:3], *texts(2)[:3], *texts(None)[:3]}) == 9
    assert texts(1)[4] == texts(None)[4]
    with pytest.raises(ValueError, match="seed=-1: must be a whole number of at least 0"):
        LLM(seed=-1)


def test_without_parameters_the_checkpoints_own_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = fake_engine()
    own = SamplingParams(temperature=0.0, repetition_penalty=1.3)
    engine.model = replace(engine.model, default_sampling_params=own)
    monkeypatch.setattr(llm_module.LLMEngine, "from_config", lambda *_: engine)
    llm = LLM()
    assert llm.get_default_sampling_params() == own
    [output] = llm.generate([[1, 2]])
    assert output.outputs == llm.generate([[1, 2]], own)[0].outputs
    assert "".join(delta.text for delta in llm.stream([1, 2])) == output.outputs[0].text


def test_max_tokens_left_out_is_16_for_text_and_the_context_for_conversations() -> None:
    assert SamplingParams().with_max_tokens(is_chat=False).max_tokens == 16
    assert SamplingParams(min_tokens=20).with_max_tokens(is_chat=False).max_tokens == 20
    assert SamplingParams().with_max_tokens(is_chat=True).max_tokens is None
    for limit in (None, 3):
        params = SamplingParams(max_tokens=limit)
        assert params.with_max_tokens(is_chat=True) is params


def test_of_a_beam_search_sequences_are_whole_as_in_vllm(llm: LLM) -> None:
    [output] = llm.beam_search({"prompt": "abc"}, BeamSearchParams(beam_width=2, max_tokens=3))
    assert len(output.sequences) == len(output.outputs) == 2
    for sequence, found in zip(output.sequences, output.outputs, strict=True):
        assert sequence.tokens == [1, 2, 3, *found.token_ids]
        assert sequence.text.startswith("abc")
        assert sequence.cum_logprob == found.cumulative_logprob


def test_an_engine_that_was_taken_without_waiting_is_nobody_elses() -> None:
    lock = FairLock()
    assert lock.try_acquire() and lock.is_mine and not lock.try_acquire()
    lock.release()
    with lock._guard:  # where garbage is collected meanwhile
        assert not lock.try_acquire()
    assert not lock.is_mine and lock.try_acquire()
