"""Records the demonstration that the live page shows without an engine: a run of the bundled model.

    python tools/record_demo_trace.py

Five requests on a pool of 13 blocks: a prompt in chunks, a shared prefix, two completions of one prompt that part
(copy on write), drafts from the request's own text, and a request of a higher priority that preempts another one.
Numbers have six digits, which is what the page shows. Snapshots within it let a test compare what the events lead to.
"""

import json
from pathlib import Path

from pellucid.engine import LLMEngine
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.observing.event_recording import event_line, open_recording
from pellucid.observing.events import VERSION, EventRecord, Level
from pellucid.observing.page_files import WEB_FOLDER

TRACE = WEB_FOLDER / "traces" / "demo.jsonl.gz"
DIGITS = 6
NUM_RUNS = 8
SNAPSHOT_STEPS = 25  # between two snapshots

STORY = "Once upon a time, Mira went to the market with a small red key. "
REQUESTS = {  # by the step before which they come: name, prompt, parameters, priority
    0: [
        (
            "story",
            STORY * 3,
            SamplingParams(temperature=0.7, top_p=0.9, seed=4, max_tokens=40, ignore_eos=True),
            1,
        )
    ],
    6: [
        (
            "pair",
            STORY * 3 + "Then",
            SamplingParams(temperature=0.8, n=2, seed=7, max_tokens=24, ignore_eos=True),
            1,
        ),
        (
            "copy",
            "Copy this: one two three four five six. one two three four five six. one two",
            SamplingParams(temperature=0, max_tokens=20, ignore_eos=True),
            1,
        ),
    ],
    16: [
        (
            "urgent",
            "The capital of France is Paris. The capital of Peru is Lima. " * 8,
            SamplingParams(temperature=0, max_tokens=12, ignore_eos=True),
            0,
        )
    ],
    20: [
        ("late", "What is 12 + 7?", SamplingParams(temperature=0, max_tokens=8), 1),
    ],
}


def main() -> None:
    """Records some runs and keeps the fastest, whose times tell least of what else the machine does."""
    lines = min((record() for _ in range(NUM_RUNS)), key=duration_us)
    TRACE.parent.mkdir(exist_ok=True)
    with open_recording(TRACE) as file:
        file.writelines(lines)
    print(f"{TRACE.relative_to(Path.cwd())}: {len(lines)} events, {TRACE.stat().st_size} bytes")


def duration_us(lines: list[str]) -> int:
    """From the first event to the last."""
    first, last = (int(json.loads(line)["t_us"]) for line in (lines[0], lines[-1]))
    return last - first


def record(model: str | None = None) -> list[str]:
    """The lines of one run; of the bundled model, or of another one."""
    engine = LLMEngine.from_config(
        EngineConfig(
            model=model,
            block_size=16,
            num_kv_blocks=13,
            max_model_len=208,
            max_num_seqs=3,
            max_num_batched_tokens=32,
            speculation="ngram",
        )
    )
    lines: list[str] = []
    last: dict[str, object] = {}

    def write(record: EventRecord) -> None:
        event = record.as_dict()
        last.update({name: event[name] for name in ("seq", "t_us", "step")})
        lines.append(event_line(rounded(event)))

    def write_snapshot() -> None:
        snapshot = engine.snapshot(with_tokens=True)
        envelope = {"v": VERSION, **last, "ev": snapshot.ev}
        lines.append(event_line(rounded({**envelope, **snapshot.fields_as_dict()})))

    engine.events.subscribe(write, Level.TOKEN)
    step = 0
    while engine.has_unfinished_requests or step <= max(REQUESTS):
        for name, prompt, params, priority in REQUESTS.get(step, ()):
            engine.add_request(prompt, params, name, priority=priority)
        engine.step()
        step += 1
        if step % SNAPSHOT_STEPS == 0:
            write_snapshot()
    write_snapshot()
    return lines


def rounded(event: dict[str, object]) -> dict[str, object]:
    """The event as JSON has it, with fewer digits."""
    return json.loads(  # type: ignore[no-any-return]
        json.dumps(event), parse_float=lambda text: float(f"{float(text):.{DIGITS}g}")
    )


if __name__ == "__main__":
    main()
