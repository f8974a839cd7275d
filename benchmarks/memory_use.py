"""What a process takes of memory, and the use of an engine that makes it take the most."""

import re
from pathlib import Path

from pellucid.engine import LLMEngine
from pellucid.inputs.sampling_params import SamplingParams


def own_memory(process: int | str = "self") -> int:
    """Bytes that are a process's own: without files that it has mapped."""
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    found = re.search(r"RssAnon:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) << 10


def fill(engine: LLMEngine) -> None:
    """Runs requests until each block has been written once, and a step has been as large as it can be."""
    plan, seed = engine.memory_plan, 3
    length = min(plan.max_model_len - 1, plan.num_tokens - 1)
    for _ in range(2 * plan.num_tokens // length + 1):
        seed += 1
        prompt = [seed + index % 97 for index in range(length)]
        engine.add_request(prompt, SamplingParams(max_tokens=1, temperature=0.0))
        while engine.has_unfinished_requests:
            engine.step()
