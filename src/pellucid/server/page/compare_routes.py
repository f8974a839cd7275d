"""/v1/compare: the same work in several arms, really run on engines over the same weights."""

import asyncio
import math
import secrets
import time
from array import array
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from pellucid.async_engine import SideEngine
from pellucid.facts import formulas
from pellucid.facts.kv_groups import block_needs
from pellucid.inputs.config import fitting_block_size
from pellucid.inputs.prompts import EncodedPrompt
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.observing.events import BlockOps, DraftRound, DraftStep, EventRecord, Level, Step
from pellucid.outputs import CompletionDelta, RequestOutput
from pellucid.server.completion_id import CompletionId
from pellucid.server.endpoint import Call, GeneratedReply
from pellucid.server.errors import overloaded, refused
from pellucid.server.generation import cache_salt_of
from pellucid.server.page.fields import COMPARE_FIELDS, MAX_PROMPT_TOKENS, CompareBody
from pellucid.server.page.frames import event_frames
from pellucid.server.request_records import CallRecord, PromptRecord
from pellucid.server.serving import OneEngineHandlers

MAX_SECONDS = 120.0
MAX_SECONDS_BEFORE_REPEATING = 20.0
# With all formats of the KV cache side by side, in memory that no plan counts.
MAX_READ_TOKENS = 512
SEED_BITS = 48
DIGITS = 3  # of probabilities, behind the point
REFERENCE_FORMAT = "f32"  # of the KV cache: it rounds nothing


@dataclass(frozen=True)
class Arm:
    """One way to do the work.

    Attributes:
        name: for people and programs.
        num_seats: requests that run together.
        speculation: how drafts are made.
        num_drafts: most drafts of a round.
    """

    name: str
    use_kv_cache: bool = True
    kv_cache_dtype: str | None = None
    num_seats: int = 1
    speculation: str = "off"
    num_drafts: int = 1


def arms_of(body: CompareBody, dtype: str) -> tuple[Arm, ...]:
    """The arms of a comparison; `dtype` is the engine's format of the KV cache."""
    match body.kind:
        case "cache":
            return (Arm("cached"), Arm("naive", use_kv_cache=False))
        case "kv_dtype":
            names = dict.fromkeys(("bf16", dtype, "int8", "int4"))
            return tuple(Arm(name, kv_cache_dtype=name) for name in names)
        case "batch":
            return (Arm("one"), Arm("many", num_seats=body.batch))
        case "drafts":
            drafted = Arm("drafted", speculation=body.drafter, num_drafts=body.num_drafts)
            return (Arm("plain"), drafted)


@dataclass
class ArmTotals:
    """Totals of an arm so far.

    Attributes:
        pass_tok: tokens that went through the model.
        t_us: of its steps, without the time of other engines between them.
        kv_step_bytes: blocks in use within the last step; kv_peak_bytes: the most of them.
        held_peak_bytes: the most that were in use between two steps.
        kv_token_bytes: of keys and values of one position, in all layers.
        rounds: the drafts of each round, how many were right, and what the model chose instead.
        draft_us: time of making drafts, a part of t_us.
    """

    pass_tok: int = 0
    flops: int = 0
    moved_bytes: int = 0
    t_us: int = 0
    step_us: int = 0
    kv_step_bytes: int = 0
    kv_peak_bytes: int = 0
    held_peak_bytes: int = 0
    kv_token_bytes: float = 0.0
    rounds: list[tuple[Sequence[int], int, int | None]] = field(default_factory=list)
    draft_us: int = 0

    def take(self, record: EventRecord, block_bytes: int) -> None:
        event = record.event
        if isinstance(event, BlockOps):
            self.kv_step_bytes = event.used * block_bytes
            self.kv_peak_bytes = max(self.kv_peak_bytes, self.kv_step_bytes)
        elif isinstance(event, Step):
            self.pass_tok += sum(num_tokens for _, num_tokens, _ in event.batch)
            self.flops += event.flops
            self.moved_bytes += event.w_bytes + event.kv_read_bytes + event.kv_write_bytes
            self.step_us = event.sched_us + event.fwd_us + event.sample_us + event.emit_us
            self.t_us += self.step_us
        elif isinstance(event, DraftRound):
            self.rounds.append((event.draft, event.n_right, event.chosen))
        elif isinstance(event, DraftStep):
            self.draft_us += event.draft_us


@dataclass
class CompareRoutes(OneEngineHandlers):
    """The handler of the route."""

    _running: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def compare(self, call: Call) -> GeneratedReply:
        """The same work in several arms, such as with and without the KV cache, really run and measured."""
        body = await self.service.read_body(call, COMPARE_FIELDS)
        body.check()
        prompt = await self.engine.encode(body.prompt)
        if len(prompt.token_ids) > MAX_PROMPT_TOKENS:
            raise refused(
                f"prompt: has {len(prompt.token_ids)} tokens; at most {MAX_PROMPT_TOKENS} are allowed",
                "prompt",
            )
        if len(prompt.token_ids) + body.max_tokens > self.engine.max_model_len:
            raise refused(
                f"max_tokens={body.max_tokens}: with the prompt's {len(prompt.token_ids)} tokens more than"
                f" the context of {self.engine.max_model_len}",
                "max_tokens",
            )
        if self._running.locked():
            raise overloaded("another comparison is running", 5)
        about = {"run": secrets.token_hex(4)}
        events = self._run(call, body, prompt)
        return GeneratedReply(event_frames(about, "cmp.failed", events, self._running))

    async def _run(
        self, call: Call, body: CompareBody, prompt: EncodedPrompt
    ) -> AsyncGenerator[dict[str, Any], None]:
        prompt_token_ids = prompt.token_ids
        own_format = self.engine.config.kv_cache_dtype
        arms = arms_of(body, own_format)
        seen = [arm for arm in arms if arm.kv_cache_dtype in (None, own_format)]
        num_requests = body.batch if body.kind == "batch" else 1
        yield {
            "ev": "cmp.begin",
            "kind": body.kind,
            "arms": [
                {
                    "arm": arm.name,
                    "use_kv_cache": arm.use_kv_cache,
                    "kv_cache_dtype": arm.kv_cache_dtype,
                    "seats": arm.num_seats,
                    "req": str(CompletionId(call.request_id, seen.index(arm), 0))
                    if arm in seen
                    else None,
                }
                for arm in arms
            ],
            "requests": num_requests,
            "prompt_ids": prompt_token_ids,
            "max_new_tok": body.max_tokens,
        }
        seed = secrets.randbits(SEED_BITS) if body.seed is None else body.seed
        deadline = time.monotonic() + MAX_SECONDS
        last_start = deadline - MAX_SECONDS + MAX_SECONDS_BEFORE_REPEATING
        outputs: dict[str, list[RequestOutput]] = {arm.name: [] for arm in arms}
        runs: dict[str, list[ArmTotals]] = {arm.name: [] for arm in arms}
        for number in range(body.runs):
            if number > 0 and time.monotonic() > last_start:
                break
            for arm in arms:
                totals = ArmTotals()
                answers = [] if number > 0 else outputs[arm.name]
                events = self._run_arm(arm, totals, body, prompt_token_ids, seed, deadline, answers)
                async with aclosing(events):
                    async for event in events:
                        if number == 0:
                            yield event
                if number == 0 or all(map(_is_whole, answers)):
                    runs[arm.name].append(totals)
                    yield {"ev": "cmp.run", "arm": arm.name, "t_us": totals.t_us}
            if number == 0:
                self._remember(call, prompt, [outputs[arm.name][0] for arm in seen], body)
        summaries = {arm.name: _summary(arm, runs[arm.name], outputs[arm.name]) for arm in arms}
        first, *others = outputs.values()
        for arm, answers in zip(arms[1:], others, strict=True):
            summaries[arm.name] |= _agreement([first, answers])
        if body.kind == "kv_dtype":
            token_ids = [*prompt_token_ids, *first[0].outputs[0].token_ids][:MAX_READ_TOKENS]
            for name, moved in (await self._divergence(token_ids, arms, deadline)).items():
                summaries[name] |= moved
        yield {"ev": "cmp.end", "arms": summaries, **_agreement([first, *others])}

    def _remember(
        self,
        call: Call,
        prompt: EncodedPrompt,
        outputs: Sequence[RequestOutput],
        body: CompareBody,
    ) -> None:
        """The first answer of each arm in the engine's own format can be inspected, as answers of any call can."""
        prompts = [
            PromptRecord(
                array("I", prompt.token_ids),
                prompt.is_chat,
                prompt.end_token_ids,
                output.seed,
                [array("I", output.outputs[0].token_ids)],
            )
            for output in outputs
        ]
        salt, params = cache_salt_of(call.caller, None), _params(body, outputs[0].seed)
        self.service.records.add(
            CallRecord(call.request_id, call.caller, call.path, prompts, params, salt, {})
        )

    async def _divergence(
        self, token_ids: Sequence[int], arms: Sequence[Arm], deadline: float
    ) -> dict[str, dict[str, Any]]:
        """How far the format of each arm moves the distribution of the next token from that of f32, in a text. The
        requests of users have their steps in between."""
        names = [arm.name for arm in arms]
        meter = await self.engine.inspect(
            lambda inspector: inspector.divergence_meter(token_ids, names, REFERENCE_FORMAT)
        )
        while time.monotonic() < deadline and await self.engine.inspect(lambda _: meter.step()):
            pass
        if not meter.num_tokens:
            return {}
        moved = {name: meter.divergence(name) for name in names}
        return {
            name: {"read_tok": meter.num_tokens, "kl_nats": each.nats, "same_top": each.same_top}
            for name, each in moved.items()
        }

    async def _run_arm(
        self,
        arm: Arm,
        totals: ArmTotals,
        body: CompareBody,
        prompt_token_ids: Sequence[int],
        seed: int,
        deadline: float,
        outputs: list[RequestOutput],
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Runs an arm; `outputs` gets the outputs of its requests, incomplete ones if time runs out."""
        own = self.engine.config
        num_requests = body.batch if body.kind == "batch" else 1
        length = len(prompt_token_ids) + body.max_tokens
        dtype = arm.kv_cache_dtype or own.kv_cache_dtype
        block_size = fitting_block_size(own.block_size, dtype)
        needs = block_needs(self.engine.model_config, block_size, own.max_num_batched_tokens)
        engine = await self.engine.side_engine(
            replace(
                own,
                use_kv_cache=arm.use_kv_cache,
                kv_cache_dtype=dtype,
                block_size=block_size,
                max_num_seqs=arm.num_seats,
                max_model_len=max(2, length),
                num_kv_blocks=num_requests * needs.most(length),
                enable_prefix_caching=False,
                prefix_store=None,
                prefix_store_key=None,
                swap_space=0,
                speculation=arm.speculation,
                draft_model=own.draft_model if arm.speculation == "draft" else None,
                num_draft_tokens=arm.num_drafts,
            )
        )
        try:
            block_bytes = engine.memory_plan.bytes_per_block
            totals.kv_token_bytes = engine.memory_plan.bytes_per_position
            await self._warm_up(engine)
            engine.subscribe(lambda record: totals.take(record, block_bytes), Level.STEP)
            for number in range(num_requests):
                name = f"{arm.name}-{number}"
                params = _params(body, seed + number)
                outputs.append(await engine.add_request(prompt_token_ids, params, name))
            while engine.has_unfinished_requests and time.monotonic() < deadline:
                num_rounds = len(totals.rounds)
                deltas = await engine.step()
                held = engine.kv_bytes_in_use
                totals.held_peak_bytes = max(totals.held_peak_bytes, held)
                yield {
                    "ev": "cmp",
                    "arm": arm.name,
                    "n_tok": sum(len(each.outputs[0].token_ids) for each in outputs),
                    "ctx_tok": len(prompt_token_ids) + len(outputs[0].outputs[0].token_ids),
                    "pass_tok": totals.pass_tok,
                    "flops": totals.flops,
                    "moved_bytes": totals.moved_bytes,
                    "step_us": totals.step_us,
                    "t_us": totals.t_us,
                    "kv_step_bytes": totals.kv_step_bytes,
                    "kv_held_bytes": held,
                    "rounds": totals.rounds[num_rounds:],
                    "new": [
                        [each.request_id, each.token_ids, each.text, _probabilities(each)]
                        for each in deltas
                    ],
                }
        finally:
            await engine.close()

    async def _warm_up(self, engine: SideEngine) -> None:
        """Runs first steps, which allocate memory, so that no arm's times include that."""
        params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
        if engine.config.max_model_len is None or engine.config.max_model_len > 2:
            await engine.add_request([0], params, "warm-up")
            while engine.has_unfinished_requests:
                await engine.step()


def _params(body: CompareBody, seed: int) -> SamplingParams:
    """Of one request of a comparison."""
    return SamplingParams(
        temperature=body.temperature,
        seed=seed,
        max_tokens=body.max_tokens,
        ignore_eos=body.ignore_eos,
        logprobs=0,
    )


def _probabilities(delta: CompletionDelta) -> list[float]:
    """Of each new token, by the model."""
    return [
        round(math.exp(at[token_id].logprob), DIGITS)
        for token_id, at in zip(delta.token_ids, delta.logprobs or (), strict=False)
    ]


def _summary(
    arm: Arm, runs: Sequence[ArmTotals], outputs: Sequence[RequestOutput]
) -> dict[str, Any]:
    """Counts of the first run, whose outputs these are; times of the run that took the median of all."""
    totals = runs[0]
    middle = sorted(runs, key=lambda run: run.t_us)[(len(runs) - 1) // 2]
    num_tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    return {
        "n_tok": num_tokens,
        "pass_tok": totals.pass_tok,
        "pass_tok_formula": sum(
            formulas.token_passes(
                len(output.prompt_token_ids), len(output.outputs[0].token_ids), arm.use_kv_cache
            )
            for output in outputs
        ),
        "flops": totals.flops,
        "moved_bytes": totals.moved_bytes,
        "t_us": middle.t_us,
        "runs_us": [run.t_us for run in runs],
        "us_per_tok": middle.t_us / num_tokens if num_tokens else None,
        "kv_peak_bytes": totals.kv_peak_bytes,
        "kv_held_peak_bytes": totals.held_peak_bytes,
        "kv_token_bytes": totals.kv_token_bytes,
        "rounds": len(totals.rounds),
        "drafted": sum(len(drafts) for drafts, _, _ in totals.rounds),
        "right": sum(right for _, right, _ in totals.rounds),
        "wrong": sum(right < len(drafts) for drafts, right, _ in totals.rounds),
        "draft_us": middle.draft_us,
        "finished": all(map(_is_whole, outputs)),
        "texts": [output.outputs[0].text for output in outputs],
    }


def _is_whole(output: RequestOutput) -> bool:
    """Whether the time was enough for a request; the others end with their engine."""
    return output.outputs[0].finish_reason != "abort"


def _agreement(arms: Sequence[Sequence[RequestOutput]]) -> dict[str, Any]:
    """Compares the answers of the arms with those of the first one, up to the shortest answer."""
    same, first_difference, largest = 0, None, 0.0
    for others in zip(*arms, strict=True):
        completions = [output.outputs[0] for output in others]
        for index, token_ids in enumerate(zip(*(each.token_ids for each in completions))):  # noqa: B905
            if len(set(token_ids)) > 1:
                first_difference = index if first_difference is None else first_difference
                break
            same += 1
            logprobs = [
                each.logprobs[index][token_ids[0]].logprob
                for each in completions
                if each.logprobs is not None
            ]
            largest = max(largest, max(logprobs) - min(logprobs))
    return {"same_tok": same, "first_diff": first_difference, "dlogprob_max": largest}
