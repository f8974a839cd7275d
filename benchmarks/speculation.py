"""Speculation against none: whether `auto` is ever slower, and whether set acceptance gives the speed of the formula.

    python benchmarks/speculation.py auto [--shape qwen2.5-0.5b] [--quantization int4] [--turns 24]
    python benchmarks/speculation.py formula [--shape llama-3.2-1b] [--quantization int8] [--results FILE]

Both kinds of engine live in one process, on the same weights, and take turns of a request (or of 32) each, in
the order off, on, on, off. The ratio of two neighbouring turns says little of what else the machine does; its
median over all pairs is what counts.

auto     Free text, a text that is being edited, 32 requests together, and the first two beside busy processes. The
         bundled model writes free text of its own. Where a text is given (an edit, and all texts of random
         weights), every step is computed in full, and its greedy tokens are then replaced by those of the text.
         An edit replaces, inserts or removes one token in 25.
formula  The tokens of random weights are known from a run without drafts: the text is the same with them. A
         draft model is really run for each draft, and its token is then replaced by the right one or a wrong
         one: each is right with probability a, given those before it. c and v are measured in the same turns.
         With `--results` the file gets a line for each a and k that is complete, and those in the file are not
         measured again.
"""

import argparse
import json
import math
import multiprocessing
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import cycle, islice
from pathlib import Path

import numpy as np

import pellucid
from pellucid.backends.ops import ForwardBatch
from pellucid.backends.quantization.formats import FORMATS
from pellucid.benchmark.random_model import random_model
from pellucid.benchmark.workloads import Decode
from pellucid.engine import LLMEngine
from pellucid.execution.model_runner import ComputedStep, ModelRunner
from pellucid.execution.sampler import Sampler
from pellucid.facts import formulas
from pellucid.facts.model_config import MLPConfig
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.loaded_model import LoadedModel, load_model
from pellucid.loading.random_parameters import RandomParameters
from pellucid.models.registry import decoder_class
from pellucid.scheduling.block_pool import BlockPool
from pellucid.scheduling.kv_cache_manager import KVCacheManager
from pellucid.scheduling.request import Request
from pellucid.scheduling.scheduler_output import ScheduledRequest
from pellucid.speculation.proposers.draft_model import DraftModel
from pellucid.speculation.proposers.proposer import Proposer

HELD_OUT = Path(pellucid.__file__).with_name("assets") / "held-out.json"
TOGETHER = 32
NUM_BUSY = 3
AUTO_CASES = ("free", "edit", "edit-ngram", "together", "free-busy", "edit-busy")
TOKENS_PER_EDIT = 25
EDITS = ("replace", "insert", "remove")
GOLDEN_RATIO = (1 + 5**0.5) / 2
# The draft model of `formula` has the target's vocabulary and head dim, and little else.
DRAFT_LAYERS, DRAFT_HEADS, DRAFT_HIDDEN_SIZE, DRAFT_INTERMEDIATE_SIZE = 2, 8, 512, 1024


@dataclass(frozen=True)
class Work:
    """A request of a turn; `text` is what its answer will be, None leaves that to the model."""

    prompt: Sequence[int]
    params: SamplingParams
    text: Sequence[int] | None = None


class Script:
    """Replaces the greedy tokens of an engine by those of given texts, after its steps have been computed."""

    def __init__(self, engine: LLMEngine) -> None:
        self.texts: dict[str, Sequence[int]] = {}
        self._execute = engine.model_runner.execute
        engine.model_runner.execute = self.execute  # type: ignore[method-assign]

    def execute(
        self, scheduled_requests: Sequence[ScheduledRequest], batch: ForwardBatch
    ) -> ComputedStep:
        computed = self._execute(scheduled_requests, batch)
        if not self.texts:
            return computed
        drawn, end = dict(computed.drawn), 0
        for scheduled in scheduled_requests:
            end += scheduled.num_logits
            text = self.texts[scheduled.request_id]
            num_known_tokens = scheduled.end - scheduled.num_draft_tokens
            num_output_tokens = num_known_tokens - scheduled.num_prompt_tokens
            first = end - len(scheduled.sampled_rows)
            for row in range(first, end):
                index = num_output_tokens + row - first
                drawn[scheduled.request_id, row] = text[min(index, len(text) - 1)]
        return ComputedStep(computed.rows, drawn)


@dataclass(frozen=True)
class Turn:
    """What one turn took: wall time and CPU time of the whole process, and the wall time from the first token of
    a request to its last one on average, in seconds."""

    num_tokens: int
    seconds: float
    cpu_seconds: float
    decode_seconds: float


class Contestant:
    """An engine that takes turns."""

    def __init__(self, engine: LLMEngine) -> None:
        self.engine = engine
        self._script = Script(engine)

    def turn(self, works: Sequence[Work]) -> Turn:
        """Runs requests to their ends."""
        self._script.texts = {
            f"{number}/0": work.text for number, work in enumerate(works) if work.text is not None
        }
        begin, cpu = time.perf_counter(), time.process_time()
        outputs = [
            self.engine.add_request(list(work.prompt), work.params, str(number))
            for number, work in enumerate(works)
        ]
        while self.engine.has_unfinished_requests:
            self.engine.step()
        seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
        num_tokens = sum(len(each.outputs[0].token_ids) for each in outputs)
        decode_seconds = [each.metrics.decode_seconds or 0.0 for each in outputs]
        return Turn(num_tokens, seconds, cpu, statistics.mean(decode_seconds))


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Keeps `count` processes busy, and has this process share the processor with them: without the real-time
    priority that it may have been started with."""
    if not count:
        yield
        return
    with _ordinary_priority():
        processes = [multiprocessing.Process(target=_spin, daemon=True) for _ in range(count)]
        for process in processes:
            process.start()
        try:
            yield
        finally:
            for process in processes:
                process.terminate()
                process.join()


@contextmanager
def _ordinary_priority() -> Iterator[None]:
    policy, priority = os.sched_getscheduler(0), os.sched_getparam(0)
    _schedule_threads(os.SCHED_OTHER, os.sched_param(0))
    try:
        yield
    finally:
        _schedule_threads(policy, priority)


def _schedule_threads(policy: int, priority: os.sched_param) -> None:
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setscheduler(int(thread.name), policy, priority)


def _spin() -> None:
    parent = os.getppid()
    while os.getppid() == parent:  # a parent that is killed leaves no busy process behind
        pass


def pairs(
    off: Contestant, on: Contestant, works: Callable[[int], Sequence[Work]], num_pairs: int
) -> list[tuple[Turn, Turn]]:
    """Turns (without, with) on the same work, in the order off, on, on, off. The first pair warms up."""
    found = []
    for number in range(num_pairs + 1):
        order = (off, on) if number % 2 else (on, off)
        turns = {each: each.turn(works(number)) for each in order}
        assert turns[off].num_tokens == turns[on].num_tokens
        found.append((turns[off], turns[on]))
    return found[1:]


def describe(name: str, found: Sequence[tuple[Turn, Turn]], contestant: Contestant) -> str:
    ratios = sorted(without.seconds / with_.seconds for without, with_ in found)
    cpu = statistics.median(without.cpu_seconds / with_.cpu_seconds for without, with_ in found)
    decode = statistics.median(
        without.decode_seconds / with_.decode_seconds for without, with_ in found
    )
    quarter = len(ratios) // 4
    rate = statistics.median(turn.num_tokens / turn.seconds for turn, _ in found)
    counters = contestant.engine.speculation
    assert counters is not None
    return (
        f"{name:34s} {statistics.median(ratios):6.3f}x   {ratios[quarter]:.3f} .. {ratios[-1 - quarter]:.3f}"
        f"  {decode:6.3f}x  {cpu:6.3f}  {rate:8.1f}  {counters.num_drafts:6d}"
        f"  {counters.acceptance:6.1%}  {counters.reason}"
    )


# ---- auto


def texts_of(tokenizer_model: LoadedModel) -> list[list[int]]:
    held_out = json.loads(HELD_OUT.read_text())
    return [tokenizer_model.tokenizer.encode(text) for text in held_out["texts"]]


def edited(token_ids: Sequence[int], rng: random.Random) -> list[int]:
    """The text as someone who edits it writes it: here and there a token is replaced, inserted or removed."""
    text: list[int] = []
    for token_id in token_ids:
        edit = rng.choice(EDITS) if rng.random() < 1 / TOKENS_PER_EDIT else None
        if edit in ("replace", "insert"):
            text.append(rng.randrange(300, 4000))
        if edit in (None, "insert"):
            text.append(token_id)
    return text


def measure_auto(args: argparse.Namespace) -> None:
    bundled = load_model(EngineConfig(num_threads=args.num_threads))
    model = bundled
    if args.shape is not None:
        config = EngineConfig(quantization=args.quantization, num_threads=args.num_threads)
        model = random_model(args.shape, config, [Decode(64, 512, TOGETHER)])
    texts = texts_of(bundled)
    rng = random.Random(0)
    num_tokens = args.tokens

    def params(**fields: object) -> SamplingParams:
        return SamplingParams(max_tokens=num_tokens, ignore_eos=True, **fields)  # type: ignore[arg-type]

    def free(number: int) -> list[Work]:
        text = texts[number % len(texts)]
        prompt, rest = text[:32], list(islice(cycle(text[32:]), num_tokens))
        if args.shape is None:  # a text of its own
            return [Work(prompt, params(temperature=0.8, seed=number))]
        return [Work(prompt, params(temperature=0), rest)]

    def edit(number: int) -> list[Work]:
        text = texts[number % len(texts)]
        rng.seed(number)
        answer = list(islice(cycle(edited(text, rng)), num_tokens))
        return [Work([*text, *range(40, 56)], params(temperature=0), answer)]

    def together(number: int) -> list[Work]:
        return [free(TOGETHER * number + index)[0] for index in range(TOGETHER)]

    def engine(speculation: str) -> Contestant:
        return Contestant(
            LLMEngine(
                EngineConfig(
                    quantization=args.quantization,
                    speculation=speculation,
                    num_draft_tokens=args.num_draft_tokens,
                    num_kv_blocks=TOGETHER * 24,
                    max_model_len=1024,
                    # The same texts come again and again: no engine may find what it has seen.
                    enable_prefix_caching=False,
                ),
                model,
            )
        )

    print(f"{model.name}, {args.quantization}: off / on, medians of {args.turns} pairs of turns")
    print(
        "                                    median   quartiles       decode     CPU  off tok/s  drafts   right"
    )
    cases: dict[str, tuple[str, str, Callable[[int], list[Work]], int]] = {
        "free": ("free text", "auto", free, 0),
        "edit": ("a text being edited", "auto", edit, 0),
        "edit-ngram": ("a text being edited, ngram", "ngram", edit, 0),
        "together": (f"{TOGETHER} together", "auto", together, 0),
        "free-busy": ("free text, busy machine", "auto", free, NUM_BUSY),
        "edit-busy": ("a text being edited, busy machine", "auto", edit, NUM_BUSY),
    }
    assert tuple(cases) == AUTO_CASES
    for name in args.cases:
        title, speculation, works, num_busy = cases[name]
        on = engine(speculation)
        with busy_processes(num_busy):
            num_turns = max(4, args.turns // 4) if works is together else args.turns
            print(describe(title, pairs(engine("off"), on, works, num_turns), on), flush=True)


# ---- formula


class SetAcceptance(Proposer):
    """Runs a draft model, and replaces its tokens so that so many are right as a set acceptance says.

    The numbers of right drafts of the rounds are quantiles of their distribution, taken at the multiples of the
    golden ratio: their mean is the set one after few rounds.

    Args:
        draft_model: makes as many drafts as are wanted.
        text: the request's output.
        acceptance: of each draft, given those before it, below 1.
        vocab_size: for wrong tokens.
    """

    def __init__(
        self, draft_model: DraftModel, text: Sequence[int], acceptance: float, vocab_size: int
    ) -> None:
        self._draft_model = draft_model
        self._text = text
        self._acceptance = acceptance
        self._vocab_size = vocab_size
        self._num_rounds = 0
        self.seconds: list[float] = []  # for a draft, in each round
        self.num_drafts = 0

    def propose(
        self, requests: Sequence[Request], max_drafts: Mapping[str, int]
    ) -> dict[str, list[int]]:
        begin = time.perf_counter()
        drafts = self._draft_model.propose(requests, dict.fromkeys(max_drafts, self.num_drafts))
        duration = time.perf_counter() - begin
        for request in requests:
            drafted = drafts.get(request.request_id, [])
            if drafted:
                self.seconds.append(duration / len(drafted))
            self._num_rounds += 1
            quantile = self._num_rounds * GOLDEN_RATIO % 1
            num_right = int(math.log(1 - quantile) / math.log(self._acceptance))
            drafts[request.request_id] = [
                token_id if index < num_right else (token_id + 1) % self._vocab_size
                for index, token_id in enumerate(
                    self._text[request.num_output_tokens :][: len(drafted)]
                )
            ]
        return drafts

    def forget(self, requests: Sequence[Request]) -> None:
        self._draft_model.forget(requests)


class ForwardTimes:
    """Seconds of the forwards of decode steps."""

    def __init__(self, engine: LLMEngine) -> None:
        self.seconds: list[float] = []
        self._execute = engine.model_runner.execute
        engine.model_runner.execute = self.execute  # type: ignore[method-assign]

    def execute(
        self, scheduled_requests: Sequence[ScheduledRequest], batch: ForwardBatch
    ) -> ComputedStep:
        begin = time.perf_counter()
        computed = self._execute(scheduled_requests, batch)
        if all(each.is_decoding for each in scheduled_requests):
            self.seconds.append(time.perf_counter() - begin)
        return computed


def small_model(target: LoadedModel, quantization: str) -> LoadedModel:
    """A draft model of random weights, with the target's vocabulary and on its backend."""
    layer = target.config.layers[0]
    small = replace(
        layer,
        attention=replace(layer.attention, num_heads=DRAFT_HEADS, num_kv_heads=DRAFT_HEADS),
        mlp=MLPConfig(DRAFT_INTERMEDIATE_SIZE, "silu"),
    )
    config = replace(target.config, hidden_size=DRAFT_HIDDEN_SIZE, layers=(small,) * DRAFT_LAYERS)
    parameters = RandomParameters(target.backend.weights, FORMATS.get(quantization))
    decoder = decoder_class(config.architecture)(config, parameters, target.backend.ops)
    compiled = target.backend.compile(decoder, config)
    return replace(target, name="draft", config=config, decoder=compiled)


@dataclass(frozen=True)
class FormulaResult:
    """What set acceptance gave.

    Args:
        acceptance: a.
        num_drafts: k.
        draft_cost: c, of drafting one token, in plain steps.
        verify_cost: v, of a step that verifies the drafts, in plain steps.
        speedups: of decode, in pairs of turns.
        tokens_per_round: that the drafts gave.
    """

    acceptance: float
    num_drafts: int
    draft_cost: float
    verify_cost: float
    speedups: list[float]
    tokens_per_round: float

    def __str__(self) -> str:
        a, k = self.acceptance, self.num_drafts
        expected = formulas.draft_speedup(a, k, self.draft_cost, self.verify_cost)
        speedups = sorted(self.speedups)
        measured, quarter = statistics.median(speedups), len(speedups) // 4
        return (
            f"{a:.1f}  {k}  {self.draft_cost:.3f}  {self.verify_cost:.3f}  {expected:6.2f}x  {measured:7.2f}x"
            f"  {measured / expected:17.2f}  {speedups[quarter]:.2f} .. {speedups[-1 - quarter]:.2f}"
            f"   {self.tokens_per_round:.2f} of {formulas.expected_tokens(a, k):.2f} tokens a round"
        )


def measure_formula(args: argparse.Namespace) -> None:
    results: dict[tuple[float, int], FormulaResult] = {}
    if args.results is not None and args.results.exists():
        for line in args.results.read_text().splitlines():
            result = FormulaResult(**json.loads(line))
            results[result.acceptance, result.num_drafts] = result
    wanted = [(a, k) for a in args.acceptances for k in args.drafts]
    if any(case not in results for case in wanted):
        bench = FormulaBench(args)
    print(
        f"{args.shape}, {args.quantization}; draft model: {args.draft_quantization},"
        f" {DRAFT_LAYERS} layers, hidden size {DRAFT_HIDDEN_SIZE}"
    )
    print("  a  k     c      v   formula  measured  measured / formula   quartiles   acceptance")
    for case in wanted:
        if case not in results:
            results[case] = bench.measure(*case)
            if args.results is not None:
                with args.results.open("a") as file:
                    print(json.dumps(asdict(results[case])), file=file)
        print(results[case], flush=True)


class FormulaBench:
    """A target and a draft model, both of random weights, and the target's text without drafts."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._num_turns = args.turns
        self._target = random_model(
            args.shape, EngineConfig(quantization=args.quantization), [Decode(64, 512, 8)]
        )
        self._draft = small_model(self._target, args.draft_quantization)
        self._config = EngineConfig(
            quantization=args.quantization,
            speculation="off",
            num_kv_blocks=64,
            max_model_len=2048,
            enable_prefix_caching=False,
        )
        prompt = np.random.default_rng(0).integers(300, 4000, args.depth).tolist()
        params = SamplingParams(temperature=0, max_tokens=args.tokens, ignore_eos=True)
        self._work = Work(prompt, params)
        self._off = Contestant(LLMEngine(self._config, self._target))
        self._plain_steps = ForwardTimes(self._off.engine)
        output = self._off.engine.add_request(prompt, params)
        while self._off.engine.has_unfinished_requests:
            self._off.engine.step()
        self._text = output.outputs[0].token_ids

    def measure(self, acceptance: float, num_drafts: int) -> FormulaResult:
        draft, block_size = self._draft, self._config.block_size
        draft_model = DraftModel(
            ModelRunner(
                draft.decoder,
                draft.backend.make_kv_cache(draft.config, 64, block_size, "bf16"),
                block_size,
                Sampler(),
            ),
            KVCacheManager(BlockPool(64), block_size, enable_prefix_caching=False),
            self._target.config.vocab_size,
            self._config.max_num_batched_tokens,
            draft.config.context_length,
        )
        vocab_size = self._target.config.vocab_size
        proposer = SetAcceptance(draft_model, self._text, acceptance, vocab_size)
        proposer.num_drafts = num_drafts
        on = Contestant(LLMEngine(self._config, self._target, proposer=proposer))
        verifications = ForwardTimes(on.engine)
        self._plain_steps.seconds.clear()
        found = decode_pairs(self._off, on, self._work, self._num_turns, self._text)
        speedups = [without / with_ for without, with_ in found]
        plain = statistics.median(self._plain_steps.seconds)
        counters = on.engine.speculation
        assert counters is not None
        return FormulaResult(
            acceptance,
            num_drafts,
            statistics.median(proposer.seconds) / plain,
            statistics.median(verifications.seconds) / plain,
            speedups,
            counters.tokens_per_round,
        )


def decode_pairs(
    off: Contestant, on: Contestant, work: Work, num_pairs: int, text: Sequence[int]
) -> Iterator[tuple[float, float]]:
    """Seconds of decode, from the first token to the last, without and with drafts."""
    for number in range(num_pairs + 1):
        seconds = {}
        for each in (off, on) if number % 2 else (on, off):
            output = each.engine.add_request(list(work.prompt), work.params)
            while each.engine.has_unfinished_requests:
                each.engine.step()
            assert output.outputs[0].token_ids == text, "drafts changed the answer"
            assert output.metrics.decode_seconds is not None
            seconds[each] = output.metrics.decode_seconds
        if number:  # the first pair warms up
            yield seconds[off], seconds[on]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    auto = commands.add_parser("auto", help="auto against off")
    auto.add_argument("--shape", help="random weights instead of the bundled model")
    auto.add_argument("--quantization", default="none")
    auto.add_argument("--turns", type=int, default=24, help="pairs of turns")
    auto.add_argument("--tokens", type=int, default=128, help="output tokens of each request")
    auto.add_argument("--num-draft-tokens", type=int, default=EngineConfig.num_draft_tokens)
    auto.add_argument("--cases", nargs="+", choices=AUTO_CASES, default=AUTO_CASES)
    auto.add_argument(
        "--num-threads",
        type=int,
        help="1: CPU time then is what the work takes, on a busy machine too",
    )
    auto.set_defaults(measure=measure_auto)
    formula = commands.add_parser("formula", help="set acceptance against the formula")
    formula.add_argument("--shape", default="llama-3.2-1b")
    formula.add_argument("--quantization", default="int8")
    formula.add_argument("--draft-quantization", default="int4")
    formula.add_argument("--turns", type=int, default=8, help="pairs of turns for each a and k")
    formula.add_argument("--tokens", type=int, default=64)
    formula.add_argument("--depth", type=int, default=64, help="tokens of the prompt")
    formula.add_argument(
        "--results", type=Path, help="file of results: more are added, those in it are not measured"
    )
    formula.add_argument("--acceptances", type=float, nargs="+", default=[0.6, 0.8, 0.9])
    formula.add_argument("--drafts", type=int, nargs="+", default=[2, 4, 6])
    formula.set_defaults(measure=measure_formula)
    args = parser.parse_args()
    args.measure(args)


if __name__ == "__main__":
    main()
