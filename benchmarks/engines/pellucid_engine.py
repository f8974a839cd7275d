"""pellucid, through what `pellucid bench` measures: schedule, forward, greedy sampling, update."""

from worker import Task, Test, serve

from pellucid import __version__
from pellucid.benchmark.bench_model import stored_model
from pellucid.benchmark.session import Session
from pellucid.benchmark.workloads import Decode, Prefill, Workload
from pellucid.config import EngineConfig

QUANTIZATIONS = {"int4": "int4", "int8": "int8", "bf16": "none"}


class Pellucid:
    """A session for all tests."""

    def __init__(self, task: Task) -> None:
        config = EngineConfig(
            model=str(task.weights),
            quantization=QUANTIZATIONS[task.weight_format],
            num_threads=task.num_threads,
        )
        model = stored_model(config)
        self._session = Session(model, config, [_workload(test) for test in task.tests])
        self.settings = (
            f"pellucid {__version__}, backend {model.backend.name}, quantization"
            f" {config.quantization}, KV cache {config.kv_cache_dtype}"
        )

    def prefill(self, num_tokens: int) -> float:
        return self._session.run(Prefill(num_tokens)).seconds

    def decode(self, num_tokens: int, depth: int, batch: int) -> float:
        return self._session.run(Decode(num_tokens, depth, batch)).seconds


def _workload(test: Test) -> Workload:
    if test.num_prompt_tokens:
        return Prefill(test.num_prompt_tokens)
    return Decode(test.num_output_tokens, test.depth, test.batch)


if __name__ == "__main__":
    serve(Pellucid)
