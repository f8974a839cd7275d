"""transformers on torch, in bf16."""

import torch
import transformers
from engines.worker import Stopwatch, Task, random_tokens, serve


class Transformers:
    """Fills a cache anew for each run: the fill is not timed."""

    def __init__(self, task: Task) -> None:
        if task.weight_format != "bf16":
            raise ValueError(f"format={task.weight_format!r}: this engine runs 'bf16'")
        torch.set_num_threads(task.num_threads)
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            task.weights, dtype=torch.bfloat16
        ).eval()
        self.settings = f"transformers {transformers.__version__}, torch {torch.__version__}, bf16"

    @torch.inference_mode()
    def prefill(self, num_tokens: int) -> float:
        prompt = torch.tensor([random_tokens(num_tokens)])
        stopwatch = Stopwatch()
        self._model(prompt, use_cache=True, logits_to_keep=1)
        return stopwatch.seconds

    @torch.inference_mode()
    def decode(self, num_tokens: int, depth: int, batch: int) -> float:
        cache = transformers.DynamicCache(config=self._model.config)
        if depth:
            prompt = torch.tensor([random_tokens(depth)] * batch)
            self._model(prompt, past_key_values=cache, use_cache=True, logits_to_keep=1)
        steps = [torch.full((batch, 1), token) for token in random_tokens(num_tokens)]
        stopwatch = Stopwatch()
        for step in steps:
            self._model(step, past_key_values=cache, use_cache=True).logits.argmax(-1)
        return stopwatch.seconds


if __name__ == "__main__":
    serve(Transformers)
