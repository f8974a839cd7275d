"""OpenVINO's CPU plugin on a model exported by optimum-intel (benchmarks/README.md).

Precision hints differ in what they are good at: f32 keeps the integer kernels. OV_PRECISION=bf16 takes
the other one.
"""

import os

import numpy as np
import numpy.typing as npt
import openvino
from worker import Stopwatch, Task, random_tokens, serve


class OpenVino:
    """One stateful request, whose state is filled anew for each run: the fill is not timed."""

    def __init__(self, task: Task) -> None:
        precision = os.environ.get("OV_PRECISION", "f32")
        core = openvino.Core()
        model = core.read_model(
            task.weights / f"openvino-{task.weight_format}" / "openvino_model.xml"
        )
        options = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": task.num_threads,
            "INFERENCE_PRECISION_HINT": precision,
        }
        self._request = core.compile_model(model, "CPU", options).create_infer_request()
        self.settings = f"openvino {openvino.__version__}, {task.weight_format}, hint {precision}"

    def prefill(self, num_tokens: int) -> float:
        self._request.reset_state()
        prompt = np.array([random_tokens(num_tokens)])
        stopwatch = Stopwatch()
        self._infer(prompt, 0)
        return stopwatch.seconds

    def decode(self, num_tokens: int, depth: int, batch: int) -> float:
        self._request.reset_state()
        if depth:
            self._infer(np.array([random_tokens(depth)] * batch), 0)
        steps = [np.full((batch, 1), token) for token in random_tokens(num_tokens)]
        stopwatch = Stopwatch()
        for step, token_ids in enumerate(steps):
            self._infer(token_ids, depth + step)
        return stopwatch.seconds

    def _infer(self, token_ids: npt.NDArray[np.int64], start: int) -> None:
        batch, length = token_ids.shape
        self._request.infer(
            {
                "input_ids": token_ids,
                "attention_mask": np.ones((batch, start + length), np.int64),
                "position_ids": np.tile(np.arange(start, start + length), (batch, 1)),
                "beam_idx": np.arange(batch, dtype=np.int32),
            }
        )


if __name__ == "__main__":
    serve(OpenVino)
