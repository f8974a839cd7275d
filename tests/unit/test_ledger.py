"""The ledger book: how it books each piece of time, and that it loses none."""

import math

import pytest

from pellucid.observing.ledger import MAX_NAMED, Ledger, LedgerBook, Part, StepTimes, Work

STEP = 10.0  # scheduling 1, forward 6, sampling 1, emitting 2


def flops(start: int, end: int, num_logits: int) -> int:
    return 100 * (end - start)


def step_at(start: float) -> StepTimes:
    return StepTimes(start, start + 1, start + 7, start + 8, start + STEP)


def work(
    request_id: str, start: int, end: int, has_output: bool = False, num_recomputed: int = 0
) -> Work:
    return Work(request_id, start, end, num_recomputed, 1, has_output, flops(start, end, 1))


def running(**num_tokens: int) -> LedgerBook:
    """Of the prompts of these, so many tokens are computed in a step from 0 on."""
    book = LedgerBook(flops)
    for name in num_tokens:
        book.open(name, 0.0, 0.0)
    book.step(step_at(0), [work(name, 0, end) for name, end in num_tokens.items()])
    return book


def check_sum(ledger: Ledger, wall: float) -> None:
    assert math.isclose(math.fsum(ledger.seconds(part) for part in Part), wall, rel_tol=1e-12)
    assert math.isclose(ledger.total_seconds, wall, rel_tol=1e-12)


def test_a_request_alone() -> None:
    book = LedgerBook(flops)
    book.open("a", arrived=0.0, queued=3.0)
    book.step(step_at(5), [work("a", 0, 8)])
    book.step(step_at(16), [work("a", 8, 9, has_output=True)])
    ledger = book.close("a", 26.0)
    check_sum(ledger, 26.0)
    assert [ledger.seconds(part) for part in Part] == [3, 2, 6, 6, 0, 0, 2, 4, 1 + 1 + 1, 0]
    assert ledger.stalled_by == ledger.blocked_by == ()


@pytest.mark.parametrize("others", [[], [work("b", 0, 8)]])
def test_drafting_is_a_part_of_its_own(others: list[Work]) -> None:
    book = LedgerBook(flops)
    for name in "ab":
        book.open(name, 0.0, 0.0)
    book.step(step_at(0), [work("a", 0, 8)])
    times = step_at(12)
    times.drafting = 0.75  # of the second that scheduling takes
    book.step(times, [work("a", 8, 11, has_output=True), *others])
    ledger = book.close("a", 22.0)
    check_sum(ledger, 22.0)
    assert ledger.drafting_seconds == 0.75
    assert ledger.other_seconds == 1 + 2 + 0.25


def test_a_decode_is_stalled_by_the_prompts_beside_it() -> None:
    book = running(a=8)
    for name in "bc":
        book.open(name, 10.0, 10.0)
    book.step(step_at(10), [work("a", 8, 9, has_output=True), work("b", 0, 3), work("c", 0, 2)])
    ledger = book.close("a", 20.0)
    check_sum(ledger, 20.0)
    assert ledger.stall_seconds == pytest.approx(6 * 5 / 6)
    assert ledger.decode_seconds == pytest.approx(6 * 1 / 6)
    assert dict(ledger.stalled_by) == pytest.approx({"b": 3.0, "c": 2.0})
    assert [name for name, _ in ledger.stalled_by] == ["b", "c"]
    # Prompts are not stalled by prompts: they are all there is to do.
    assert book.close("b", 20.0).stall_seconds == 0


def test_left_out_of_a_step_by_a_prompt_that_took_the_budget() -> None:
    book = running(a=8)
    book.open("b", 10.0, 10.0)
    book.step(step_at(12), [work("b", 0, 16)], left_out=["a"])
    ledger = book.close("a", 22.0)
    check_sum(ledger, 22.0)
    assert ledger.stall_seconds == STEP
    assert ledger.stalled_by == (("b", STEP),)
    assert ledger.other_seconds == 1 + 2  # scheduling, and before the second step


def test_a_running_request_with_nothing_to_compute_is_not_stalled() -> None:
    book = running(a=8)
    book.open("b", 10.0, 10.0)
    book.step(step_at(10), [work("b", 0, 16)])
    ledger = book.close("a", 20.0)
    check_sum(ledger, 20.0)
    assert ledger.stall_seconds == 0 and ledger.other_seconds == 1 + STEP


def test_preempted_waits_and_computes_again_what_it_lost() -> None:
    book = running(a=8)
    book.step(step_at(10), [work("a", 8, 9, has_output=True)])
    book.step(step_at(20), [], preempted=["a"])
    book.step(
        step_at(40), [work("a", 4, 10, has_output=True, num_recomputed=5)]
    )  # 4 positions had been kept
    ledger = book.close("a", 50.0)
    check_sum(ledger, 50.0)
    assert ledger.num_recomputed_tokens == 5
    assert ledger.preempted_seconds == pytest.approx((40 - 21) + 6 * 5 / 6)
    assert ledger.decode_seconds == pytest.approx(6 + 6 * 1 / 6)


def test_preempted_in_the_middle_of_its_prompt() -> None:
    book = running(a=4)
    book.step(step_at(10), [], preempted=["a"])
    book.step(step_at(20), [work("a", 0, 8, num_recomputed=4)])
    ledger = book.close("a", 30.0)
    check_sum(ledger, 30.0)
    assert ledger.num_recomputed_tokens == 4
    assert ledger.prefill_seconds == pytest.approx(6 + 3)
    assert ledger.preempted_seconds == pytest.approx(9 + 3)


def test_what_others_compute_again_stalls_like_a_prompt() -> None:
    book = running(a=8, b=4)
    book.step(step_at(10), [work("a", 8, 9, has_output=True)], preempted=["b"])
    book.step(
        step_at(20),
        [work("a", 9, 10, has_output=True), work("b", 0, 5, has_output=True, num_recomputed=4)],
    )
    ledger = book.close("a", 30.0)
    check_sum(ledger, 30.0)
    assert ledger.stall_seconds == pytest.approx(6 * 4 / 6)
    assert ledger.stalled_by == (("b", pytest.approx(4.0)),)


def test_who_was_running_while_it_could_not_be_admitted() -> None:
    names = [f"r{index}" for index in range(5)]
    book = running(**dict.fromkeys(names, 2))
    book.open("late", 5.0, 6.0)  # while that step is under way
    book.step(step_at(10), [work(name, 2, 3, has_output=True) for name in names])
    book.close("r3", 20.0)
    book.step(step_at(20), [work("late", 0, 2)])
    ledger = book.close("late", 30.0)
    check_sum(ledger, 25.0)
    assert ledger.queue_seconds == 14
    assert len(ledger.blocked_by) == MAX_NAMED
    assert all(seconds == 14 for _, seconds in ledger.blocked_by)


def test_nobody_blocks_a_request_that_the_next_step_admits() -> None:
    book = running(a=2)
    book.open("b", 5.0, 6.0)
    book.step(step_at(10), [work("a", 2, 3, has_output=True), work("b", 0, 2)])
    assert book.close("b", 20.0).blocked_by == ()


def test_siblings_share_the_time_of_their_prompt() -> None:
    book = LedgerBook(flops)
    for name in ("r/0", "r/1"):
        book.open(name, 0.0, 1.0)
    book.step(step_at(2), [work("r/0", 0, 8)])
    book.fork("r/0", "r/1")
    ledgers = [book.close(name, 12.0) for name in ("r/0", "r/1")]
    assert ledgers[0] == ledgers[1]
    check_sum(ledgers[1], 12.0)


@pytest.mark.parametrize(("state", "part"), [("queued", Part.QUEUE), ("preempted", Part.PREEMPTED)])
def test_ended_while_it_waits(state: str, part: Part) -> None:
    book = LedgerBook(flops)
    book.open("a", 0.0, 0.0)
    if state == "preempted":
        book.step(step_at(0), [work("a", 0, 8)])
        book.step(step_at(10), [], preempted=["a"])
    ledger = book.close("a", 100.0)
    check_sum(ledger, 100.0)
    assert ledger.seconds(part) == (100 if state == "queued" else 89)
