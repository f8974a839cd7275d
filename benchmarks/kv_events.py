"""What KV events for routers take of a step: the processor time to turn each change of the prefix index into a batch,
as a share of that of the steps.

    python benchmarks/kv_events.py [MODEL] [--batch 1,8]

Here the engine's own thread makes the batches; `pellucid serve --kv-events` has another thread for that. The bundled
model is the worst case, since its steps are short.
"""

import argparse
import time

from pellucid.engine import LLMEngine
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.server.kv_events.event_log import BlockKey, Change, EventLog

BLOCK = 32


class Listener:
    """Makes a batch of each change, and counts its seconds."""

    def __init__(self) -> None:
        self._log = EventLog(BLOCK, time.time)
        self.num_events = 0
        self.seconds = 0.0

    def added(self, key: BlockKey) -> None:
        self._note(Change(key, True))

    def removed(self, key: BlockKey) -> None:
        self._note(Change(key, False))

    def _note(self, change: Change) -> None:
        started = time.thread_time()
        self._log.add([change])
        self.seconds += time.thread_time() - started
        self.num_events += 1


def measure(model: str | None, batch: int, num_prompt_tokens: int, num_tokens: int) -> None:
    engine = LLMEngine.from_config(
        EngineConfig(
            model=model, block_size=BLOCK, num_threads=1, speculation="off", num_kv_blocks=512
        )
    )
    listener = Listener()
    engine.watch_prefixes(listener)
    params = SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True)
    started, num_steps = time.thread_time(), 0
    for turn in range(10):  # later ones evict the blocks of earlier ones
        for number in range(batch):
            first = turn * batch + number
            prompt = [
                5 + (first * 7 + index * (first + 3)) % 900 for index in range(num_prompt_tokens)
            ]
            engine.add_request(prompt, params)
        while engine.has_unfinished_requests:
            engine.step()
            num_steps += 1
    total = time.thread_time() - started
    print(
        f"{batch} requests of {num_prompt_tokens} + {num_tokens} tokens: {listener.num_events} events,"
        f" {listener.seconds / listener.num_events * 1e6:.1f} us each, {listener.seconds / total:.2%} of"
        f" {num_steps} steps of {total / num_steps * 1e3:.2f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("--batch", default="1,8")
    args = parser.parse_args()
    for batch in map(int, args.batch.split(",")):
        measure(args.model, batch, 1500, 1)
        measure(args.model, batch, 20, 200)


if __name__ == "__main__":
    main()
