"""Random traces through the scheduler, with block contents that detect errors.

Whatever the trace, a request's tokens are those of `continuation`, which knows nothing of scheduling.
"""

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from pellucid.facts.formulas import BlockNeeds
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.observing.event_bus import EventBus
from pellucid.observing.events import BlockOps, EventRecord, Level, RequestStateChanged
from pellucid.scheduling.block import NO_SALT, CacheSalt
from pellucid.scheduling.block_pool import BlockPool
from pellucid.scheduling.kv_cache_manager import KVCacheManager
from pellucid.scheduling.offload import Offload
from pellucid.scheduling.request import FinishReason, Request, RequestStatus
from pellucid.scheduling.scheduler import Scheduler
from pellucid.scheduling.scheduler_output import SchedulerOutput
from pellucid.scheduling.state_pool import StatePool
from support.courses import Courses
from support.fake_blocks import FakeBlocks, FakeStore, recorded
from support.kept_names import names_in
from support.scheduling import update

BLOCK_SIZE = 4
MAX_LENGTH = 40  # prompt + output
END = 0
NUM_TRACES = 160
COURSES = Courses("scheduler_courses")


def next_token(token_ids: list[int], stream: int) -> int:
    return hash((*token_ids, stream)) % 23


def continuation(request: Request) -> list[int]:
    token_ids = list(request.prompt_token_ids)
    for _ in range(request.max_tokens):
        token_ids.append(next_token(token_ids, request.index))
        if token_ids[-1] == END:
            break
    return token_ids[request.num_prompt_tokens :]


@dataclass
class Beams:
    """A group of requests that is reassigned as a function of its tokens alone."""

    requests: list[Request]
    expected: list[list[int]]  # output tokens of each request
    delivered: set[str] = field(default_factory=set)

    def advance(self, scheduler: Scheduler) -> None:
        rng = random.Random(hash(tuple(map(tuple, self.expected))))
        width, started = len(self.requests), bool(self.expected[0])
        parents = [rng.randrange(width) if started else 0 for _ in range(width)]
        token_ids = [rng.randrange(23) for _ in range(width)]
        self.delivered.clear()
        if len(self.expected[0]) == self.requests[0].max_tokens - 1:
            for request in self.requests:
                scheduler.finish(request, FinishReason.LENGTH)
            return
        self.expected = [
            [*self.expected[parent], token_id]
            for parent, token_id in zip(parents, token_ids, strict=True)
        ]
        scheduler.reassign(self.requests, parents, token_ids)
        assert [request.output_token_ids for request in self.requests] == self.expected


class Watcher:
    """Believes the events alone, and compares what it believes."""

    def __init__(self, trace: "Trace") -> None:
        self.trace = trace
        self.owners: Counter[int] = Counter()
        self.states: dict[str, str] = {}

    def __call__(self, record: EventRecord) -> None:
        self.trace.seen.append(record.as_dict())
        match record.event:
            case BlockOps() as event:
                self.follow(event)
            case RequestStateChanged(req=req, from_=before, to=after):
                assert self.states.get(req, "waiting") == before
                self.states[req] = after

    def follow(self, event: BlockOps) -> None:
        for op, block_id, a, b in event.ops:
            match op:
                case "A" | "C":
                    assert not self.owners[block_id]
                    self.owners[block_id] = 1
                case "S":
                    self.owners[block_id] += 1
                    assert self.owners[block_id] == b
                case "R":
                    self.owners[block_id] -= 1
                    assert self.owners[block_id] == a
                case "F":
                    assert 0 < a <= BLOCK_SIZE and self.owners[block_id]
                case "E":  # evicted, or about to be written again by its only owner
                    assert self.owners[block_id] <= 1
        used = sum(count > 0 for count in self.owners.values())
        manager = self.trace.scheduler.kv_cache_manager
        num_blocks = manager.block_pool.num_blocks
        assert event.used == used == num_blocks - event.cached - event.free
        assert event.waste_tok == manager.num_wasted_slots()


class Trace:
    """Args: store: that an engine before this one has filled; left out, some traces have an empty one."""

    def __init__(self, seed: int, store: FakeStore | None = None) -> None:
        self.rng = rng = random.Random(seed)
        self.now = 0.0
        self.bus = EventBus(lambda: self.now)
        self.seen: list[object] = []  # every decision
        self.num_logprobs: dict[
            str, int
        ] = {}  # positions of each prompt whose log-probabilities were asked for
        self.known = dict[str, int]()  # tokens of each request that execution has been told of
        self.counts: Counter[str] = Counter()
        if rng.random() < 0.5:
            self.bus.subscribe(Watcher(self), Level.STEP)
        # Other sources of chance, so that traces stay what they were before.
        self.more = random.Random(f"{seed} more")
        self.callers = self.more.choice([("",), ("", "a"), ("", "a", "b")])
        of_windows = random.Random(f"{seed} windows")
        windows = of_windows.choice([(None,), (None,), (None, 6), (5,), (None, 3, 9), (3, 20)])
        num_extra_blocks = rng.choice([0, 0, 1, 3, 8, 60])
        self.store = (store or FakeStore()) if rng.random() < 0.3 else None
        self.use_kv_cache = rng.random() < 0.9
        caching = self.use_kv_cache and rng.random() < 0.7
        offloaded = Offload(
            rng.choice([0, 0, 3, 50]),
            rng.choice([1, 3, 40]) if caching and self.store is not None else 0,
        )
        max_num_seqs, budget = rng.choice([1, 2, 4, 16]), rng.choice([1, 3, 8, 64])
        state_pool = None
        if of_windows.random() < 0.3:  # recurrent states
            num_read_blocks = 0
            if caching and self.store is not None:
                num_read_blocks = of_windows.choice([3, 40])
            num_swap_slots = of_windows.choice([0, 8, 50])
            offloaded = Offload(num_swap_slots, num_read_blocks, of_windows.choice([1, 2]))
            num_snapshots = of_windows.choice([0, 1, 3, 16])
            state_pool = StatePool(max_num_seqs, num_snapshots, of_windows.choice([0, 1, 16]))
        num_blocks = BlockNeeds(BLOCK_SIZE, windows, budget).most(MAX_LENGTH) + num_extra_blocks
        pool = BlockPool(num_blocks)
        self.scheduler = Scheduler(
            KVCacheManager(
                pool, BLOCK_SIZE, caching, offloaded, windows, budget, state_pool, snapshot_tokens=8
            ),
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            use_kv_cache=self.use_kv_cache,
            events=self.bus,
            max_extra_logits=self.more.choice([None, 1, 5]),
        )
        self.blocks = FakeBlocks(BLOCK_SIZE, self.store, windows, state_pool is not None)
        self.num_arriving = rng.randrange(2, 12)
        self.requests: list[Request] = []
        self.beams: list[Beams] = []
        self.of_drafts = random.Random(f"{seed} drafts")
        self.has_drafts = self.of_drafts.random() < 0.5

    def run(self) -> None:
        num_steps = 0
        watched = self.bus.active
        while self.num_arriving or self.scheduler.has_unfinished_requests:
            while self.num_arriving and self.rng.random() < 0.4:
                self.num_arriving -= 1
                self.add()
            self.step()
            if self.rng.random() < 0.03:
                self.abort()
            self.now += self.rng.choice([0.1, 1.0, 10.0])
            num_steps += 1
            assert num_steps < 5000
        pool = self.scheduler.kv_cache_manager.block_pool
        assert pool.num_free_blocks == pool.num_blocks
        for read in self.blocks.reads:  # of requests that have ended meanwhile
            self.scheduler.finish_reading(read.read_id, self.store.read(read))
        assert not self.scheduler.kv_cache_manager.offload.reads._reads
        self.note(self.scheduler.schedule(self.now))  # tells who has ended
        assert not self.known
        everyone = {each.request_id for each in self.requests} | {*self.callers}
        assert not names_in(self.scheduler, everyone)
        assert watched or self.bus.last_seq == -1
        assert self.bus.active == watched  # a watcher that finds a fault is dropped

    def add(self) -> None:
        rng, name = self.rng, f"r{self.num_arriving}"
        trunk = [rng.randrange(1, 3)] * 16
        prompt = trunk[: rng.randrange(17)] + [
            rng.randrange(1, 23) for _ in range(rng.randrange(1, 12))
        ]
        max_tokens = rng.randrange(1, MAX_LENGTH - len(prompt) + 1)
        width = rng.choice([1, 1, 1, 3, 5])
        is_beam = width > 1 and rng.random() < 0.4
        max_time = rng.choice([None, None, None, 30.0])
        priority, salt = (
            rng.choice([0, 0, -3, 4]),
            rng.choice([NO_SALT, NO_SALT, CacheSalt("salt")]),
        )
        more, parent = self.more, None
        caller, with_logprobs = more.choice(self.callers), more.random() < 0.15
        if width == 1 and self.requests and more.random() < 0.2:
            parent = more.choice(self.requests)
            known = parent.token_ids(0, more.randrange(parent.num_known_tokens + 1))
            is_same = len(known) > 1 and more.random() < 0.3
            prompt = known if is_same else [*known, *prompt][: len(prompt) + 8]
            max_tokens = min(max_tokens, MAX_LENGTH - len(prompt) + 1)
        group = [
            Request(
                request_id=f"{name}/{stream}",
                prompt_token_ids=tuple(prompt),
                params=SamplingParams(
                    max_tokens=max_tokens,
                    max_time=max_time,
                    prompt_logprobs=1 if with_logprobs and not is_beam else None,
                ),
                seed=0,
                arrival_time=self.now,
                max_tokens=max_tokens,
                eos_token_ids=frozenset({END}),
                index=stream,
                cache_salt=salt,
                priority=priority,
                caller=caller,
                caller_weight=3.0 if caller == "a" else 1.0,
                num_candidates=4 if is_beam else 0,
            )
            for stream in range(width)
        ]
        self.scheduler.add_request(*group)
        if parent is not None and parent.status is not RequestStatus.FINISHED:
            shared = self.scheduler.continue_from(group[0], parent, len(known))
            self.counts["shared"] += shared
        self.requests += group
        if is_beam:
            self.beams.append(Beams(group, [[] for _ in group]))

    def step(self) -> None:
        scheduler = self.scheduler
        for read in list(self.blocks.reads):
            if self.rng.random() < 0.4:
                self.blocks.reads.remove(read)
                found = self.store.read(read)
                scheduler.finish_reading(read.read_id, found)
        if self.rng.random() < 0.01:
            scheduler.cancel_reading()
        if self.bus.active and self.more.random() < 0.05:
            self.seen.append(scheduler.snapshot(0, with_tokens=True))
        if self.has_drafts:
            scheduler.draft({each.request_id: self.draft(each) for each in scheduler.running})
        output = scheduler.schedule(self.now)
        self.note(output)
        self.blocks.run(scheduler.kv_cache_manager.take_block_ops())
        assert output.num_tokens <= scheduler.max_num_batched_tokens
        assert len({share.request_id for share in output.scheduled}) == len(output.scheduled)
        sampled, delivered = {}, []
        for share, tables in zip(output.scheduled, output.block_tables, strict=True):
            self.blocks.compute(scheduler.requests[share.request_id], share, tables)
            for sampler in map(scheduler.requests.__getitem__, share.samplers):
                assert sampler.num_tokens == share.end
                if sampler.is_beam:
                    delivered.append(sampler)
                elif self.rng.random() < 0.01:
                    scheduler.finish(sampler, FinishReason.ERROR)
                else:
                    sampled[sampler.request_id] = self.verify(sampler)
        update(scheduler, output, sampled, self.now)
        self.blocks.run(scheduler.kv_cache_manager.take_block_ops())
        self.check_in_step()
        for beams in self.beams:
            beams.delivered.update(r.request_id for r in delivered if r in beams.requests)
            alive = all(r.status is not RequestStatus.FINISHED for r in beams.requests)
            wanted = len(beams.requests) if beams.expected[0] else 1
            if alive and len(beams.delivered) == wanted:
                beams.advance(scheduler)
                self.check_in_step()

    def note(self, output: SchedulerOutput) -> None:
        """Notes a decision, and checks that each log-probability of a prompt is asked for once."""
        num_extra = sum(share.num_extra_logits for share in output.scheduled)
        assert num_extra <= self.scheduler.max_extra_logits
        for name in output.ended:
            self.known.pop(name, None)
        for each in output.started:  # once, but for beams
            assert each.num_candidates or each.request_id not in self.known
            self.known[each.request_id] = len(each.output_token_ids)
        assert self.known.keys() >= {name for share in output.scheduled for name in share.samplers}
        started = [[each.request_id, each.stream, each.output_token_ids] for each in output.started]
        self.seen.append([started, output.ended, output.preempted])
        for share, tables in zip(output.scheduled, output.block_tables, strict=True):
            name, rows = share.request_id, share.prompt_logprob_rows
            first = self.num_logprobs.get(name, 0)
            assert not rows or first == share.start + rows.start
            self.num_logprobs[name] = max(first, share.start + rows.stop)
            assert share.num_logits == len(share.logits_rows)
            self.counts["tokens"] += share.num_scheduled_tokens
            self.counts["again"] += share.num_recomputed_tokens
            counts = share.num_scheduled_tokens, share.num_recomputed_tokens, share.num_draft_tokens
            places = tables, share.state_slot
            self.seen.append((name, share.start, *counts, [*share.samplers], *places))
        self.counts["steps"] += 1
        self.counts["preempted"] += len(output.preempted)

    def course(self) -> tuple[Counter[str], list[object]]:
        """Counts of its work, and everything that was seen."""
        ops = [recorded(op) for op in self.blocks.ops]
        counts = self.counts + Counter(name for name, _ in ops)
        ends = [(each.stop_reason, each.num_cached_tokens) for each in self.requests]
        return counts, [*self.seen, [text for _, text in ops], ends]

    def draft(self, request: Request) -> list[int]:
        """Guesses of which the first ones are right."""
        length, num_right = (self.of_drafts.choice([0, 1, 2, 6]) for _ in range(2))
        token_ids = request.token_ids(0, request.num_known_tokens)
        drafts = []
        for _ in range(length):
            token_id = next_token([*token_ids, *drafts], request.index)
            drafts.append(token_id if len(drafts) < num_right else 23)
        return drafts

    def verify(self, request: Request) -> list[int]:
        """The right drafts of a request, and one token more."""
        token_ids = request.token_ids(0, request.num_known_tokens)
        sampled = [next_token(token_ids, request.index)]
        for draft in request.draft_token_ids:
            if sampled[-1] != draft or draft == END:
                break
            self.counts["right drafts"] += 1
            sampled.append(next_token([*token_ids, *sampled], request.index))
        return sampled

    def check_in_step(self) -> None:
        self.scheduler.check_integrity()

    def abort(self) -> None:
        if self.requests:
            name = self.rng.choice(self.requests).request_id.split("/")[0]
            for request in self.requests:
                if request.request_id.startswith(f"{name}/"):
                    self.scheduler.finish(request, FinishReason.ABORT)
            self.check_in_step()


def test_the_traces_are_worth_running() -> None:
    for what in ("CopyState", "LoadBlock", "LoadState", "SwapInState", "shared", "right drafts"):
        assert COURSES.total(what) > 9, what


@pytest.mark.parametrize("seed", range(NUM_TRACES))
def test_random_traces(seed: int) -> None:
    trace = Trace(seed)
    trace.run()
    counts, seen = trace.course()
    requests = trace.requests
    if trace.store is not None and trace.store.blocks:  # what a restart finds
        again = Trace(seed, trace.store)
        again.run()
        counts, seen = counts + again.course()[0], [*seen, *again.course()[1]]
        requests = requests + again.requests
    COURSES.check(seed, counts, seen)
    for request in requests:
        if request.is_beam:
            continue
        expected = continuation(request)
        assert request.output_token_ids == expected[: request.num_output_tokens]
        cut_short = request.finish_reason in (FinishReason.ABORT, FinishReason.ERROR)
        if not cut_short and request.stop_reason != "max_time":
            assert request.output_token_ids == expected
