"""Steps in another process: it gets what the scheduler decides, as bytes, and computes the same bits."""

import multiprocessing
import pickle
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from pellucid.engine import LLMEngine
from pellucid.execution.model_runner import StepResult
from pellucid.inputs.beam_search_params import BeamSearchParams
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.loaded_model import load_model
from pellucid.outputs import RequestOutput
from pellucid.scheduling.block_ops import BlockOp
from pellucid.scheduling.request import Request
from pellucid.scheduling.scheduler_output import BlockIds, ScheduledRequest, SchedulerOutput
from pellucid.speculation.proposers.proposer import Proposer
from support.checkpoints import write_checkpoint
from support.fake_model import FakeClock

PENALTIES = {"repetition_penalty": 1.3, "frequency_penalty": 0.7, "bad_words": ["e", "th"]}
REQUESTS: list[tuple[str, SamplingParams | BeamSearchParams]] = [
    ("the cat and the cat and the cat and", SamplingParams(temperature=0, max_tokens=50)),
    ("once upon a time " * 3, SamplingParams(seed=1, n=3, logprobs=2, prompt_logprobs=1)),
    ("a fox", SamplingParams(seed=2, temperature=0.8, top_p=0.9, min_tokens=9, **PENALTIES)),
    ("the lake", BeamSearchParams(beam_width=3, max_tokens=9)),
    ("an owl " * 9, SamplingParams(seed=3, top_k=20, max_tokens=40, ignore_eos=True)),
]


def compute_steps(connection: Connection, config: EngineConfig) -> None:
    """The other process: an engine of which only the model runner works."""
    runner = LLMEngine.from_config(config).model_runner
    batch = computed = None
    while message := connection.recv_bytes():
        match pickle.loads(message):
            case "follow", output:
                runner.follow(output)
            case "transfer", ops:
                runner.transfer(ops)
            case "send", share:
                batch = runner.send(*share)
            case "execute", scheduled_requests:
                computed = runner.execute(scheduled_requests, batch)
            case "sample", scheduled_requests:
                result = runner.sample(scheduled_requests, computed)
                connection.send_bytes(pickle.dumps(result))


class RemoteRunner:
    """A model runner whose steps the other process computes. Only bytes cross."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.outputs: list[SchedulerOutput] = []

    def follow(self, output: SchedulerOutput) -> None:
        self.outputs.append(output)
        self._send("follow", output)

    def transfer(self, ops: Sequence[BlockOp]) -> None:
        self._send("transfer", ops)

    def send(
        self, scheduled_requests: Sequence[ScheduledRequest], block_tables: Sequence[BlockIds]
    ) -> str:
        self._send("send", (scheduled_requests, block_tables))
        return "laid out there"

    def execute(self, scheduled_requests: Sequence[ScheduledRequest], batch: str) -> str:
        self._send("execute", scheduled_requests)
        return "computed there"

    def sample(
        self, scheduled_requests: Sequence[ScheduledRequest], computed: str, watches: None
    ) -> StepResult:
        self._send("sample", scheduled_requests)
        return pickle.loads(self._connection.recv_bytes())

    def close(self) -> None:
        self._connection.send_bytes(b"")

    def _send(self, name: str, plain: object) -> None:
        self._connection.send_bytes(pickle.dumps((name, plain)))


class Repeats(Proposer):
    """Guesses that texts end with the same token again and again."""

    def propose(
        self, requests: Sequence[Request], max_drafts: Mapping[str, int]
    ) -> dict[str, list[int]]:
        return {
            request.request_id: request.output_token_ids[-1:] * max_drafts[request.request_id]
            for request in requests
        }


def answers(engine: LLMEngine) -> list[RequestOutput]:
    outputs = [engine.add_request(prompt, params) for prompt, params in REQUESTS]
    while engine.has_unfinished_requests:
        engine.step()
    return outputs


def plain(output: RequestOutput) -> tuple[Any, ...]:
    return output.prompt_logprobs, [asdict(each) for each in output.outputs]


@pytest.mark.parametrize("family", ["llama", "lfm2"])
@pytest.mark.parametrize("backend", ["cpu", "numpy"])
def test_steps_that_another_process_computes(backend: str, family: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, family)
    config = EngineConfig(
        model=str(tmp_path),
        backend=backend,
        block_size=16,
        max_model_len=120,
        num_kv_blocks=10,
        max_num_seqs=6,
        max_num_batched_tokens=24,
        num_threads=1,
    )
    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=compute_steps, args=(there, config))
    process.start()
    there.close()  # or nobody would notice that it ends
    runner = RemoteRunner(here)
    model = load_model(config)
    engine = LLMEngine(config, model, FakeClock(), proposer=Repeats())
    engine._core.model_runner = runner  # type: ignore[assignment]
    outputs = answers(engine)
    runner.close()
    process.join(60)
    assert process.exitcode == 0
    assert [*map(plain, outputs)] == [
        *map(plain, answers(LLMEngine(config, model, FakeClock(), proposer=Repeats())))
    ]
    assert all(each.finish_reason != "error" for output in outputs for each in output.outputs)

    seen: Counter[str] = Counter()
    for output in runner.outputs:
        for part in output.scheduled:
            seen["chunks"] += not part.samplers
            seen["drafts"] += part.num_draft_tokens
            seen["forks"] += len(part.samplers) > 1
            seen["decodes"] += part.is_decoding
        seen["beams exchanged"] += any(each.output_token_ids for each in output.started)
        seen["preempted"] += len(output.preempted)
        seen["ended"] += len(output.ended)
    wanted = "chunks", "drafts", "forks", "decodes", "beams exchanged", "preempted", "ended"
    assert all(seen[what] for what in wanted), seen
