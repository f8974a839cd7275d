"""A program that exits without shutting its AsyncLLMEngine down, during a native step."""

import subprocess
import sys

PROGRAM = """
import asyncio
from pellucid import AsyncLLMEngine, EngineConfig, SamplingParams

engine = AsyncLLMEngine.from_config(EngineConfig())

async def main():
    for seed in range(20):
        params = SamplingParams(max_tokens=1900, ignore_eos=True, seed=seed)
        stream = await engine.add_request("Once upon a time", params)
    await anext(stream)

asyncio.run(main())
print(engine.num_unfinished_requests > 0)
"""


def test_the_interpreter_ends_in_peace() -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "True\n", "")
