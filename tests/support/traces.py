"""Random traces through an engine, each made from one seed, and the properties that all traces must have.

A trace is plain data: requests with their moments of arrival and abort, and the knobs of the engine
that they meet. Every request must get what it gets alone on an engine of its own.
"""

import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any

from pellucid.backends.ops import BlockBytes
from pellucid.engine import LLMEngine
from pellucid.facts.kv_groups import block_needs
from pellucid.facts.model_config import ModelConfig
from pellucid.inputs.beam_search_params import BeamSearchParams, RequestParams
from pellucid.inputs.config import fitting_block_size
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.inputs.structured_outputs import StructuredOutputsParams
from pellucid.observing.event_bus import Interest
from pellucid.observing.events import BlockOps, EventRecord, Hello, Level, Warn
from pellucid.observing.ledger import Part
from pellucid.observing.logged_events import records_of
from pellucid.outputs import CompletionDelta, RequestOutput
from pellucid.scheduling.block_ops import BlockOp
from pellucid.scheduling.request import Request
from pellucid.speculation.proposers.proposer import Proposer
from support.courses import Courses
from support.fake_model import FakeClock
from support.kept_names import names_in

# All others must not change an answer.
KNOBS_OF_THE_ANSWER = ("max_model_len", "kv_cache_dtype", "quantization")

BLOCK_OPS = {"C": "copied", "E": "evicted", "O": "swapped out", "I": "swapped in", "L": "loaded"}

# Of knobs, the clock and what guesses tokens.
MakeEngine = Callable[[Mapping[str, object], FakeClock, Proposer | None], LLMEngine]


@dataclass(frozen=True)
class TraceSpace:
    """What traces are drawn from, besides what any engine takes.

    Attributes:
        vocab_size: token ids below it make the prompts.
        stops: strings that answers may well contain.
        block_bytes: at least as large as any block.
        knobs: further knobs of the engine, and the values that they take.
        prefix_store: for blocks that outlive an engine; None: they are not kept.
    """

    vocab_size: int
    stops: Sequence[str]
    block_bytes: int
    knobs: Mapping[str, Sequence[object]] = field(default_factory=dict)
    prefix_store: str | None = None


@dataclass(frozen=True)
class TracedRequest:
    """One request.

    Attributes:
        arrival: before which step it is added.
        abort: before which step it is aborted, if it is under way then.
    """

    prompt: tuple[int, ...]
    params: RequestParams
    arrival: int
    abort: int | None
    priority: int
    cache_salt: str | None
    caller: str

    @property
    def is_ranked(self) -> bool:
        """Whether which of its completions are given depends on all of them."""
        return isinstance(self.params, BeamSearchParams) or self.params.ranks

    @property
    def is_ranked_early(self) -> bool:
        """Whether the best of its answers may be chosen before all of them are complete."""
        if isinstance(self.params, BeamSearchParams):
            return self.abort is not None
        cut_short = self.abort is not None or self.params.max_time is not None
        return self.params.ranks and cut_short


@dataclass(frozen=True)
class Trace:
    """Everything that happens to an engine.

    Attributes:
        requests: in order of arrival.
        vocab_size: drafts hold token ids below it.
        drafts: whether somebody guesses tokens.
        faults: whether transfers of blocks, and reads of blocks on disk, fail now and then.
    """

    seed: int
    knobs: Mapping[str, object]
    requests: tuple[TracedRequest, ...]
    vocab_size: int
    drafts: bool
    faults: bool


def make_trace(seed: int, space: TraceSpace) -> Trace:
    rng = random.Random(seed)
    block_size = rng.choice([16, 16, 32])
    max_model_len = rng.choice([64, 80, 128])  # longest prompt + output
    knobs: dict[str, Any] = {
        "max_model_len": max_model_len,
        "block_size": block_size,
        # From room for one context, where everybody preempts everybody, to room for all.
        "num_kv_blocks": -(-max_model_len // block_size) + rng.choice([0, 0, 1, 2, 4, 40]),
        "max_num_seqs": rng.choice([1, 2, 3, 5, 16]),
        "max_num_batched_tokens": rng.choice([3, 7, 17, 40, 2048]),
        "enable_prefix_caching": rng.random() < 0.75,
        "use_kv_cache": rng.random() < 0.9,
        "swap_space": space.block_bytes * rng.choice([0, 0, 1, 3, 30]),
        "speculation": rng.choice(["off", "auto", "ngram"]),
        "num_draft_tokens": rng.choice([1, 2, 6, 32]),
    }
    knobs.update({name: rng.choice(values) for name, values in space.knobs.items()})
    fitting = fitting_block_size(block_size, str(knobs.get("kv_cache_dtype")))
    num_fewer = -(-max_model_len // block_size) - -(-max_model_len // fitting)
    knobs |= {"block_size": fitting, "num_kv_blocks": knobs["num_kv_blocks"] - num_fewer}
    if space.prefix_store is not None and rng.random() < 0.4:
        knobs.update(
            prefix_store=space.prefix_store,
            prefix_cache_bytes=space.block_bytes * rng.choice([10, 10_000]),
            enable_prefix_caching=True,
            use_kv_cache=True,
        )
    # Prompts begin with parts of a few trunks, so that many share blocks.
    longest = max_model_len * 2 // 3
    trunks = [
        [rng.randrange(space.vocab_size) for _ in range(longest)]
        for _ in range(rng.randrange(1, 3))
    ]
    # Another source of chance, so that traces stay what they were before there were callers.
    of_callers = random.Random(f"{seed} callers")
    callers = of_callers.choice([("",), ("", "a"), ("", "a", "a", "b")])
    of_draws = random.Random(f"{seed} draws")
    requests, arrival = [], 0
    for _ in range(rng.randrange(2, rng.choice([6, 10, 16]))):
        arrival += rng.choice([0, 0, 0, 1, 2, 5])
        head = rng.choice(trunks)[: rng.choice([0, rng.randrange(longest), 16, 33, longest])]
        tail = [rng.randrange(space.vocab_size) for _ in range(rng.randrange(0 if head else 1, 6))]
        requests.append(
            TracedRequest(
                prompt=(*head, *tail),
                params=_with_draws(_random_params(rng, space), of_draws, space),
                arrival=arrival,
                abort=arrival + rng.randrange(30) if rng.random() < 0.12 else None,
                priority=rng.choice([0, 0, 0, -2, 1, 3]),
                cache_salt=rng.choice([None, None, None, None, None, "a"]),
                caller=of_callers.choice(callers),
            )
        )
    return Trace(
        seed,
        knobs,
        tuple(requests),
        space.vocab_size,
        drafts=rng.random() < 0.6,
        faults=rng.random() < 0.3,
    )


def with_room_for_groups(knobs: Mapping[str, object], config: ModelConfig) -> dict[str, object]:
    """`knobs` of a trace with as many blocks beyond those of a context, on a model with several groups."""
    if "num_kv_blocks" not in knobs:
        return dict(knobs)
    block_size, length = knobs["block_size"], knobs["max_model_len"]
    needs = block_needs(config, block_size, knobs["max_num_batched_tokens"])
    num_extra = knobs["num_kv_blocks"] - -(-length // block_size)
    return {**knobs, "num_kv_blocks": needs.most(length) + num_extra}


NO_DRAFTS = ("injected: no drafts",)  # what a proposer raises now and then
INJECTED = "OSError: injected"  # the reason of requests that end by a fault


class Faults:
    """Makes transfers of blocks fail, before their last op or in the middle, and reads from disk.

    Attributes:
        counts: of what failed.
    """

    def __init__(self, seed: int, engine: LLMEngine) -> None:
        self.counts: Counter[str] = Counter()
        self._rng = random.Random(seed)
        transfer = engine.model_runner._block_transfer
        self._run, transfer.run = transfer.run, self.run
        store = engine._core.prefix_store
        if store is not None:
            directory = store._store
            self._read, directory.read = directory.read, self.read

    def run(self, ops: Sequence[BlockOp]) -> None:
        if ops and self._rng.random() < 0.3:
            self._run(ops[: self._rng.randrange(len(ops) + 1)])
            self.counts["failed transfers"] += 1
            raise OSError("injected")
        self._run(ops)

    def read(self, block_hash: bytes) -> BlockBytes | None:
        if self._rng.random() < 0.1:
            self.counts["failed reads"] += 1
            raise OSError("injected")
        return self._read(block_hash)


class ScriptedProposer(Proposer):
    """Drafts of every length that are right, wrong, or right up to a point; or it fails.

    Attributes:
        expected: by request id, the output that the request will have; without it drafts are random.
        counts: what it proposed.
    """

    def __init__(self, seed: int, vocab_size: int) -> None:
        self.expected: dict[str, list[int]] = {}
        self.counts: Counter[str] = Counter()
        self._rng = random.Random(seed)
        self._vocab_size = vocab_size

    def propose(
        self, requests: Sequence[Request], max_drafts: Mapping[str, int]
    ) -> dict[str, list[int]]:
        rng = self._rng
        if rng.random() < 0.02:
            self.counts["failed proposals"] += 1
            raise RuntimeError(*NO_DRAFTS)
        drafts = {"nobody": [1]}
        for request in requests:
            length, num_right = rng.choice([0, 1, 2, 5, 9]), rng.choice([0, 1, 3, 9])
            expected = self.expected.get(request.request_id, [])
            known = expected[request.num_output_tokens :][: min(length, num_right)]
            # Beyond the end of the output too, and token ids that there are not.
            wrong = [rng.randrange(self._vocab_size + 2) for _ in range(length - len(known))]
            drafts[request.request_id] = [*known, *wrong]
            self.counts["drafts"] += length
            self.counts["right drafts"] += len(known)
        return drafts


def _random_params(rng: random.Random, space: TraceSpace) -> RequestParams:
    if rng.random() < 0.1:
        beam_width = rng.randrange(1, 5)
        return BeamSearchParams(
            beam_width=beam_width,
            n=rng.choice([None, 1]),
            length_penalty=rng.choice([1.0, -0.5]),
            early_stopping=rng.choice([False, True, "never"]),
            stop_token_ids=[rng.randrange(space.vocab_size)],
            max_tokens=rng.randrange(1, 10),
            ignore_eos=rng.choice([True, False]),
        )
    if rng.random() < 0.03:  # forbids the only token that it allows: it fails, and no other
        return SamplingParams(allowed_token_ids=[5], stop_token_ids=[5], min_tokens=1, seed=0)

    def sometimes(value: Any, otherwise: Any, chance: float = 0.1) -> Any:
        return value if rng.random() < chance else otherwise

    n = rng.choice([1, 1, 1, 1, 2, 3])
    max_tokens = rng.randrange(1, rng.choice([4, 14, 24]))
    return SamplingParams(
        n=n,
        best_of=sometimes(n + 2, None),
        temperature=rng.choice([0.0, 0.0, 1.0, 1.5]),
        top_k=sometimes(5, 0),
        top_p=sometimes(0.8, 1.0),
        repetition_penalty=sometimes(1.3, 1.0),
        presence_penalty=sometimes(0.5, 0.0),
        stop_token_ids=sometimes([rng.randrange(space.vocab_size)], [], 0.2),
        min_tokens=sometimes(min(3, max_tokens), 0, 0.2),
        max_tokens=max_tokens,
        max_time=sometimes(float(rng.randrange(1, 60)), None),  # in steps
        seed=rng.randrange(1000),
        logprobs=sometimes(rng.choice([0, 2]), None, 0.3),
        prompt_logprobs=sometimes(1, None),
        stop=sometimes([rng.choice(space.stops)], [], 0.3),
        include_stop_str_in_output=sometimes(True, False),
        ignore_eos=sometimes(True, False, 0.5),
        thinking_token_budget=sometimes(rng.randrange(4), None, 0.2),
    )


def _with_draws(params: RequestParams, rng: random.Random, space: TraceSpace) -> RequestParams:
    """The same request, with parameters of all stages of sampling for every second one."""
    if isinstance(params, BeamSearchParams) or params.allowed_token_ids or rng.random() < 0.5:
        return params

    def sometimes(value: Any, otherwise: Any) -> Any:
        return value if rng.random() < 0.2 else otherwise

    token_ids = range(space.vocab_size)
    return replace(
        params,
        temperature=rng.choice([0.0, 0.2, 0.5, 0.8, 1.2, 1.5]),
        top_k=sometimes(rng.choice([1, 3, 20]), params.top_k),
        top_p=sometimes(rng.choice([0.3, 0.95]), params.top_p),
        min_p=sometimes(rng.choice([0.02, 0.3]), 0.0),
        typical_p=sometimes(rng.choice([0.4, 0.9]), 1.0),
        frequency_penalty=sometimes(rng.choice([-0.5, 0.7, 2.0]), 0.0),
        logit_bias=sometimes({rng.choice(token_ids): 4.0, rng.choice(token_ids): -3.0}, ()),
        bad_words=sometimes([rng.choice(space.stops)], ()),
        allowed_token_ids=sometimes(rng.sample(token_ids, space.vocab_size // 2), None),
        structured_outputs=sometimes(StructuredOutputsParams(regex="[a-z ]{3,40}"), None),
    )


def check_trace(
    trace: Trace, make_engine: MakeEngine, courses: Courses | None = None, *, resumes: bool = False
) -> Counter[str]:
    """Runs a trace, and each of its requests alone; what happened in it, counted.

    Args:
        courses: of those traces that somebody listens to.
        resumes: engines of their own have begun most of the requests.

    Raises:
        AssertionError: something does not hold; the message has the seed.
    """
    try:
        counts: Counter[str] = Counter(traces=1)
        alone = [_alone(request, trace, make_engine) for request in trace.requests]
        begun: list[RequestOutput | None] = [None] * len(alone)
        if resumes:
            rng = random.Random(trace.seed)
            begun = [_begun(request, trace, make_engine, rng) for request in trace.requests]
        # A second engine finds what the first one left on disk.
        for _ in range(2 if "prefix_store" in trace.knobs else 1):
            run = _Run(trace, make_engine, alone, begun)
            outputs = run.outputs()
            for request, own, whole in zip(trace.requests, outputs, alone, strict=True):
                if not (trace.faults and request.is_ranked):
                    _assert_same(own, whole, request)
            counts += run.counts + _counts(outputs)
            counts["resumed"] += sum(each is not None for each in begun)
            if courses is not None and run.events:
                courses.check(trace.seed, run.counts + _counts(outputs), run.seen(outputs))
        return counts
    except Exception as error:
        raise AssertionError(
            f"trace {trace.seed} with {trace.knobs} fails: {error!r}\n"
            f"again: the same test with --traces 1 --first-trace {trace.seed}"
        ) from error


class _Run:
    """A trace on its way through an engine."""

    def __init__(
        self,
        trace: Trace,
        make_engine: MakeEngine,
        expected: Sequence[RequestOutput],
        begun: Sequence[RequestOutput | None],
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._requests = trace.requests
        self._expected = expected
        self._begun = begun
        self._clock = FakeClock()  # counts steps
        self._proposer = ScriptedProposer(trace.seed, trace.vocab_size) if trace.drafts else None
        self._engine = make_engine(trace.knobs, self._clock, self._proposer)
        self._faults = Faults(trace.seed, self._engine) if trace.faults else None
        self.events: list[EventRecord] = []
        if trace.seed % 2:  # whoever listens changes nothing, and hears the same at once and later
            interest = Interest(Level.TOKEN, None, can_wait=trace.seed % 4 == 3)
            self._engine.events.subscribe_lists(
                lambda batch: self.events.extend(records_of(batch)), interest
            )
        self._deltas: dict[tuple[str, int], list[CompletionDelta]] = defaultdict(list)

    def outputs(self) -> list[RequestOutput]:
        """Runs it to the end and looks at what is left."""
        with closing(self._engine):
            outputs = self._step_to_the_end()
        self._check_end(outputs)
        self._check_isolation(outputs)
        self._check_events()
        return outputs

    def _step_to_the_end(self) -> list[RequestOutput]:
        engine, arriving = self._engine, deque(self._requests)
        outputs: list[RequestOutput] = []
        while arriving or engine.has_unfinished_requests:
            now = self._clock.now
            while arriving and arriving[0].arrival <= now:
                outputs.append(self._add(arriving.popleft(), len(outputs)))
            for request, output in zip(self._requests, outputs, strict=False):
                if request.abort == now:
                    self._note(engine.abort(output.request_id))
            self._note(engine.step())
            engine.scheduler.check_integrity()
            self._clock.now += 1.0
        engine.step()  # tells execution who has ended
        self.counts["steps"] += int(self._clock.now)
        if self._proposer is not None:
            self.counts += self._proposer.counts
        if self._faults is not None:
            self.counts += self._faults.counts
        return outputs

    def seen(self, outputs: list[RequestOutput]) -> list[object]:
        """What listeners and callers were told, but for the machine and the time that it took."""
        self._engine.events.flush()
        records = [
            record.as_dict() for record in self.events if not isinstance(record.event, Hello)
        ]
        for record in records:
            record.pop("obs_frac", None)
        ends = [(asdict(output.metrics), output.num_cached_tokens) for output in outputs]
        drafts = self._engine.speculation
        return [*records, ends, None if drafts is None else asdict(drafts)]

    def _add(self, request: TracedRequest, index: int) -> RequestOutput:
        output = self._engine.add_prepared(
            self._engine.prepare(request.prompt, request.params),
            priority=request.priority,
            cache_salt=request.cache_salt,
            caller=request.caller,
            caller_weight=3.0 if request.caller == "a" else 1.0,
            resumes=self._begun[index],
        )
        if self._proposer is not None and not getattr(request.params, "ranks", True):
            for completion in self._expected[index].outputs:
                name = f"{output.request_id}/{completion.index}"
                self._proposer.expected[name] = completion.token_ids
        return output

    def _note(self, deltas: list[CompletionDelta]) -> None:
        for delta in deltas:
            self._deltas[delta.request_id, delta.index].append(delta)

    def _check_end(self, outputs: list[RequestOutput]) -> None:
        """Nothing is left in the engine, and what was streamed is what the outputs say."""
        assert not self._engine.unfinished_request_ids and not self._engine._completions
        ids = {f"{each.request_id}/{index}" for each in outputs for index in range(5)}
        left = names_in(self._engine, ids | {each.request_id for each in outputs})
        assert left <= {"DraftPolicy"}, left
        pool = self._engine.scheduler.kv_cache_manager.block_pool
        assert pool.num_free_blocks == pool.num_blocks
        for request, output, begun in zip(self._requests, outputs, self._begun, strict=True):
            assert output.finished
            self._check_ledger(output)
            for completion in output.outputs:
                deltas = self._deltas[output.request_id, completion.index]
                before = (
                    None if begun is None or request.is_ranked else begun.outputs[completion.index]
                )
                if before is not None and before.finish_reason is not None:
                    assert not deltas
                    continue
                token_ids = [] if before is None else [*before.token_ids]
                text = "" if before is None else before.text
                for delta in deltas:
                    token_ids += delta.token_ids
                    text += delta.text
                assert (token_ids, text) == (completion.token_ids, completion.text)
                assert [d.finish_reason for d in deltas[:-1]] == [None] * (len(deltas) - 1)
                assert deltas[-1].finish_reason == completion.finish_reason

    def _check_isolation(self, outputs: list[RequestOutput]) -> None:
        """Whose salt nobody else has finds nothing, unless it was here before and is on disk."""
        if self._engine.config.prefix_store is None:
            num_owners = Counter(request.cache_salt for request in self._requests)
            for request, output in zip(self._requests, outputs, strict=True):
                assert num_owners[request.cache_salt] > 1 or output.num_cached_tokens == 0

    def _check_ledger(self, output: RequestOutput) -> None:
        """Its parts tile the time from arrival to end."""
        ledger, metrics = output.ledger, output.metrics
        assert ledger is not None and metrics.finished_time is not None
        assert min(map(ledger.seconds, Part)) >= 0.0
        assert sum(map(ledger.seconds, Part)) == ledger.total_seconds
        assert ledger.total_seconds == metrics.finished_time - metrics.arrival_time

    def _check_events(self) -> None:
        """None is missing, none says that something went wrong, and counts of what they say."""
        for before, record in pairwise(self.events):
            assert record.seq == before.seq + 1 and record.t_us >= before.t_us
            assert self._faults is not None or not isinstance(record.event, Warn), record
            if isinstance(record.event, BlockOps):
                self.counts.update(BLOCK_OPS[op] for op, *_ in record.event.ops if op in BLOCK_OPS)


def _alone(request: TracedRequest, trace: Trace, make_engine: MakeEngine) -> RequestOutput:
    """What a fresh engine gives a request when nobody else is there and nothing is in its way."""
    kept = {name: trace.knobs[name] for name in KNOBS_OF_THE_ANSWER if name in trace.knobs}
    engine = make_engine({**kept, "enable_prefix_caching": False}, FakeClock(), None)
    params = request.params
    if isinstance(params, SamplingParams):
        params = replace(params, max_time=None)
    output = engine.add_request(request.prompt, params)
    while engine.has_unfinished_requests:
        engine.step()
    return output


def _begun(
    request: TracedRequest, trace: Trace, make_engine: MakeEngine, rng: random.Random
) -> RequestOutput | None:
    """A request that a fresh engine has given some tokens; None where it has none to go on with."""
    num_steps = rng.randrange(-4, 12)
    if num_steps < 0 or isinstance(request.params, BeamSearchParams):
        return None
    kept = {name: trace.knobs[name] for name in KNOBS_OF_THE_ANSWER if name in trace.knobs}
    engine = make_engine(kept, FakeClock(), None)
    output = engine.add_request(request.prompt, replace(request.params, max_time=None))
    for _ in range(num_steps):
        engine.step()
    return None if output.finished else output


def _assert_same(output: RequestOutput, alone: RequestOutput, request: TracedRequest) -> None:
    if not request.is_ranked_early:
        for own, whole in zip(output.outputs, alone.outputs, strict=True):
            # Of those that were cut short their beginning.
            if own.finish_reason == "abort" or own.stop_reason in ("max_time", INJECTED):
                num_tokens = len(own.token_ids)
                assert own.token_ids == whole.token_ids[:num_tokens]
                if own.logprobs is not None:
                    assert own.logprobs == whole.logprobs[:num_tokens]
            else:
                assert own == whole
    told, whole_prompt = output.prompt_logprobs or [], alone.prompt_logprobs or []
    is_whole = any(own.token_ids for own in output.outputs)
    assert told == (whole_prompt if is_whole else whole_prompt[: len(told)])


def _counts(outputs: list[RequestOutput]) -> Counter[str]:
    counts = Counter({"requests": len(outputs)})
    for output in outputs:
        counts["cached"] += output.num_cached_tokens > 0
        counts["preempted"] += output.metrics.num_preemptions > 0
        counts.update(str(completion.finish_reason) for completion in output.outputs)
    return counts
