"""The output of commands in terminals of 80 and 120 columns, compared with tests/unit/screens.

UPDATE_SCREENS=1 pytest tests/unit/test_cli_screens.py writes them again; read the difference before you commit it.
Numbers are made up or recorded, so that a screen changes only if its look does.
"""

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from pellucid.benchmark.ablation.ablation import Ablation
from pellucid.benchmark.ablation.batching import BatchingResult, disciplines
from pellucid.benchmark.ablation.capacity import Capacity, CapacityResult
from pellucid.benchmark.ablation.kv_formats import KVFormatResult
from pellucid.benchmark.ablation.prefix import PrefixResult
from pellucid.benchmark.ablation.requests import Times
from pellucid.benchmark.estimate import Workload, estimate, estimate_memory
from pellucid.benchmark.kv_quality import KVQuality
from pellucid.benchmark.load.result import LoadResult, Outcome, ServiceLevel
from pellucid.benchmark.load.traffic import Lengths, Traffic
from pellucid.benchmark.machine_facts import MachineFacts
from pellucid.benchmark.measurement import Cost, Measurement
from pellucid.benchmark.planned_model import find_planned_model
from pellucid.benchmark.workloads import Decode, Prefill
from pellucid.checking.report import (
    ChatFacts,
    EndToken,
    LayerFacts,
    ModelFacts,
    ModelReport,
    StoredType,
)
from pellucid.cli import main
from pellucid.cli.ablate import print_ablation
from pellucid.cli.app import all_verbs
from pellucid.cli.bench_report import print_bench
from pellucid.cli.check_report import print_report
from pellucid.cli.comparison import Arm, Comparison
from pellucid.cli.comparison_report import print_comparison
from pellucid.cli.eval_kv import print_qualities
from pellucid.cli.explanation import explain_request
from pellucid.cli.explanation_report import print_explanation
from pellucid.cli.load_report import Load, print_load
from pellucid.cli.output.terminal import note_facts
from pellucid.cli.plan_report import print_plan
from pellucid.cli.server_screen import print_status
from pellucid.cli.server_status import ServerStatus
from pellucid.engine.kv_divergence import Divergence
from pellucid.facts.machine import Machine
from pellucid.inputs.config import EngineConfig
from pellucid.observing.event_recording import read_recording
from pellucid.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput

RECORDINGS = Path(__file__).with_name("recordings")
SCREENS = Path(__file__).with_name("screens")
WIDTHS = (80, 120)
MACHINE = Machine("avx512", 2, 32.1e9, 905e9, 451e9, 226e9)


class Terminal(io.StringIO):
    """Without colours."""

    def isatty(self) -> bool:
        return True


def bench(tmp_path: Path) -> None:
    def measured(
        workload: Prefill | Decode, *seconds: float, gigabytes: float, tera: float
    ) -> Measurement:
        num_steps = 1 if isinstance(workload, Prefill) else 64
        cost = Cost(num_steps, int(gigabytes * 1e9 * num_steps), int(tera * 1e12 * num_steps))
        return Measurement(workload, seconds, cost, "int8")

    measurements = [
        measured(Prefill(512), 0.601, 0.602, 0.66, gigabytes=0.53, tera=0.37),
        measured(Decode(64, 128, 1), 1.099, 1.1, 1.11, gigabytes=0.49, tera=0.00099),
        measured(Decode(64, 128, 32), 4.1, 4.0, 3.9, gigabytes=0.54, tera=0.0316),
    ]
    config = EngineConfig(model="Qwen/Qwen2.5-0.5B-Instruct", quantization="int8")
    print_bench("Qwen/Qwen2.5-0.5B-Instruct", measurements, config, MACHINE)


def compare(tmp_path: Path) -> None:
    def arm(label: str, use_kv_cache: bool, times: list[float], processed: int) -> Arm:
        logprobs = [{7: Logprob(-0.5, -0.5, 1, "x")} for _ in times]
        completion = CompletionOutput(0, "", [7] * len(times), logprobs=logprobs)  # type: ignore[arg-type]
        metrics = RequestMetrics(
            0.0, 0.001, times, times[-1], processed, processed * 10**9, 3 << 20
        )
        if not use_kv_cache:
            metrics.kv_cache_bytes = 0
        output = RequestOutput("r", "", [1] * 5, 1, [completion], metrics)
        return Arm(label, use_kv_cache, output)

    cached = arm("with KV cache", True, [0.02 + 0.010 * n for n in range(600)], 604)
    naive = arm("without", False, [0.02 + 0.012 * n + 0.0001 * n * n for n in range(600)], 182_700)
    print_comparison(
        Comparison(cached, naive),
        "Qwen/Qwen2.5-0.5B-Instruct, weights int8, KV cache bf16, on AMD EPYC 9654 96-Core Processor",
    )


def explain_alone(tmp_path: Path) -> None:
    print_explanation(explain_request(read_recording(RECORDINGS / "alone.ndjson")))


def explain_crowded(tmp_path: Path) -> None:
    """One of three requests that get in each other's way."""
    events = read_recording(RECORDINGS / "crowded.ndjson")
    print_explanation(explain_request(events, "second"))


def eval_kv(tmp_path: Path) -> None:
    def quality(name: str, num_bytes: float, nll: float, *first: int) -> KVQuality:
        continuations = tuple((index in first, 1) for index in range(40))
        moved = Divergence(num_bytes and 40 / num_bytes**2, 0.9)
        recalled = (True,) * 3 + (len(first) < 30,) * 2
        depths = (0, 0.25, 0.5, 0.75, 1)
        return KVQuality(
            *(name, num_bytes, moved, nll, 7550, recalled, depths, continuations)  # type: ignore[arg-type]
        )

    print_qualities(
        [
            quality("f32", 6144, 2.0417),
            quality("bf16", 3072, 2.0418, 3, 5),
            quality("int8", 1632, 2.0419, 3),
            quality("int4", 864, 2.0484, *range(30)),
        ],
        3 << 30,
    )


def plan(tmp_path: Path) -> None:
    machine = MachineFacts("this machine", "M", 32.1e9, 905e9, 20e9)
    settings = EngineConfig(quantization="int4", num_threads=1)
    model = find_planned_model("qwen3-30b-a3b", settings)
    engine_plan = model.engine_plan(machine.memory_bytes)
    estimates = {
        requests: estimate(model, engine_plan, machine, Workload(4096, 128, requests, 1.5))
        for requests in (1, 8, 32)
    }
    print_plan("qwen3-30b-a3b, weights int4, KV cache bf16", machine, estimates)


def check(tmp_path: Path) -> None:
    facts = ModelFacts(
        "Qwen3_5MoeForCausalLM",
        "gguf",
        40,
        (
            LayerFacts(30, "recurrence", num_experts=256, num_chosen=8),
            LayerFacts(10, "attention", 16, 2, 256, None, 256, 8),
        ),
        2048,
        262_144,
        248_320,
        (StoredType("Q4_K", 432, 19_443_068_928), StoredType("F32", 301, 88_812_748)),
    )
    ends = (
        EndToken(248_046, "<|im_end|>", ("tokenizer.ggml.eos_token_id",)),
        EndToken(248_044, None, ("tokenizer.ggml.eot_token_id", "tokenizer.ggml.eos_token_ids")),
    )
    chat = ChatFacts(True, True, "qwen3_coder", True, True, "enable_thinking")
    model = find_planned_model("qwen3.5-0.8b", EngineConfig(num_threads=1))
    numbers = estimate_memory(model, model.engine_plan(24e9), 24e9, Workload(512, 128))
    report = ModelReport(
        "Qwen3.5-35B-A3B-Q4_K_M.gguf",
        None,
        ("left out: layers that draft (20 tensors, 1 key)",),
        facts,
        ends,
        chat,
        {number.name: number for number in numbers},
        640,
    )
    print_report(report, is_first=True)
    refusal = 'mamba-2.8b.gguf: general.architecture="mamba": no family has what it needs'
    print_report(ModelReport("mamba-2.8b.gguf", refusal), is_first=False)


def ablate(tmp_path: Path) -> None:
    batching = tuple(
        BatchingResult(
            discipline,
            4 if index == 0 else 32,
            288 if index == 0 else 2304,
            Times(60 / (index + 1), 20 / (index + 1)),
        )
        for index, discipline in enumerate(disciplines(32))
    )
    capacity = CapacityResult(
        512 << 20,
        (
            Capacity("a whole context for each", 8, 0.103),
            Capacity("blocks of 32 tokens", 71, 0.962),
        ),
    )
    formats = tuple(
        KVFormatResult(name, num_bytes, 1900, speed)
        for name, num_bytes, speed in (
            ("f32", 24576, 21.0),
            ("bf16", 12288, 24.1),
            ("int8", 6528, 26.3),
            ("int4", 3456, 27.9),
        )
    )
    print_ablation(
        "qwen2.5-0.5b",
        Ablation(batching, capacity, PrefixResult(1024, 992, 1.9, 1.91, 0.071), formats),
        EngineConfig(),
    )


def bench_serve(tmp_path: Path) -> None:
    def outcome(index: int) -> Outcome:
        sent = index * 0.21
        times = tuple(sent + 0.05 + 0.013 * index + 0.0092 * token for token in range(64))
        return Outcome(sent, sent, times, times[-1], 64, 530, 256 if index else 0)

    message = "HTTP 429: 1024 completions are unfinished, the most allowed; try again in 4s"
    refused = Outcome(1.9, 1.9, (), 1.91, 0, failure="HTTP 429", message=message)
    traffic = Traffic(21, Lengths(256, 256), Lengths(64, 64), rate=4.5, prefix_tokens=256)
    result = LoadResult([*map(outcome, range(20)), refused], ServiceLevel(0.2, 0.05))
    print_load(Load("http://127.0.0.1:8000", "Qwen/Qwen2.5-0.5B-Instruct", "chat", traffic, result))


def top(tmp_path: Path) -> None:
    def request(name: str, place: int | None, num_output: int, reason: str) -> dict[str, Any]:
        return {
            "id": name * 24,
            "caller": "\x1b[31mred",  # a name that would drive the terminal
            "state": "running" if place is None else "waiting",
            "queue_position": place,
            "prompt_tokens": 512,
            "cached_tokens": 256 if place is None else 0,
            "output_tokens": num_output,
            "completions": {f"{name}/0": {"reason": reason}},
        }

    kv = {"block_size": 32, "num_blocks": 200, "num_used_blocks": 120, "num_cached_blocks": 30}
    requests = [request("b", 1, 0, "no_blocks"), request("a", None, 37, "computed")]
    stat = {"in_tok_s": 812.4, "out_tok_s": 58.31, "hit_frac": 0.5}
    status = ServerStatus(
        "http://127.0.0.1:8000", "pellucid-5m", "ok", requests, {**kv, "num_empty_blocks": 50}, stat
    )
    print_status(status)


def notes(tmp_path: Path) -> None:
    note_facts(
        "memory",
        [
            "weights 11.0 MiB",
            "scratch 8.03 MiB",
            "KV cache up to 6.00 MiB (64 blocks of 32 tokens, 1 x 2048 tokens)",
            "available 22.7 GiB",
        ],
    )
    note_facts(
        "done",
        [
            "first token 41.8 ms",
            "173 tokens 108 tok/s",
            "stop: <|end_of_text|>",
            "temperature 0.8, top_p 0.95, seed 1",
        ],
    )
    note_facts(
        "done",
        [
            "time to first token 41.8 ms",
            "prefill 5 tokens 136 tok/s",
            "decode 172 tokens 108 tok/s",
            "KV cache 576 KiB",
            "stop: end token 1 (<|end_of_text|>)",
            "temperature 0.8, top_p 0.95, seed 1",
        ],
    )


def help_of(*words: str) -> Callable[[Path], None]:
    def show(tmp_path: Path) -> None:
        main([*words, "--help"])

    return show


SHOWN: dict[str, Callable[[Path], None]] = {
    "bench": bench,
    "compare": compare,
    "explain-alone": explain_alone,
    "explain-crowded": explain_crowded,
    "eval-kv": eval_kv,
    "plan": plan,
    "check": check,
    "ablate": ablate,
    "bench-serve": bench_serve,
    "top": top,
    "notes": notes,
    "help": help_of(),
    "help-run": help_of("run"),
}


def shown_by(
    show: Callable[[Path], None], width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """What a terminal shows, without spaces at the ends of lines."""
    for variable, value in (("COLUMNS", str(width)), ("TERM", "dumb"), ("PELLUCID_CONFIG", "")):
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr(
        "pellucid.cli.bench_report.machine_name", lambda: "AMD EPYC 9654 96-Core Processor"
    )
    monkeypatch.setattr("pellucid.cli.app.open_missing_streams", lambda: None)
    terminal = Terminal()  # stdout and stderr, on one screen
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "stderr", terminal)
    show(tmp_path)
    lines = [line.rstrip() for line in terminal.getvalue().splitlines()]
    assert not [line for line in lines if cell_len(line) > width]
    return "".join(f"{line}\n" for line in lines)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", SHOWN)
def test_screen(name: str, width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = shown_by(SHOWN[name], width, tmp_path, monkeypatch)
    kept = SCREENS / f"{name}-{width}.txt"
    if os.environ.get("UPDATE_SCREENS") == "1":
        SCREENS.mkdir(exist_ok=True)
        kept.write_text(shown, encoding="utf-8")
    assert shown == kept.read_text(encoding="utf-8")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("verb", all_verbs())
def test_help_fits(verb: str, width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert f"pellucid {verb} [OPTIONS]" in shown_by(help_of(verb), width, tmp_path, monkeypatch)


def test_no_screen_is_left_over() -> None:
    names = {f"{name}-{width}.txt" for name in SHOWN for width in WIDTHS}
    assert {path.name for path in SCREENS.iterdir()} == names
