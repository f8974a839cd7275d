"""`pellucid explain` and `run --events` show what the events say."""

import json
import re
from pathlib import Path

import pytest

from pellucid.benchmark import ceilings
from pellucid.cli.explanation import explain_request
from pellucid.cli.explanation_report import MISSES, PARTS, prefix_lines, title, waits
from pellucid.engine.engine_events import Ceilings
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.observing.event_recording import read_recording, recording
from pellucid.observing.events import MissWhy
from support.command_line import CommandLine, InterruptedDecoder
from support.fake_model import fake_engine
from support.ticking_clock import TickingClock

RUN = ("h e y", "--max-tokens", "9", "--ignore-eos", "--temperature", "0")


@pytest.fixture(autouse=True)
def _measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "measure_ceilings", lambda config, model: Ceilings(1e6, 1e9))


@pytest.fixture
def crowded(tmp_path: Path) -> Path:
    """A recording of requests that get in each other's way."""
    path = tmp_path / "crowded.ndjson"
    engine = fake_engine(
        clock=TickingClock(),
        block_size=16,
        num_kv_blocks=12,
        max_model_len=128,
        max_num_seqs=2,
        max_num_batched_tokens=32,
    )
    params = SamplingParams(max_tokens=80, ignore_eos=True)
    with recording(engine.events, path):
        for index, name in enumerate(("first", "second", "third")):
            engine.add_request([index + 1] * 40, params, name)
        while engine.has_unfinished_requests:
            engine.step()
    return path


def test_a_run_is_explained(pellucid: CommandLine) -> None:
    ran = pellucid("explain", *RUN)
    assert ran.status == 0
    engine, title = ran.out.splitlines()[:2]
    assert engine == (
        "fake, weights as stored, KV cache bf16; this machine: memory 0.0 GB/s, 1 GFLOP/s"
    )
    assert title == "request-0/0: 5 prompt tokens, 9 output tokens, done: max_tokens"
    shares = [float(share) for share in re.findall(r"(\d+\.\d)%", ran.out)]
    assert sum(shares) == pytest.approx(100, abs=0.1 * len(PARTS))
    assert re.search(r"^prefill +1 +5 .* memory +\d+%$", ran.out, re.MULTILINE)
    assert re.search(r"^decode +8 +8 .* memory +\d+%$", ran.out, re.MULTILINE)
    assert (
        "prefix cache: 0 of 5 prompt tokens found; miss at token 0: the rest is shorter than a block"
        in " ".join(ran.out.split())
    )
    assert "KV cache: 1 of 8 blocks of 32 tokens, 32 bytes in bf16" in ran.out
    assert ran.err.startswith("done: time to first token")


def test_a_recorded_run_is_explained_alike(pellucid: CommandLine, tmp_path: Path) -> None:
    path = str(tmp_path / "events.ndjson")
    ran = pellucid("run", *RUN, "--events", path)
    assert (ran.status, len(ran.out)) == (0, 9)
    loads = [event for event in read_recording(Path(path)) if event["ev"] == "load"]
    assert [event["done_bytes"] for event in loads] == [0, 50, 100]
    explained = pellucid("explain", "--events", path)
    assert (explained.status, explained.err) == (0, "")
    assert "request-0/0: 5 prompt tokens, 9 output tokens, done: max_tokens\n" in explained.out
    assert "this machine" not in explained.out  # nobody measured it
    values = json.loads(pellucid("explain", "--events", path, "--json").out)
    assert values["ledger"]["total_us"] > 0
    assert values["phases"]["decode"]["steps"] == values["phases"]["decode"]["tok"] == 8
    assert values["phases"]["decode"]["bound"] is None


def test_who_held_it_up(crowded: Path) -> None:
    events = list(read_recording(crowded))
    explained = {name: explain_request(events, name) for name in ("first", "second", "third")}
    assert (
        title(explained["first"]) == "first/0: 40 prompt tokens, 80 output tokens, done: max_tokens"
    )
    (behind,) = [line for line in waits(explained["third"]) if line.startswith("in the queue")]
    assert "first/0 (" in behind
    preempted = [line for line in waits(explained["second"]) if line.startswith("preempted")]
    assert preempted
    for line in preempted:
        assert re.fullmatch(
            r"preempted for first/0: released 1 block, lost 1[56] tokens \(recompute\)", line
        )
    assert explained["second"].ledger is not None
    assert explained["second"].ledger["lost_tok"] > 0
    assert prefix_lines(explained["second"])[0].endswith(
        "miss at token 0: no request began like this"
    )


def test_ctrl_c_is_explained_as_far_as_it_went(pellucid: CommandLine) -> None:
    pellucid.decoder = InterruptedDecoder(3)
    ran = pellucid("explain", *RUN)
    assert ran.status == 130
    assert "request-0/0: 5 prompt tokens, 4 output tokens, cancelled: cancel\n" in ran.out


def test_every_miss_has_words() -> None:
    assert set(MISSES) == set(MissWhy.__args__)


def test_which_request(pellucid: CommandLine, crowded: Path) -> None:
    path = str(crowded)
    several = pellucid("explain", "--events", path)
    assert several.err == "error: --request: choose one of first/0, second/0, third/0\n"
    assert pellucid("explain", "--events", path, "--request", "second").status == 0
    unknown = pellucid("explain", "--events", path, "--request", "x")
    assert (unknown.status, unknown.err[:22]) == (2, "error: --request x: is")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--events", "missing.ndjson"), "missing.ndjson: No such file or directory"),
        (("h e y", "--events", "x"), "--events x: is a recording; it takes no prompt"),
        (("h e y", "--request", "x"), "--request x: needs --events FILE"),
    ],
)
def test_what_cannot_be_explained(
    pellucid: CommandLine, arguments: tuple[str, ...], message: str
) -> None:
    ran = pellucid("explain", *arguments)
    assert (ran.status, ran.out, ran.err) == (2, "", f"error: {message}\n")


def test_a_recording_without_its_beginning(pellucid: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "events.ndjson"
    step = {
        **dict.fromkeys(
            ("seq", "t_us", "step", "budget_tok", "sched_us", "fwd_us", "sample_us"), 1
        ),
        **dict.fromkeys(("emit_us", "idle_us", "flops", "w_bytes", "kv_read_bytes"), 1),
        "kv_write_bytes": 1,
        "v": 1,
        "ev": "step",
        "kind": "decode",
        "batch": [["r/0", 1, 9]],
    }
    path.write_text(json.dumps(step) + "\n")
    ran = pellucid("explain", "--events", str(path))
    assert ran.err == "error: no request was recorded from its beginning\n"
