"""OpenVINO on a model exported by optimum-intel (benchmarks/README.md): single calls through the CPU plugin,
requests through the continuous batching of OpenVINO GenAI.

Of its two precision hints each kind of test gets the one that is faster at it on AVX-512: bf16 for prompts
and mixes, f32, which keeps the integer kernels, for decodes.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino
import openvino_genai
from engines.traffic import Served, TrafficRequest
from engines.worker import Stopwatch, Task, random_tokens, serve

DIRECTORIES = {"int4": "openvino-int4", "int8": "openvino-int8", "int8-channel": "openvino-int8"}
BATCH = 2048  # tokens in a step, as in ours
CACHE_GIGABYTES = 2  # of keys and values in its default format, 8 bits: more than a mix needs


class OpenVino:
    """Stateful requests for prefills and decodes, whose state is filled anew for each run (the fill is not
    timed), and a pipeline for mixes."""

    def __init__(self, task: Task) -> None:
        self._num_threads = task.num_threads
        directory = task.weights / DIRECTORIES[task.weight_format]
        if num_requests := max(test.num_requests for test in task.tests):
            scheduler = openvino_genai.SchedulerConfig()
            scheduler.max_num_batched_tokens = BATCH
            scheduler.max_num_seqs = num_requests
            scheduler.cache_size = CACHE_GIGABYTES
            scheduler.enable_prefix_caching = False
            self._pipeline = openvino_genai.ContinuousBatchingPipeline(
                directory, scheduler, "CPU", self._options("bf16")
            )
        if not all(test.num_requests for test in task.tests):
            core = openvino.Core()
            model = core.read_model(directory / "openvino_model.xml")
            self._prefill, self._decode = (
                core.compile_model(
                    model, "CPU", {**self._options(hint), "PERFORMANCE_HINT": "LATENCY"}
                ).create_infer_request()
                for hint in ("bf16", "f32")
            )
        version = openvino.__version__.partition("-")[0]
        self.settings = f"openvino {version}, {task.weight_format}, KV cache in 8 bits"

    def prefill(self, num_tokens: int) -> float:
        self._prefill.reset_state()
        prompt = np.array([random_tokens(num_tokens)])
        stopwatch = Stopwatch()
        _infer(self._prefill, prompt, 0)
        return stopwatch.seconds

    def decode(self, num_tokens: int, depth: int, batch: int) -> float:
        self._decode.reset_state()
        if depth:
            _infer(self._decode, np.array([random_tokens(depth)] * batch), 0)
        steps = [np.full((batch, 1), token) for token in random_tokens(num_tokens)]
        stopwatch = Stopwatch()
        for step, token_ids in enumerate(steps):
            _infer(self._decode, token_ids, depth + step)
        return stopwatch.seconds

    def serve(self, requests: Sequence[TrafficRequest]) -> Served:
        times: list[list[float]] = [[] for _ in requests]
        stopwatch = Stopwatch()
        handles = [self._add(index, request) for index, request in enumerate(requests)]
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            now = stopwatch.seconds
            for own, handle in zip(times, handles, strict=True):
                if handle.can_read():
                    (output,) = handle.read().values()
                    own += [now] * len(output.generated_ids)
        return Served(times)

    def _add(self, request_id: int, request: TrafficRequest) -> Any:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = request.num_output_tokens
        config.ignore_eos = True
        config.do_sample = False
        prompt = openvino.Tensor(np.array([request.prompt_token_ids]))
        return self._pipeline.add_request(request_id, prompt, config)

    def _options(self, hint: str) -> dict[str, Any]:
        return {"INFERENCE_NUM_THREADS": self._num_threads, "INFERENCE_PRECISION_HINT": hint}


def _infer(request: openvino.InferRequest, token_ids: npt.NDArray[np.int64], start: int) -> None:
    """Computes the next tokens [B, T] of sequences that all have `start` tokens."""
    batch, length = token_ids.shape
    request.infer(
        {
            "input_ids": token_ids,
            "attention_mask": np.ones((batch, start + length), np.int64),
            "position_ids": np.tile(np.arange(start, start + length), (batch, 1)),
            "beam_idx": np.arange(batch, dtype=np.int32),
        }
    )


if __name__ == "__main__":
    serve(OpenVino)
