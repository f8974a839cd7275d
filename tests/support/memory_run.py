"""What the processes of an engine take of memory beside their plans.

    python -m support.memory_run SETTINGS NUM_STAGES

SETTINGS is JSON of `EngineConfig`. Prints a line of JSON: for each process its name, and the bytes that are planned and
that it took at most. With `tensor_parallel_size` mpirun starts as many.
"""

import json
import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack, closing
from tempfile import TemporaryDirectory
from typing import Any

from pellucid.backends.cpu.ranks import join_ranks
from pellucid.engine import LLMEngine
from pellucid.inputs.config import EngineConfig
from support.memory_use import OwnMemory, fill, planned_bytes
from support.stage_process import StageProcess
from support.stages import write_key


def memory_of(settings: Mapping[str, Any], num_stages: int) -> list[tuple[str, int, int]]:
    with ExitStack() as stack:
        config, pids = EngineConfig(**settings), [os.getpid()]
        if num_stages:
            key = write_key(stack.enter_context(TemporaryDirectory()))
            stages = [StageProcess(key, model=config.model) for _ in range(num_stages)]
            for stage in stages:
                stack.callback(stage.kill)
            pids = [*(stage.pid for stage in stages), *pids]
            addresses = ",".join(stage.address for stage in stages)
            config = EngineConfig(**settings, stages=addresses, stages_key=key)
        if config.tensor_parallel_size > 1:
            pids = join_ranks(config.tensor_parallel_size).communicator.gather(os.getpid())
        memories = [OwnMemory(pid) for pid in pids or ()]
        before = [memory.now() for memory in memories]
        engine = stack.enter_context(closing(LLMEngine.from_config(config)))
        for memory in memories:
            memory.forget_peak()
        fill(engine)
        plans = engine.plan.of_machines()
        if not plans:
            plans = {f"rank {number}": engine.memory_plan for number in range(len(pids))}
        return [
            (name, planned_bytes(plan), memory.peak() - first)
            for (name, plan), memory, first in zip(plans.items(), memories, before, strict=True)
        ]


if __name__ == "__main__":
    print(json.dumps(memory_of(json.loads(sys.argv[1]), int(sys.argv[2]))))
