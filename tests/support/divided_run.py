"""Run by mpirun: answers requests with an engine whose ranks have a share of the weights each.

    python -m support.divided_run SETTINGS REQUESTS ANSWERS

SETTINGS is JSON of `EngineConfig`, REQUESTS and ANSWERS are files of pickles: pairs of a prompt and its parameters, and
what `answers` returns.
"""

import json
import pickle
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from pellucid.engine import LLMEngine
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.sampling_params import SamplingParams


def answers(
    engine: LLMEngine, requests: Sequence[tuple[list[int], SamplingParams]]
) -> list[object]:
    """Outputs and log-probabilities of requests that come at once; how often each was preempted, and what was computed
    again."""
    outputs = [engine.add_request(prompt, params) for prompt, params in requests]
    while engine.has_unfinished_requests:
        engine.step()
    return [
        (
            *(each.outputs, each.prompt_logprobs, each.num_cached_tokens),
            *(each.metrics.num_preemptions, each.ledger.num_recomputed_tokens),
        )
        for each in outputs
    ]


def main() -> None:
    settings, requests, result = sys.argv[1:]
    config = EngineConfig(**json.loads(settings))
    with closing(LLMEngine.from_config(config)) as engine:
        given = pickle.loads(Path(requests).read_bytes())
        found = [answers(engine, given) for _ in range(2)]
        plan = engine.memory_plan
        sizes = engine.model.weight_bytes, plan.bytes_per_block
        Path(result).write_bytes(pickle.dumps((found, engine.identity, sizes)))
    try:
        LLMEngine.from_config(config)
    except ValueError as error:
        print(error)


if __name__ == "__main__":
    main()
