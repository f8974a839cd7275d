"""What a process takes of memory at most, and the use of an engine that makes it take the most: for tests and
benchmarks."""

import re
from pathlib import Path

from pellucid.engine import LLMEngine
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.memory.memory_plan import MemoryPlan


class OwnMemory:
    """The bytes that are a process's own: without files that it has mapped, and what it shares.

    Args:
        process: its id; left out, this one.
    """

    def __init__(self, process: int | str = "self") -> None:
        self._directory = Path("/proc") / str(process)

    def now(self) -> int:
        return self._sizes()["RssAnon"]

    def forget_peak(self) -> None:
        """`peak` counts from here on."""
        (self._directory / "clear_refs").write_text("5", encoding="ascii")

    def peak(self) -> int:
        """The most since `forget_peak`, if what it has mapped and shares did not become less."""
        sizes = self._sizes()
        return sizes["VmHWM"] - sizes["RssFile"] - sizes["RssShmem"]

    def _sizes(self) -> dict[str, int]:
        status = (self._directory / "status").read_text(encoding="utf-8")
        return {name: int(kb) << 10 for name, kb in re.findall(r"(\w+):\s+(\d+) kB", status)}


def planned_bytes(plan: MemoryPlan) -> int:
    return plan.weights + plan.scratch + plan.kv_cache + plan.states


def fill(engine: LLMEngine) -> None:
    """Runs requests until each block has been written once, a step has had as many tokens as it can have, and one as
    many rows of logits."""
    plan, num_seqs = engine.memory_plan, engine.config.max_num_seqs
    length = min(plan.max_model_len - 2, plan.num_tokens - 2)
    for number in range(2 * plan.num_tokens // length + 1):
        _add(engine, number, length, SamplingParams(max_tokens=1, temperature=0.0))
    _run(engine)
    # Tokens of which all logits are asked for, beside as many requests that decode as can be.
    num_prompts = min(num_seqs, -(-engine.plan.max_extra_logits // length))
    short = SamplingParams(max_tokens=2 + num_prompts, temperature=0.0, ignore_eos=True)
    for number in range(num_seqs - num_prompts):
        _add(engine, number, 2, short)
    engine.step()
    whole = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
    for number in range(num_prompts):
        _add(engine, number, length, whole)
    _run(engine)


def _add(engine: LLMEngine, number: int, length: int, params: SamplingParams) -> None:
    """A prompt that begins like no other one of the first thousands."""
    prompt = [3 + number % 97, 3 + number // 97, *(3 + index % 97 for index in range(length))]
    engine.add_request(prompt[:length], params)


def _run(engine: LLMEngine) -> None:
    while engine.has_unfinished_requests:
        engine.step()
