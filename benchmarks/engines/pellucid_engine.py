"""pellucid: prefill and decode as in `pellucid bench` (schedule, forward, greedy sampling, update), requests
through `LLMEngine`, text included."""

from collections.abc import Sequence
from dataclasses import replace

from engines.traffic import Served, TrafficRequest
from engines.worker import Stopwatch, Task, Test, serve

from pellucid import SamplingParams, __version__
from pellucid.backends.base import CompiledDecoder, StepLogits
from pellucid.backends.drawing import DrawTable
from pellucid.backends.ops import ForwardBatch, KVCache
from pellucid.benchmark.session import Session
from pellucid.benchmark.workloads import Decode, Prefill, Workload
from pellucid.engine import LLMEngine
from pellucid.inputs.config import EngineConfig
from pellucid.loaded_model import load_model

QUANTIZATIONS = {
    "int4": "int4",
    "int8": "int8",
    "int8-channel": "int8-channel",
    "bf16": "none",
    "gguf": "none",  # as the file has them
}


class TimedDecoder:
    """Adds up what a decoder takes."""

    def __init__(self, decoder: CompiledDecoder) -> None:
        self._decoder = decoder
        self.draws_tokens = decoder.draws_tokens
        self.vocab_size = decoder.vocab_size
        self.seconds = 0.0

    def step(
        self, batch: ForwardBatch, kv_cache: KVCache, draws: DrawTable | None = None
    ) -> StepLogits:
        stopwatch = Stopwatch()
        logits = self._decoder.step(batch, kv_cache, draws)
        self.seconds += stopwatch.seconds
        return logits


class Pellucid:
    """A session for prefills and decodes, an engine for mixes, on one copy of the weights."""

    def __init__(self, task: Task) -> None:
        self._config = EngineConfig(
            speculation="off",
            model=str(task.weights),
            quantization=QUANTIZATIONS[task.weight_format],
            num_threads=task.num_threads,
        )
        alone = [_workload(test) for test in task.tests if not test.num_requests]
        has_mixes = len(alone) < len(task.tests)
        model = load_model(replace(self._config, skip_tokenizer_init=not has_mixes))
        if alone:
            self._session = Session(model, self._config, alone)
        if has_mixes:
            # Nothing may be found again: a round computes what the one before it has computed.
            self._engine = LLMEngine(replace(self._config, enable_prefix_caching=False), model)
            self._decoder = TimedDecoder(self._engine.model_runner.decoder)
            self._engine.model_runner.decoder = self._decoder
        self.settings = (
            f"pellucid {__version__}, backend {model.backend.name}, quantization"
            f" {self._config.quantization}, KV cache {self._config.kv_cache_dtype}"
        )

    def prefill(self, num_tokens: int) -> float:
        return self._session.run(Prefill(num_tokens)).seconds

    def decode(self, num_tokens: int, depth: int, batch: int) -> float:
        return self._session.run(Decode(num_tokens, depth, batch)).seconds

    def serve(self, requests: Sequence[TrafficRequest]) -> Served:
        self._decoder.seconds = 0.0
        times: dict[str, list[float]] = {str(index): [] for index in range(len(requests))}
        stopwatch = Stopwatch()
        for request_id, request in zip(times, requests, strict=True):
            params = SamplingParams(
                temperature=0, max_tokens=request.num_output_tokens, ignore_eos=True
            )
            self._engine.add_request(request.prompt_token_ids, params, request_id)
        while self._engine.has_unfinished_requests:
            deltas = self._engine.step()
            now = stopwatch.seconds
            for delta in deltas:
                times[delta.request_id] += [now] * len(delta.token_ids)
        return Served(list(times.values()), stopwatch.seconds - self._decoder.seconds)


def _workload(test: Test) -> Workload:
    if test.num_prompt_tokens:
        return Prefill(test.num_prompt_tokens)
    return Decode(test.num_output_tokens, test.depth, test.batch)


if __name__ == "__main__":
    serve(Pellucid)
