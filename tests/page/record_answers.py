"""Records what pages without an engine show where others ask one: traces/answers.json.gz.

    python tests/page/record_answers.py [KIND...]    of the bundled model, for its demonstration; of runs some kinds

Comparisons, texts with and without drafts, and loads, as their events came; what the new tokens of a recording read;
and the table from which Plan computes.
"""

import argparse
import gzip
import http.client
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from pellucid.benchmark.machine_facts import KNOWN_MACHINES, THIS_MACHINE
from pellucid.benchmark.plan_table import plan_table
from pellucid.benchmark.planned_model import PlannedModel, measure_this_machine
from pellucid.engine import LLMEngine
from pellucid.engine.inspection import AnswerSoFar
from pellucid.facts.model_config import ModelConfig
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.observing.event_recording import read_recording
from pellucid.observing.page_files import DEMO_TRACE, WEB_FOLDER
from pellucid.shapes import SHAPES
from support.bundled import bundled_engine
from support.http_server import RunningServer, running_server

ANSWERS = WEB_FOLDER / "traces/answers.json.gz"
READ_KEPT = 6  # positions of a look
SEATS = 16  # of the engine that runs the load
STORY = "Once upon a time there was a small dog who lived near the sea."
COPY = "Copy this: one two three four five six seven eight nine ten. one two"
# As the page asks them.
COMPARISONS = [
    {"kind": kind, "prompt": STORY, "max_tokens": 120, "batch": 8, "temperature": 0}
    for kind in ("cache", "kv_dtype", "batch")
]
DRAFTS = [
    {
        "kind": "drafts",
        "prompt": prompt,
        "max_tokens": 48,
        "temperature": 0,
        "drafter": drafter,
        "num_drafts": 4,
    }
    for prompt, drafter in (("Once upon a time", "draft"), (COPY, "draft"), (COPY, "ngram"))
]
LOADS = [
    {
        "num_requests": 24,
        "rate": 8,
        "prompt_tokens": "24-72",
        "output_tokens": "24-72",
        "prefix_tokens": 32,
        "static_batch": 8,
        "seed": 1,
        "ttft_slo": 0.5,
        "itl_slo": 0.1,
        "discipline": discipline,
    }
    for discipline in ("static", "continuous")
]
ASKED = [("/v1/compare", body) for body in COMPARISONS + DRAFTS] + [
    ("/v1/load", body) for body in LOADS
]


def answers(
    name: str,
    engine: LLMEngine,
    trace: Path,
    asked: list[tuple[str, Any]],
    shapes: dict[str, ModelConfig],
) -> dict[str, Any]:
    """All that is recorded of a model.

    Args:
        name: as people know the model.
        trace: a recording of the same model.
        asked: paths and bodies of runs.
        shapes: that Plan knows beside the model.
    """
    table = plan(name, engine, shapes)
    looks = dict(looks_at(engine, trace))
    runs = recorded_runs(engine, asked)
    looks |= looks_of_runs(engine, runs)
    cpus = len(os.sched_getaffinity(0))
    return {
        "model": name,
        "machine": f"a machine of {cpus} CPU cores",
        "when": datetime.now(tz=UTC).date().isoformat(),
        "runs": runs,
        "looks": looks,
        "texts": texts_of(engine, runs, trace),
        "plan": table,
    }


def recorded_runs(engine: LLMEngine, asked: list[tuple[str, Any]]) -> list[dict[str, Any]]:
    """What a server over the engine streams when it is asked."""
    with running_server(engine) as server:
        return [
            {"path": path, "body": body, "events": list(recorded_run(server, path, body))}
            for path, body in asked
        ]


def kind_of(body: Any) -> str:
    """Of a run: a kind of comparison, or a load."""
    return str(body.get("kind", "load"))


def recorded_run(server: RunningServer, path: str, body: Any) -> Iterator[tuple[int, Any]]:
    """The events of a stream, each with the milliseconds since the first one."""
    first = None
    with closing(http.client.HTTPConnection(server.host, server.port)) as connection:
        connection.request("POST", path, json.dumps(body))
        reply = connection.getresponse()
        assert reply.status == 200, reply.read()
        while line := reply.readline():
            now = time.monotonic()
            first = first or now
            if line.startswith(b"data: {"):
                event = json.loads(line.removeprefix(b"data: "))
                assert not event["ev"].endswith(".failed"), event
                yield round(1000 * (now - first)), event


def looks_at(engine: LLMEngine, trace: Path) -> Iterator[tuple[str, Any]]:
    """What the new tokens of each request of a recording read: the mean of all layers and heads, of each layer, and
    of each head. The engine computes them again; their bits do not depend on how the requests were scheduled."""
    prompts: dict[str, list[int]] = {}
    outputs: dict[str, list[int]] = {}
    for event in read_recording(trace):
        if event["ev"] == "req.add" and event.get("prompt_ids"):
            prompts[event["req"]] = event["prompt_ids"]
        elif event["ev"] == "tok":
            outputs.setdefault(event["req"], []).append(event["id"])
    for req in prompts.keys() & outputs.keys():
        yield req, looks_of(engine, prompts[req], outputs[req])


def looks_of_runs(engine: LLMEngine, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """What the new tokens of comparisons read that Compare shows token by token: the mean of all layers and heads."""
    looks = {}
    for begin, arm, output in compared_texts(runs):
        if arm["req"] is not None:
            looks[arm["req"]] = looks_of(engine, begin["prompt_ids"], output, has_parts=False)
    return looks


def compared_texts(
    runs: list[dict[str, Any]],
) -> Iterator[tuple[dict[str, Any], dict[str, Any], list[int]]]:
    """Of each arm that wrote a single text: the event that begins its comparison, the arm, and the text's token ids."""
    for run in runs:
        events = [event for _, event in run["events"]]
        begin = events[0]
        if begin["ev"] == "cmp.begin" and begin["kind"] in ("cache", "kv_dtype"):
            for arm in begin["arms"]:
                steps = [each for each in events if each.get("arm") == arm["arm"] and "new" in each]
                yield begin, arm, [token for step in steps for token in step["new"][0][1]]


def looks_of(
    engine: LLMEngine, prompt: list[int], output: list[int], has_parts: bool = True
) -> dict[str, Any]:
    """See `RecordedLooks` in types.d.ts.

    Args:
        has_parts: with those of each layer and of each head.
    """
    prepared = engine.prepare(prompt, SamplingParams())
    views: dict[str, list[list[int]]] = {}
    errors, seconds = [], []
    for length in range(len(output)):
        seen = engine.inspector.attention(AnswerSoFar(prepared, 0, 0, output[:length], None))
        looked = [seen.weights(layer) for layer in sorted(seen.calls)]
        weights = np.stack([each for each, _ in looked])  # [layers, heads, positions]
        errors += [error for _, error in looked]
        seconds.append(seen.cost.seconds)
        views.setdefault("", []).append(_row(weights.mean(axis=(0, 1))))
        if not has_parts:
            continue
        for layer, of_layer in enumerate(weights.mean(axis=1)):
            views.setdefault(f"layer={layer}", []).append(_row(of_layer))
        for head, of_head in enumerate(weights.mean(axis=0)):
            views.setdefault(f"head={head}", []).append(_row(of_head))
    return {
        "layers": len(looked),
        "heads": len(weights[0]),
        "error": float(f"{max(errors):.2g}"),
        "us": round(1e6 * statistics.median(seconds)),
        "first": len(prompt) - 1,
        "texts": [engine.tokenizer.token_text(token) for token in prompt + output],
        "views": views,
    }


def _row(weights: np.ndarray) -> list[int]:
    """Weights [positions] in thousandths: the first token's, then position and weight of those that are largest."""
    shares = np.rint(1000 * weights).astype(int)
    order = 1 + np.argsort(-weights[1:], kind="stable")[:READ_KEPT]
    pairs = [[int(at), int(shares[at])] for at in order if shares[at] > 0]
    return [int(shares[0]), *(number for pair in pairs for number in pair)]


def texts_of(engine: LLMEngine, runs: list[dict[str, Any]], trace: Path) -> dict[str, str]:
    """Of the tokens that drafts, prompts and compared texts name by their numbers."""
    rounds = (
        round_ for run in runs for _, event in run["events"] for round_ in event.get("rounds") or ()
    )
    ids = {token for draft, _, chosen in rounds for token in (*draft, chosen) if token is not None}
    for begin, _, output in compared_texts(runs):
        ids.update(begin["prompt_ids"], output)
    for event in read_recording(trace):
        ids.update(event.get("prompt_ids") or (), event.get("diff_ids") or ())
        if event["ev"] == "draft":
            ids.update(event["draft"], [event["chosen"]] if event.get("chosen") is not None else ())
    return {str(token): engine.tokenizer.token_text(token) for token in sorted(ids)}


def plan(name: str, engine: LLMEngine, shapes: dict[str, ModelConfig]) -> dict[str, Any]:
    """The table of Plan: the engine's model, and the machine that records it."""
    settings = EngineConfig(speculation="off", block_size=engine.config.block_size)
    model = PlannedModel(name, settings, engine.plan.models)
    machines = {THIS_MACHINE: measure_this_machine(model), **KNOWN_MACHINES}
    return plan_table(model, machines, shapes, settings)


def as_file(recorded: dict[str, Any]) -> bytes:
    text = json.dumps(recorded, separators=(",", ":"), ensure_ascii=False, default=dict)
    return gzip.compress(text.encode(), 9, mtime=0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    kinds = sorted({kind_of(body) for _, body in ASKED})
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(kinds))
    wanted = parser.parse_args().kinds
    if unknown := set(wanted).difference(kinds):
        parser.error(f"no kind: {', '.join(sorted(unknown))}")
    engine = bundled_engine(max_num_seqs=SEATS)
    if wanted:
        recorded = json.loads(gzip.decompress(ANSWERS.read_bytes()))
        asked = [(path, body) for path, body in ASKED if kind_of(body) in wanted]
        kept = [run for run in recorded["runs"] if kind_of(run["body"]) not in wanted]
        for _, arm, _ in compared_texts([run for run in recorded["runs"] if run not in kept]):
            recorded["looks"].pop(arm["req"], None)
        made = kept + recorded_runs(engine, asked)
        order = [body for _, body in ASKED]
        recorded["runs"] = sorted(made, key=lambda run: order.index(run["body"]))
        recorded["looks"] |= looks_of_runs(engine, made)
        recorded["texts"] |= texts_of(engine, made, WEB_FOLDER / DEMO_TRACE)
    else:
        recorded = answers("pellucid-5m", engine, WEB_FOLDER / DEMO_TRACE, ASKED, dict(SHAPES))
    ANSWERS.write_bytes(as_file(recorded))
    print(f"{ANSWERS.name}: {ANSWERS.stat().st_size} bytes")


if __name__ == "__main__":
    main()
