"""Siblings: several completions of one prompt, and beams that advance together."""

import pytest

from pellucid.scheduling.block import CacheSalt
from pellucid.scheduling.block_ops import Copy, Slot, SlotKind
from pellucid.scheduling.request import FinishReason, Request, RequestStatus
from pellucid.scheduling.scheduler import Scheduler
from support.scheduling import (
    make_request,
    make_scheduler,
    make_siblings,
    names,
    run,
    shares,
    step,
)


def test_the_prompt_is_computed_once_and_its_last_row_serves_all() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=6)
    siblings = make_siblings(3, num_prompt_tokens=10, max_tokens=3)
    scheduler.add_request(*siblings)
    assert shares(step(scheduler)) == [("s/0", 0, 6)]
    output = step(scheduler)
    assert shares(output) == [("s/0", 6, 10)]
    assert output.scheduled[0].samplers == tuple(each.request_id for each in siblings)
    assert [len(request.output_token_ids) for request in siblings] == [1, 1, 1]
    assert shares(step(scheduler)) == [("s/0", 10, 11), ("s/1", 10, 11), ("s/2", 10, 11)]
    run(scheduler)
    assert [request.num_processed_tokens for request in siblings] == [12, 2, 2]


def test_all_but_one_copy_the_block_that_the_prompt_ends_in() -> None:
    scheduler = make_scheduler()
    manager = scheduler.kv_cache_manager
    siblings = make_siblings(3, num_prompt_tokens=6)
    scheduler.add_request(*siblings)
    step(scheduler)
    assert {manager.block_tables(request)[0] for request in siblings} == {(0, 1)}
    assert manager.take_block_ops() == ()
    step(scheduler)
    copies = manager.take_block_ops()
    assert copies == (
        Copy(Slot(SlotKind.BLOCK, 1), Slot(SlotKind.BLOCK, 2)),
        Copy(Slot(SlotKind.BLOCK, 1), Slot(SlotKind.BLOCK, 3)),
    )
    assert [manager.block_tables(request)[0] for request in siblings] == [(0, 2), (0, 3), (0, 1)]


def test_another_takes_over_when_the_first_leaves_before_the_prompt_is_computed() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=4, enable_prefix_caching=True)
    first, second, third = make_siblings(3, num_prompt_tokens=10)
    scheduler.add_request(first, second, third)
    step(scheduler)
    scheduler.finish(first, FinishReason.ABORT)
    scheduler.check_integrity()
    output = step(scheduler)
    assert shares(output) == [("s/1", 4, 8)]
    assert output.scheduled[0].num_recomputed_tokens == 0
    assert step(scheduler).scheduled[0].samplers == ("s/1", "s/2")


def test_who_has_its_token_keeps_it_when_the_first_fails() -> None:
    scheduler = make_scheduler()
    first, second, third = make_siblings(3, num_prompt_tokens=6, max_tokens=3)
    scheduler.add_request(first, second, third)
    step(scheduler, failing=[first])
    assert [request.output_token_ids for request in (first, second, third)] == [[], [50], [50]]
    assert {request.status for request in (second, third)} == {RequestStatus.WAITING}
    assert shares(step(scheduler)) == [("s/1", 0, 7), ("s/2", 0, 7)]
    run(scheduler)


def test_a_forked_request_that_was_preempted_before_its_first_row_has_started() -> None:
    scheduler = make_scheduler(num_blocks=4, max_num_seqs=2)
    siblings = make_siblings(2, num_prompt_tokens=9, max_tokens=4)
    scheduler.add_request(*siblings)
    step(scheduler)
    assert siblings[1].status is RequestStatus.RUNNING
    scheduler.add_request(make_request("urgent", 2, priority=-2))
    output = scheduler.schedule(0.0)
    assert output.preempted == ("s/1",)
    assert siblings[1].num_processed_tokens == 0
    assert scheduler.kv_cache_manager.num_blocks(siblings[1]) > 0
    assert siblings[1] in scheduler.started_requests()


def start_beams(scheduler: Scheduler, width: int = 3) -> list[Request]:
    beams = make_siblings(width, num_prompt_tokens=6, max_tokens=20, num_candidates=2 * width)
    scheduler.add_request(*beams)
    step(scheduler)
    scheduler.reassign(beams, [0] * width, list(range(10, 10 + width)))
    scheduler.check_integrity()
    return beams


def test_a_group_forks_from_the_one_that_computed_the_prompt() -> None:
    scheduler = make_scheduler()
    beams = start_beams(scheduler)
    assert [beam.output_token_ids for beam in beams] == [[10], [11], [12]]
    assert shares(step(scheduler)) == [("s/0", 6, 7), ("s/1", 6, 7), ("s/2", 6, 7)]
    assert not scheduler.running  # they wait for each other
    assert step(scheduler).scheduled == ()


@pytest.mark.parametrize("max_num_seqs", [1, 2])
def test_who_waits_for_its_group_takes_no_seat(max_num_seqs: int) -> None:
    scheduler = make_scheduler(max_num_seqs=max_num_seqs)
    start_beams(scheduler)
    scheduler.add_request(make_request("other", 2))
    seen = [name for _ in range(4) for name in names(step(scheduler))]
    assert set(seen) == {"s/0", "s/1", "s/2", "other"}


@pytest.mark.parametrize(
    ("fields", "asked", "shared"),
    [
        ({}, 6, 5),  # the last token's logits have to be computed
        ({}, 3, 3),
        ({"prompt": (0, 1, 2, 3, 9, 9, 9)}, 4, 4),
        ({"prompt": (9, 1, 2, 3, 4, 5)}, 6, 0),
        ({"cache_salt": CacheSalt("another")}, 6, 0),
        ({"prompt_logprobs": 1}, 6, 0),
    ],
)
def test_a_new_request_shares_the_computed_text_of_another(
    fields: dict[str, object], asked: int, shared: int
) -> None:
    scheduler = make_scheduler()
    parent, fork = make_request("parent", 6), make_request("fork", 6, **fields)
    scheduler.add_request(parent)
    step(scheduler)
    scheduler.add_request(fork)
    assert scheduler.continue_from(fork, parent, asked) == shared
    assert ("fork", shared, fork.num_prompt_tokens) in shares(step(scheduler))
    run(scheduler)
