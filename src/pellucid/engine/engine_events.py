"""The engine's own events: its configuration, its requests and steps."""

import platform
import secrets
import time
from collections.abc import Callable, Sequence
from operator import attrgetter, sub
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import Struct

from pellucid import __version__
from pellucid.backends.base import StepWeights
from pellucid.facts import formulas
from pellucid.facts.model_config import LayerConfig, ModelConfig
from pellucid.inputs.config import EngineConfig
from pellucid.loaded_model import LoadedModel
from pellucid.loading.parameters import Progress
from pellucid.memory.memory_plan import MemoryPlan
from pellucid.observing import events
from pellucid.observing.event_bus import EventBus
from pellucid.observing.ledger import Ledger, Part, StepTimes, Work
from pellucid.scheduling.request import Request
from pellucid.scheduling.scheduling_events import sampling_summary

if TYPE_CHECKING:
    from pellucid.observing.logged_events import StepLog

NUM_BOOT_ID_BYTES = 8
_COLUMNS = attrgetter(
    "request_id", "start", "end", "num_recomputed", "num_logits", "has_output", "flops"
)


class Ceilings(Struct, frozen=True):
    """The measured bandwidth and peak of the machine."""

    bandwidth_bytes_per_second: float
    flops_per_second: float  # in the arithmetic of the weights


def hello(
    engine_config: EngineConfig,
    model: LoadedModel,
    weights: StepWeights,
    plan: MemoryPlan,
    ceilings: Ceilings | None,
    age_us: int,
) -> events.Hello:
    """The event `hello`, which describes an engine; made once for each engine.

    Args:
        ceilings: of the machine; None: not measured.
        age_us: of the engine's bus, whose events are stamped from its beginning.
    """
    model_config = model.config
    attention, facts = model_config.attentions[0], model.backend.device_facts
    return events.Hello(
        boot_id=secrets.token_hex(NUM_BOOT_ID_BYTES),
        t0_unix_us=events.to_us(time.time()) - age_us,
        engine=f"pellucid {__version__}",
        model=events.HelloModel(
            name=model.name,
            n_layers=model_config.num_layers,
            n_q=attention.num_heads,
            n_kv=attention.num_kv_heads,
            head_dim=attention.head_dim,
            vocab=model_config.vocab_size,
            weight_bytes=weights.num_bytes(with_head=True) + weights.expert_bytes,
            dtype=engine_config.quantization,
            layer_kinds=tuple(_layer_kind(layer) for layer in model_config.layers),
        ),
        kv=events.HelloKV(
            block_tok=plan.block_size,
            n_blocks=plan.num_blocks,
            block_bytes=plan.bytes_per_block,
            dtype=engine_config.kv_cache_dtype,
            windows=tuple(window or 0 for window in plan.block_needs.windows),
        ),
        device=events.HelloDevice(
            name=platform.machine() if facts is None else facts.words,
            backend=model.backend.name,
            threads=engine_config.num_threads,
            bw_bytes_s=ceilings.bandwidth_bytes_per_second if ceilings else None,
            flops_s=ceilings.flops_per_second if ceilings else None,
        ),
        limits=events.HelloLimits(
            max_seqs=engine_config.max_num_seqs,
            max_batched_tok=engine_config.max_num_batched_tokens,
            max_model_tok=plan.max_model_len,
        ),
        use_kv_cache=engine_config.use_kv_cache,
        prefix_caching=engine_config.enable_prefix_caching and engine_config.use_kv_cache,
        speculation=engine_config.speculation,
    )


def _layer_kind(layer: LayerConfig) -> Literal["full", "sliding", "recurrent"]:
    if layer.attention is None:
        return "recurrent"
    return "full" if layer.attention.window is None else "sliding"


def report_progress(bus: EventBus, model: str | None, on_progress: Progress | None) -> Progress:
    """A function that reports the progress of loading: to `on_progress`, and as the event `load`.

    Args:
        model: as the user named it; None: the bundled one.
    """
    started = time.monotonic()

    def report(done: int, total: int) -> None:
        if on_progress is not None:
            on_progress(done, total)
        if bus.active:
            duration = events.to_us(time.monotonic() - started)
            bus.emit(events.Load("read", model or "bundled", done, total, duration))

    return report


def request_added(
    request: Request, parent_id: str, arrive_us: int, with_prompt: bool
) -> events.RequestAdded:
    """The event of a generation that has been queued.

    Args:
        parent_id: the caller's request, of which this generation is a completion.
        arrive_us: since the engine's start.
    """
    return events.RequestAdded(
        req=request.request_id,
        prompt_tok=request.num_prompt_tokens,
        max_new_tok=request.max_tokens,
        prio=request.priority,
        params=sampling_summary(request),
        arrive_us=arrive_us,
        parent=parent_id,
        prompt_ids=request.prompt_token_ids if with_prompt else None,
        num=request.number,
        caller=request.caller or None,
    )


def request_ledger(request_id: str, ledger: Ledger) -> events.RequestLedger:
    """The event of a ledger, in whole microseconds, which add up as well."""
    parts = {part: events.to_us(ledger.seconds(part)) for part in Part}
    return events.RequestLedger(
        req=request_id,
        queue_us=parts[Part.QUEUE],
        tokenize_us=parts[Part.TOKENIZE],
        prefill_us=parts[Part.PREFILL],
        decode_us=parts[Part.DECODE],
        stall_us=parts[Part.STALL],
        preempt_us=parts[Part.PREEMPTED],
        sample_us=parts[Part.SAMPLING],
        send_us=parts[Part.EMIT],
        draft_us=parts[Part.DRAFTING],
        other_us=parts[Part.OTHER],
        total_us=sum(parts.values()),
        lost_tok=ledger.num_recomputed_tokens,
        stalled_by=tuple((other, events.to_us(seconds)) for other, seconds in ledger.stalled_by),
        blocked_by=tuple((other, events.to_us(seconds)) for other, seconds in ledger.blocked_by),
    )


class StepCosts:
    """Counts the bytes and operations of a step.

    Args:
        plan: for the size of a block.
        budget: most tokens of a step.
        ceilings: for predictions; None: not measured.
    """

    def __init__(
        self,
        model_config: ModelConfig,
        weights: StepWeights,
        plan: MemoryPlan,
        budget: int,
        ceilings: Ceilings | None,
    ) -> None:
        self._weight_bytes = weights.num_bytes(with_head=False), weights.num_bytes(with_head=True)
        self._position_bytes = plan.bytes_per_position
        self._kv_bytes = formulas.KVBytes(model_config, self._position_bytes)
        self._budget = budget
        self._ceilings = ceilings

    def make_log(self, block_size: int, show: Callable[[int], str]) -> "StepLog | None":
        """The log of plain steps; None: there is no native code.

        Args:
            show: the text of a token.
        """
        try:
            from pellucid.backends import native
        except ModuleNotFoundError:
            return None
        windows = [(window or 0, numbers) for window, numbers in self._kv_bytes.numbers_by_window]
        ceilings = self._ceilings or Ceilings(0.0, 0.0)
        return native.StepLog(
            block_size=block_size,
            budget=self._budget,
            weight_bytes=self._weight_bytes[True],
            bytes_per_position=self._position_bytes,
            numbers_by_window=windows,
            bytes_per_number=self._kv_bytes.bytes_per_number,
            state_bytes=self._kv_bytes.state_bytes,
            flops_per_second=ceilings.flops_per_second,
            bytes_per_second=ceilings.bandwidth_bytes_per_second,
            encode=msgspec.json.encode,
            show=show,
        )

    def step(
        self, works: Sequence[Work], times: StepTimes, last: float | None, expert_bytes: int
    ) -> tuple[events.Step]:
        """The event of a step that has ended and read `expert_bytes` of experts' weights, after one that ended at
        `last`, seconds."""
        ids, starts, ends, recomputed, logits, outputs, flops_each = zip(
            *map(_COLUMNS, works), strict=True
        )
        flops, num_tokens = sum(flops_each), sum(ends) - sum(starts)
        weight_bytes = self._weight_bytes[any(logits)] + expert_bytes
        kv_bytes = self._kv_bytes.of_step(starts, ends)
        kv_write_bytes = num_tokens * self._position_bytes
        bound: Literal["compute", "memory"] | None = None
        predicted = None
        if self._ceilings is not None:
            compute = flops / self._ceilings.flops_per_second
            memory = (weight_bytes + kv_bytes) / self._ceilings.bandwidth_bytes_per_second
            bound = "compute" if compute > memory else "memory"
            predicted = round(max(compute, memory) * 1e6)
        started, scheduled, executed = times.started, times.scheduled, times.executed
        sampled = times.sampled
        kind: Literal["prefill", "decode", "mixed"] = "decode"
        if any(recomputed) or not all(outputs):
            kind = "mixed" if any(work.is_decoding for work in works) else "prefill"
        step = events.Step(
            kind,
            tuple(zip(ids, map(sub, ends, starts), ends, strict=True)),
            self._budget,
            sched_us=round((scheduled - started) * 1e6),
            fwd_us=round((executed - scheduled) * 1e6),
            sample_us=round((sampled - executed) * 1e6),
            emit_us=round((times.emitted - sampled) * 1e6),
            idle_us=0 if last is None else max(0, round((started - last) * 1e6)),
            flops=flops,
            w_bytes=weight_bytes,
            kv_read_bytes=round(kv_bytes - kv_write_bytes),
            kv_write_bytes=round(kv_write_bytes),
            bound=bound,
            pred_us=predicted,
            draft_us=round(times.drafting * 1e6) or None,
        )
        return (step,)
