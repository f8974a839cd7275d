"""Ledgers of the engine: the parts add up to the request's wall time in every case."""

import math
import random

from pellucid.engine import LLMEngine
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.observing.ledger import Part
from pellucid.outputs import RequestOutput
from support.fake_model import fake_engine
from support.ticking_clock import TICK, TickingClock


def run(engine: LLMEngine) -> None:
    while engine.has_unfinished_requests:
        engine.step()


def check(output: RequestOutput) -> None:
    ledger = output.ledger
    assert ledger is not None and output.metrics.finished_time is not None
    parts = [ledger.seconds(part) for part in Part]
    assert math.isclose(math.fsum(parts), ledger.total_seconds, rel_tol=1e-9)
    assert ledger.total_seconds == output.metrics.finished_time - output.metrics.arrival_time
    assert min(parts) >= 0


def test_every_ledger_adds_up_on_a_crowded_engine() -> None:
    rng = random.Random(7)
    engine = fake_engine(
        clock=TickingClock(),
        block_size=16,
        num_kv_blocks=16,
        max_num_seqs=6,
        speculation="ngram",
        max_num_batched_tokens=24,
    )
    outputs = []
    for _ in range(50):
        prompt = [rng.randrange(1, 27) for _ in range(rng.randrange(1, 60))]
        params = SamplingParams(
            max_tokens=rng.randrange(1, 90),
            ignore_eos=True,
            n=rng.choice([1, 1, 1, 2]),
            max_time=rng.choice([None, None, 0.3]),
            seed=1,
        )
        outputs.append(engine.add_request(prompt, params, priority=rng.choice([-1, 0, 0])))
        for _ in range(rng.randrange(12)):
            engine.step()
        if rng.random() < 0.1:
            engine.abort(rng.choice(outputs).request_id)
    run(engine)
    for output in outputs:
        check(output)
    ledgers = [output.ledger for output in outputs if output.ledger is not None]
    for part in Part:
        assert any(ledger.seconds(part) > 0 for ledger in ledgers), part
    assert any(ledger.num_recomputed_tokens for ledger in ledgers)
    assert any(ledger.blocked_by for ledger in ledgers)


def test_the_head_of_the_line_is_named() -> None:
    engine = fake_engine(clock=TickingClock(), max_num_seqs=1)
    params = SamplingParams(max_tokens=50, ignore_eos=True)
    engine.add_request([1] * 5, params, "first")
    for _ in range(3):
        engine.step()
    late = engine.add_request([2] * 5, params, "late")
    run(engine)
    assert late.ledger is not None
    assert [name for name, _ in late.ledger.blocked_by] == ["first/0"]
    # All but the moment between the end of the first and the next step.
    assert late.ledger.queue_seconds == late.ledger.blocked_by[0][1] + TICK


def test_a_long_prompt_stalls_the_others_and_is_named() -> None:
    engine = fake_engine(clock=TickingClock(), max_num_batched_tokens=64)
    talker = engine.add_request([1, 2], SamplingParams(max_tokens=20, ignore_eos=True), "talker")
    for _ in range(4):
        engine.step()
    engine.add_request([3] * 200, SamplingParams(max_tokens=1), "long")
    run(engine)
    check(talker)
    assert talker.ledger is not None
    assert [name for name, _ in talker.ledger.stalled_by] == ["long/0"]
    assert 0 < talker.ledger.stall_seconds < 4 * TICK  # four chunks, most of each
    assert talker.ledger.stall_seconds > 3 * TICK


def test_who_has_no_place_in_a_step_is_stalled_for_that_step() -> None:
    engine = fake_engine(clock=TickingClock(), max_num_batched_tokens=2)
    output = engine.add_request([1], SamplingParams(max_tokens=3, ignore_eos=True, n=3))
    run(engine)
    check(output)
    assert output.ledger is not None  # of the third answer, which two steps of the others left out
    assert (output.ledger.decode_seconds, output.ledger.stall_seconds) == (2 * TICK, 8 * TICK)


def test_the_naive_loop_has_no_preemption_to_speak_of() -> None:
    engine = fake_engine(clock=TickingClock(), use_kv_cache=False)
    output = engine.add_request([1, 2, 3], SamplingParams(max_tokens=8, ignore_eos=True))
    run(engine)
    check(output)
    assert output.ledger is not None
    assert output.ledger.decode_seconds == 7 * TICK
    assert output.ledger.preempted_seconds == output.ledger.num_recomputed_tokens == 0


def test_several_answers_share_the_time_of_their_prompt() -> None:
    engine = fake_engine(clock=TickingClock(), max_num_batched_tokens=8)
    output = engine.add_request([1] * 20, SamplingParams(max_tokens=4, ignore_eos=True, n=3))
    run(engine)
    check(output)
    assert output.ledger is not None
    assert output.ledger.prefill_seconds == 3 * TICK  # three chunks
    assert output.ledger.stall_seconds == 0
