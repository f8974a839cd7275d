"""Parts that run engines on random weights, the host's share of a step, and the baseline."""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from device_parts.common import Row

ROOT = Path(__file__).parents[2]
BASELINE_DEPTH = 512
SHAPES = ("smollm2-135m", "qwen3-0.6b", "qwen3-1.7b", "qwen3-8b")
WORKLOADS = (
    "--prompt",
    "512,2048",
    "--gen",
    "16",
    "--batch",
    "1,8,32,64",
    "--depth",
    "0",
    "--repetitions",
    "2",
)


def engine(device: str) -> Iterator[Row]:
    """Engines on random weights, the smallest model first: prompts, decode of 1, 8 and 32 sequences."""
    for shape in SHAPES:
        for quantization in ("none", "int8", "int4"):
            options = (
                "--shape",
                shape,
                "--quantization",
                quantization,
                "--backend",
                "torch",
                "--device",
                device,
            )
            command = (sys.executable, "-m", "pellucid", "bench", *options, *WORKLOADS, "--json")
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            what = f"{shape}, {quantization}"
            if done.returncode:
                yield Row("engine", what, done.stderr.strip().splitlines()[-1])
                continue
            for each in json.loads(done.stdout):
                if "test" in each:
                    share = f"{each['bandwidth_share']:.0%} of bandwidth, {each['peak_share']:.0%} of peak"
                    found = f"{each['tokens_per_second']:.1f} tok/s, {share}"
                    yield Row("engine", f"{what}, {each['test']}", found)


def host(device: str) -> Iterator[Row]:
    """What a decode step takes around the decoder, and in it, with the bundled model: a device has little to do."""
    for running in (1, 32):
        around, within = _step_seconds(device, running)
        found = f"{around * 1e6:.0f} us around the decoder, {within * 1e6:.0f} us in it"
        yield Row("host", f"{running} requests", found)


def _step_seconds(device: str, running: int) -> tuple[float, float]:
    """Medians of a decode step without the decoder, and of the decoder."""
    from pellucid.engine import LLMEngine
    from pellucid.inputs.config import EngineConfig
    from pellucid.inputs.sampling_params import SamplingParams

    config = EngineConfig(
        backend="torch",
        device=device,
        speculation="off",
        max_num_seqs=running,
        num_kv_blocks=16 * running,
    )
    engine = LLMEngine.from_config(config)
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    for _ in range(running):
        engine.add_request(list(range(3, 19)), params)
    within: list[float] = []
    whole: list[float] = []
    decoder = engine.model_runner.decoder
    compute = decoder.step

    def timed(*args: object, **options: object) -> object:
        started = time.perf_counter()
        result = compute(*args, **options)
        within.append(time.perf_counter() - started)
        return result

    decoder.step = timed  # type: ignore[method-assign]
    for _ in range(40):
        started = time.perf_counter()
        engine.step()
        whole.append(time.perf_counter() - started)
    of_decoder = statistics.median(within[10:])
    return statistics.median(whole[10:]) - of_decoder, of_decoder


def baseline(device: str) -> Iterator[Row]:
    """cuBLAS, SDPA and graphs without our guarantee, in bf16: what the engine's lines are to be compared with."""
    from device_parts.baseline import SHAPES as BASELINES
    from device_parts.baseline import decode_seconds, prompt_seconds

    for name, shape in BASELINES.items():
        for batch in (1, 8, 32, 64):
            seconds = decode_seconds(shape, batch, BASELINE_DEPTH, device)
            found = f"{batch / seconds:.1f} tok/s"
            yield Row("baseline", f"{name}, decode of {batch}", found)
        for length in (512, 2048):
            seconds = prompt_seconds(shape, length, device)
            yield Row("baseline", f"{name}, prompt of {length}", f"{length / seconds:.1f} tok/s")
