"""Drafts: guesses of the next tokens that change the number of steps and nothing else."""

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
import pytest

from pellucid.engine import LLMEngine
from pellucid.execution.sampler import Sampler, SamplingRow
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.observing.events import (
    DraftRound,
    DraftStep,
    EventRecord,
    Level,
    Step,
    Token,
)
from pellucid.outputs import RequestOutput
from pellucid.scheduling.request import FinishReason, Request
from pellucid.scheduling.scheduler import Scheduler
from pellucid.speculation.proposers.proposer import Proposer
from support.fake_model import VOCAB_SIZE, FakeClock, FakeTokenizer, fake_engine, fake_logits
from support.scheduling import BLOCK_SIZE, END, make_request, make_scheduler, shares, step, update
from support.ticking_clock import TICK, TickingClock


def decode_with_drafts(
    scheduler: Scheduler, request: Request, drafts: list[int], sampled: list[int]
) -> None:
    """A step in which `request` has drafts and gets `sampled`."""
    scheduler.draft({request.request_id: drafts})
    output = scheduler.schedule(0.0)
    update(scheduler, output, {request.request_id: sampled}, 0.0)
    scheduler.check_integrity()


def started(scheduler: Scheduler, name: str, num_prompt_tokens: int, max_tokens: int) -> Request:
    """A request that has got its first token."""
    request = make_request(name, num_prompt_tokens, max_tokens)
    scheduler.add_request(request)
    step(scheduler, token_id=10)
    return request


def test_a_decode_with_drafts_is_one_share_and_as_many_rows() -> None:
    scheduler = make_scheduler()
    request = started(scheduler, "a", 6, 20)
    scheduler.draft({"a": [11, 12, 13]})
    output = scheduler.schedule(0.0)
    assert shares(output) == [("a", 6, 10)]
    (share,) = output.scheduled
    assert (share.num_draft_tokens, share.sampled_rows) == (3, range(4))
    assert share.token_ids == [10, 11, 12, 13]
    update(scheduler, output, {"a": [11, 12, 13, 14]}, 0.0)
    assert request.output_token_ids == [10, 11, 12, 13, 14]
    assert (request.num_computed_tokens, request.num_tokens) == (10, 11)


@pytest.mark.parametrize("num_right", range(6))
def test_wrong_drafts_are_rolled_back_and_never_found(num_right: int) -> None:
    scheduler = make_scheduler(enable_prefix_caching=True)
    request = started(scheduler, "a", 6, 20)
    right = [11, 12, 13, 14, 15]
    drafts = right[:num_right] + [0] * (5 - num_right)
    decode_with_drafts(scheduler, request, drafts, [*right[:num_right], 40])
    known = [*range(6), 10, *right[:num_right], 40]
    assert request.token_ids(0, 99) == known
    assert request.num_computed_tokens == len(known) - 1
    manager = scheduler.kv_cache_manager
    assert manager.num_blocks(request) == -(-(len(known) - 1) // BLOCK_SIZE)
    # As if each token had come in a step of its own.
    slow = make_scheduler(enable_prefix_caching=True)
    plodding = make_request("a", 6, 20)
    slow.add_request(plodding)
    for token_id in known[6:]:
        step(slow, token_id=token_id)
    fast_index, slow_index = manager.block_pool.index, slow.kv_cache_manager.block_pool.index
    assert set(fast_index._blocks) == set(slow_index._blocks)
    scheduler.finish(request, FinishReason.ABORT)
    other = make_request("b", prompt=(*known[:7], *drafts, 7, 7, 7, 7), max_tokens=1)
    scheduler.add_request(other)
    step(scheduler)
    num_common = 7 + num_right
    assert other.num_cached_tokens == num_common // BLOCK_SIZE * BLOCK_SIZE


def test_an_end_within_the_drafts_cuts_them_there() -> None:
    scheduler = make_scheduler(enable_prefix_caching=True)
    request = started(scheduler, "a", 6, 20)
    decode_with_drafts(scheduler, request, [11, END, 13, 14, 15], [11, END, 13, 14, 15, 16])
    assert request.output_token_ids == [10, 11, END]
    assert (request.finish_reason, request.stop_reason) == (FinishReason.STOP, END)
    assert len(scheduler.kv_cache_manager.block_pool.index) == 2  # 8 of 9 tokens


def test_no_draft_reaches_beyond_max_tokens() -> None:
    scheduler = make_scheduler()
    request = started(scheduler, "a", 6, 4)
    scheduler.draft({"a": [11, 12, 13, 14, 15]})
    output = scheduler.schedule(0.0)
    assert shares(output) == [("a", 6, 9)]
    update(scheduler, output, {"a": [11, 12, 13]}, 0.0)
    assert (request.num_output_tokens, request.stop_reason) == (4, "max_tokens")


def test_drafts_take_no_place_of_another_decode_or_of_a_block() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=5)
    requests = [started(scheduler, name, 2, 20) for name in "abc"]
    scheduler.draft({"a": [1] * 4, "b": [2] * 4})
    output = scheduler.schedule(0.0)
    assert [s.num_scheduled_tokens for s in output.scheduled] == [3, 1, 1]
    update(scheduler, output, {r.request_id: [50] for r in requests}, 0.0)

    scheduler = make_scheduler(num_blocks=4)
    old, new = (started(scheduler, name, 6, 10) for name in ("old", "new"))
    scheduler.draft({"old": [1] * 5, "new": [2] * 5})
    output = scheduler.schedule(0.0)
    assert output.preempted == ()
    assert [s.num_draft_tokens for s in output.scheduled] == [0, 0]
    assert old.draft_token_ids == new.draft_token_ids == ()


def test_a_prompt_and_a_request_that_waits_take_no_drafts() -> None:
    scheduler = make_scheduler(max_num_seqs=1, max_num_batched_tokens=4)
    prompt, waiting = make_request("a", 6, 8), make_request("b", 6, 8)
    for request in (prompt, waiting):
        scheduler.add_request(request)
    step(scheduler)
    scheduler.draft({"a": [1], "b": [1], "c": [1]})
    assert prompt.draft_token_ids == waiting.draft_token_ids == ()


class Oracle(Proposer):
    """Proposes what it is told to."""

    def __init__(
        self, output: Sequence[int], wrong_from: int, length: int, clock: FakeClock | None = None
    ) -> None:
        self.output, self.wrong_from, self.length = output, wrong_from, length
        self.clock = clock

    def propose(
        self, requests: Sequence[Request], max_drafts: Mapping[str, int]
    ) -> Mapping[str, Sequence[int]]:
        if self.clock is not None:
            self.clock.now += 0.25
        drafts = {}
        for request in requests:
            right = list(self.output[request.num_output_tokens :][: self.length])
            wrong = [(token_id + 1) % VOCAB_SIZE for token_id in right[self.wrong_from :]]
            drafts[request.request_id] = right[: self.wrong_from] + wrong
        return drafts


PARAMS = SamplingParams(temperature=1.2, seed=4, max_tokens=24, logprobs=2, ignore_eos=True)


def complete(engine: LLMEngine, params: SamplingParams = PARAMS) -> tuple[RequestOutput, int]:
    """The output of a request, and the number of steps."""
    output, num_steps = engine.add_request([3] * 20, params), 0
    while engine.has_unfinished_requests:
        engine.step()
        num_steps += 1
    return output, num_steps


@pytest.mark.parametrize(
    ("length", "wrong_from", "use_kv_cache"),
    [*product((1, 2, 5, 9), (0, 1, 3, 9), (True,)), (5, 3, False), (1, 0, False)],
)
def test_the_same_output_in_fewer_steps(length: int, wrong_from: int, use_kv_cache: bool) -> None:
    alone, _ = complete(fake_engine())
    expected = alone.outputs[0].token_ids
    oracle = Oracle(expected, wrong_from, length)
    output, num_steps = complete(fake_engine(proposer=oracle, use_kv_cache=use_kv_cache))
    assert output.outputs == alone.outputs
    assert len(output.metrics.token_times) == len(expected)
    num_tokens_a_step = min(length, wrong_from) + 1
    assert num_steps == 1 + -(-(len(expected) - 1) // num_tokens_a_step)


def test_watched_tokens_are_those_that_the_request_takes() -> None:
    whole, _ = complete(fake_engine())
    token_ids = whole.outputs[0].token_ids
    stop_text = FakeTokenizer.alphabet[token_ids[7]]
    params = SamplingParams(
        temperature=1.2, seed=4, max_tokens=24, ignore_eos=True, stop=[stop_text], min_tokens=7
    )
    engine = fake_engine(proposer=Oracle(token_ids, 9, 5))
    records: list[EventRecord] = []
    engine.events.subscribe(records.append, Level.TOKEN)
    output, _ = complete(engine, params)
    tokens = [record.event for record in records if isinstance(record.event, Token)]
    assert [token.id for token in tokens] == output.outputs[0].token_ids == token_ids[:8]
    assert [token.pos for token in tokens] == list(range(20, 28))


def test_the_probabilities_of_drafts_are_those_of_the_draws() -> None:
    """`Oracle` gives no distributions: each of its drafts has the probability 1."""
    params = SamplingParams(
        temperature=0.8, top_p=0.9, seed=4, max_tokens=24, ignore_eos=True, frequency_penalty=0.5
    )
    alone, _ = complete(fake_engine(), params)
    token_ids = alone.outputs[0].token_ids
    engine = fake_engine(proposer=Oracle(token_ids, 2, 4))
    records: list[EventRecord] = []
    engine.events.subscribe(records.append, Level.TOKEN)
    output, _ = complete(engine, params)
    assert output.outputs == alone.outputs
    rounds = [record.event for record in records if isinstance(record.event, DraftRound)]
    assert len(rounds) > 3
    p_final = {
        record.event.pos: record.event.p_final
        for record in records
        if isinstance(record.event, Token)
    }
    sampler = Sampler()
    for each in rounds:
        assert each.pos is not None and each.p_target is not None
        num_before = each.pos - 20
        for number, (draft, probability) in enumerate(zip(each.draft, each.p_target, strict=True)):
            before = [*token_ids[:num_before], *each.draft[:number]]
            row = SamplingRow(params, [3] * 20, before, 4, 0)
            distribution = sampler.distribution(fake_logits([*[3] * 20, *before]), row)
            assert probability == pytest.approx(np.exp(distribution.logprob(draft)))
            if number < each.n_right:
                assert probability == pytest.approx(p_final[each.pos + number])
        assert each.p_draft == (1.0,) * len(each.draft) and each.overlap == each.p_target
        products = np.cumprod(each.overlap)
        assert each.leviathan_tok == pytest.approx(products.sum())
        assert (each.chosen is None) == (each.n_right == len(each.draft))


def test_nobody_pays_for_probabilities_that_nobody_wants() -> None:
    alone, _ = complete(fake_engine())
    oracle = Oracle(alone.outputs[0].token_ids, 9, 3)
    engine = fake_engine(proposer=oracle)
    engine.model_runner.distribution = None  # type: ignore[assignment,method-assign]  # who calls it fails
    records: list[EventRecord] = []
    engine.events.subscribe(records.append, Level.STEP)
    engine.events.subscribe(lambda record: None, Level.TOKEN, tokens_of=["other/0"])
    output, _ = complete(engine)
    assert output.outputs == alone.outputs
    rounds = [record.event for record in records if isinstance(record.event, DraftRound)]
    assert rounds and all(each.p_target is each.overlap is None for each in rounds)


def test_steps_with_drafts_tell_what_they_cost_and_brought() -> None:
    alone, _ = complete(fake_engine())
    clock = FakeClock()
    engine = fake_engine(proposer=Oracle(alone.outputs[0].token_ids, 2, 3, clock), clock=clock)
    records: list[EventRecord] = []
    engine.events.subscribe(records.append, Level.STEP)
    output, _ = complete(engine)
    events = [record.event for record in records if isinstance(record.event, DraftStep)]
    rounds = [record.event for record in records if isinstance(record.event, DraftRound)]
    assert len(events) == len(rounds) > 3  # of one request
    for event, each in zip(events, rounds, strict=True):
        assert (event.n_req, event.n_draft, event.n_right) == (1, len(each.draft), each.n_right)
        assert (event.draft_us, event.step_us, event.plain_us) == (250_000, 0, 0)
        assert event.won_us == -250_000  # steps take no time here, drafting does
    assert output.ledger is not None
    steps = [record.event for record in records if isinstance(record.event, Step)]
    num_drafting = sum(step.draft_us == 250_000 for step in steps)
    assert output.ledger.drafting_seconds == 0.25 * num_drafting > 0
    told = engine.speculation  # as it is now
    engine._core.speculation.statistics.right_by_position[0] += 1
    assert engine.speculation.right_by_position[0] == told.right_by_position[0] + 1


class Failing(Proposer):
    def propose(
        self, requests: Sequence[Request], max_drafts: Mapping[str, int]
    ) -> Mapping[str, Sequence[int]]:
        raise RuntimeError("no drafts today")


class Nonsense(Proposer):
    """Token ids that there are not, of requests that there are not."""

    def propose(
        self, requests: Sequence[Request], max_drafts: Mapping[str, int]
    ) -> Mapping[str, Sequence[int]]:
        return {"nobody": [1], **{request.request_id: [-1, 10**9] for request in requests}}


@pytest.mark.parametrize("proposer", [Failing(), Nonsense()])
def test_a_proposer_that_fails_changes_nothing(proposer: Failing | Nonsense) -> None:
    alone, num_steps = complete(fake_engine())
    assert complete(fake_engine(proposer=proposer))[1] == num_steps
    assert complete(fake_engine(proposer=proposer))[0].outputs == alone.outputs


def test_the_drafts_of_a_loop_are_right() -> None:
    params = SamplingParams(max_tokens=120, ignore_eos=True, allowed_token_ids=[7])
    _, num_plain = complete(fake_engine(), params)
    engine = fake_engine(speculation="ngram", num_draft_tokens=6)
    _, num_steps = complete(engine, params)
    so_far = engine.speculation
    assert so_far is not None and num_steps < 0.25 * num_plain and so_far.acceptance > 0.9
    counts = list(so_far.right_by_position)
    complete(engine, params)
    assert so_far.right_by_position == counts  # as they were then


def test_the_time_of_decode_steps_counts_whether_drafts_were_asked_for_or_not() -> None:
    """The speedup that the engine tells of is a share of it."""
    engine = fake_engine(speculation="auto", clock=TickingClock())
    engine.add_request([3], SamplingParams(max_tokens=200, ignore_eos=True, seed=1))
    while engine.has_unfinished_requests:
        engine.step()
    assert engine.speculation is not None
    computed = 199 * 2 * TICK  # forward and sampling of each decode step
    assert 0.9 * computed < engine.speculation.seconds < 1.1 * computed
