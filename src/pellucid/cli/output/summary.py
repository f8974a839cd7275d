"""Facts about a model and a completion: memory, times, speeds, why it ended, how to repeat it."""

import platform
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from pellucid.cli.output.terminal import note_facts
from pellucid.cli.output.units import counted, num_bytes, rate, seconds
from pellucid.cli.parsing.options import SamplingOptions
from pellucid.inputs.beam_search_params import BeamSearchParams, RequestParams
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.sampling_params import SamplingParams

if TYPE_CHECKING:
    from pellucid.engine import LLMEngine
    from pellucid.loaded_model import LoadedModel
    from pellucid.memory.engine_plan import EnginePlan
    from pellucid.memory.memory_plan import MemoryPlan
    from pellucid.outputs import RequestOutput, SpeculationStatistics

_NEUTRAL = SamplingParams()
_SHOWN_IF_SET = tuple(
    field.name for field in fields(SamplingOptions) if field.name not in ("temperature", "seed")
)
_PENALTIES = tuple(name for name in _SHOWN_IF_SET if name.endswith("_penalty"))


def formats(name: str, config: EngineConfig) -> str:
    """A model and the formats that it runs in."""
    quantization = "as stored" if config.quantization == "none" else config.quantization
    return f"{name}, weights {quantization}, KV cache {config.kv_cache_dtype}"


def machine_name() -> str:
    """The processor's name."""
    with suppress(OSError), Path("/proc/cpuinfo").open(encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def memory_facts(plan: "MemoryPlan") -> list[str]:
    """The parts of an engine's memory, and how much text the KV cache holds."""
    room = f"{counted(plan.num_blocks, 'block')} of {plan.block_size} tokens"
    if plan.num_contexts:
        room += f", {plan.num_contexts} x {plan.max_model_len} tokens"
    facts = [
        f"weights {num_bytes(plan.weights)}",
        f"scratch {num_bytes(plan.scratch)}",
        *([f"states of requests {num_bytes(plan.states)}"] if plan.states else []),
        f"KV cache up to {num_bytes(plan.kv_cache)} ({room})",
    ]
    if plan.available is not None:
        facts.append(f"available {num_bytes(plan.available)}")
    return facts


def note_memory(plan: "EnginePlan") -> None:
    """Shows the memory of an engine, and of each machine if there are several."""
    title, facts = "memory", memory_facts(plan.memory)
    if (num_ranks := plan.num_ranks) > 1:
        title = f"memory of each of {num_ranks} processes"
        if plan.num_kv_shares == 1:
            facts.append(
                f"the whole KV cache in each: some layer's KV heads cannot be divided by {num_ranks}"
            )
    note_facts(title, facts)
    for machine, memory in plan.of_machines().items():
        note_facts(f"memory of {machine}", memory_facts(memory))


def brief_facts(engine: "LLMEngine", output: "RequestOutput", params: RequestParams) -> list[str]:
    """What people want to know of every answer, in two rows of a terminal; `answer_facts` says more."""
    metrics = output.metrics
    facts = []
    if metrics.time_to_first_token is not None:
        facts.append(f"first token {seconds(metrics.time_to_first_token)}")
    if isinstance(params, BeamSearchParams):
        return [
            *facts,
            f"stop: {stop_reason(engine, output, params)}",
            _beam_search(output, params),
        ]
    if (num_tokens := len(metrics.token_times)) > 1:
        facts.append(f"{num_tokens} tokens {rate(num_tokens - 1, metrics.decode_seconds)}")
    reason = output.outputs[0].stop_reason
    if isinstance(reason, int):
        stop = engine.tokenizer.token_text(reason)
    elif reason == "context_length":
        stop = "the context is full"
    else:
        stop = stop_reason(engine, output, params)
    return [*facts, f"stop: {stop}", sampling(params, output.seed)]


def answer_facts(engine: "LLMEngine", output: "RequestOutput", params: RequestParams) -> list[str]:
    """What a request cost and what it takes to repeat it."""
    metrics = output.metrics
    num_tokens = len(metrics.token_times)
    facts = []
    if metrics.time_to_first_token is not None:
        facts.append(f"time to first token {seconds(metrics.time_to_first_token)}")
        num_computed = len(output.prompt_token_ids) - output.num_cached_tokens
        facts.append(
            f"prefill {counted(num_computed, 'token')} {rate(num_computed, metrics.prefill_seconds)}"
            + (f" ({output.num_cached_tokens} cached)" if output.num_cached_tokens else "")
        )
    if num_tokens > 1:
        num_steps = num_tokens - 1  # the first token is prefill's
        if isinstance(params, BeamSearchParams):  # the best answer may be shorter than the search
            facts.append(
                f"search {num_steps} steps {seconds((metrics.decode_seconds or 0) / num_steps)} each"
            )
        else:
            facts.append(
                f"decode {counted(num_steps, 'token')} {rate(num_steps, metrics.decode_seconds)}"
            )
    drafts = None if isinstance(params, BeamSearchParams) else engine.speculation
    # By default most answers have no drafts: that is only told to those who asked for drafts.
    if drafts is not None and (drafts.num_rounds or engine.config.speculation != "auto"):
        facts.append(_speculation(drafts))
    facts += backend_facts(engine.model)
    facts.append(f"KV cache {num_bytes(metrics.kv_cache_bytes)}")
    if metrics.num_preemptions:
        facts.append(f"preempted {metrics.num_preemptions}x")
    facts.append(f"stop: {stop_reason(engine, output, params)}")
    if isinstance(params, BeamSearchParams):
        return [*facts, _beam_search(output, params)]
    return [*facts, sampling(params, output.seed)]


def backend_facts(model: "LoadedModel") -> list[str]:
    """Whether steps have fewer threads than they can have, and how many bytes of experts they read from a file."""
    facts = []
    if (use := model.backend.thread_use) is not None and use.num_threads < use.most:
        most = counted(use.most, "thread")
        facts.append(f"{use.num_threads} of {most}: other programs use the cores")
    if (reads := model.backend.weights.expert_reads) is not None:
        share = reads.found / reads.read if reads.read else 1.0
        facts.append(
            f"experts {num_bytes(reads.size)} on disk, {num_bytes(reads.read)} read, {share:.0%} of it in memory"
        )
    return facts


def _speculation(statistics: "SpeculationStatistics") -> str:
    """The counters of drafts, and the time that they saved or cost."""
    if not statistics.num_rounds:
        return f"speculation: no drafts ({statistics.reason})"
    return (
        f"speculation: {statistics.num_right} of {statistics.num_drafts} drafts right,"
        f" {statistics.tokens_per_round:.1f} tokens a verification, decode"
        f" {statistics.speedup:.2f}x as fast as without, by measured step times"
    )


def stop_reason(engine: "LLMEngine", output: "RequestOutput", params: RequestParams) -> str:
    """Why an answer ended, in words."""
    completion = output.outputs[0]
    reason = completion.stop_reason
    if completion.finish_reason == "abort":
        return "Ctrl-C"
    if completion.finish_reason == "error":
        return f"error: {reason}"
    if isinstance(reason, int):
        kind = "stop" if reason in params.stop_token_ids else "end"
        return f"{kind} token {reason} ({engine.tokenizer.token_text(reason)})"
    rule = None if isinstance(params, BeamSearchParams) else params.structured_outputs
    if rule is not None and reason == "structured_outputs":
        return "the form of the answer is complete"
    if completion.finish_reason == "stop":
        return f"stop string {reason!r}"
    if reason == "context_length":
        return f"context of {engine.max_model_len} tokens is full"
    if reason == "max_tokens":
        return f"max_tokens {params.max_tokens}"
    assert reason == "max_time" and isinstance(params, SamplingParams)
    return f"max_time {params.max_time} s"


def sampling(params: SamplingParams, seed: int | None) -> str:
    """What chooses the tokens, so that it can be given again; None for a seed that is to be drawn."""
    greedy = params.temperature == 0
    penalties_and_cuts = [
        f"{name} {getattr(params, name):g}"
        for name in (_PENALTIES if greedy else _SHOWN_IF_SET)
        if getattr(params, name) != getattr(_NEUTRAL, name)
    ]
    if greedy:  # nothing is cut off from what is not drawn
        return ", ".join(["greedy", *penalties_and_cuts])
    drawn = "drawn for each answer" if seed is None else seed
    return ", ".join([f"temperature {params.temperature:g}", *penalties_and_cuts, f"seed {drawn}"])


def _beam_search(output: "RequestOutput", params: BeamSearchParams) -> str:
    parts = [f"beam width {params.beam_width}", f"length penalty {params.length_penalty:g}"]
    if (score := output.outputs[0].score) is not None:
        parts.append(f"score {score:.4f}")
    return ", ".join(parts)
