"""A page without an engine: estimates computed by it, and what an engine answered once."""

import base64
import gzip
import json
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from page.browser import patient_page, wait_until
from page.record_answers import COPY
from page.record_site import write_site
from pellucid.benchmark.estimate import Workload, estimate
from pellucid.benchmark.machine_facts import KNOWN_MACHINES
from pellucid.benchmark.plan_table import KV_FORMATS, WEIGHT_FORMATS, plan_table
from pellucid.benchmark.planned_model import plan_shape
from pellucid.inputs.config import EngineConfig, fitting_block_size
from pellucid.observing.event_recording import event_line, open_recording, read_recording
from pellucid.observing.page_bundle import export_file
from pellucid.observing.page_files import DEMO_TRACE, WEB_FOLDER
from pellucid.shapes import SHAPES
from support.bundled import bundled_engine

ANSWERS = WEB_FOLDER / "traces/answers.json.gz"
# Layers of one window and of two, experts, recurrent layers, layers that share keys and values.
SHAPES_COMPARED = (
    "smollm2-135m",
    "llama-3.1-8b",
    "gemma-3-1b",
    "gemma-4-e2b",
    "qwen3-30b-a3b",
    "qwen3.5-0.8b",
    "gpt-oss-20b",
    "gpt2",
)
SETTINGS = EngineConfig(speculation="off")
ESTIMATES = """async ([table, queries]) => {
  const path = document.querySelector('script[type="module"]').src.replace("app.js", "plan/planner.js");
  const { estimateOf } = await import(path);
  return queries.map((query) => estimateOf(table, new URLSearchParams(query)).numbers);
}"""

HAS_ENDED = """([kind, made]) => {
  const { latest } = pellucid.views.compare;
  const tokens = latest?.arms.flatMap((arm) => arm.tokens);
  return latest?.kind === kind && latest.end !== null && tokens.join() === made.join();
}"""


def test_the_pages_estimates_are_those_of_python(page: Any) -> None:
    draw = random.Random(26)
    shapes = {name: SHAPES[name] for name in SHAPES_COMPARED}
    own = plan_shape("gpt2", SHAPES["gpt2"], SETTINGS)
    table = plan_table(own, KNOWN_MACHINES, shapes, SETTINGS)
    queries, expected = [], []
    for shape in SHAPES_COMPARED * 3:
        machine = draw.choice(list(KNOWN_MACHINES))
        work = Workload(
            prompt=round(2 ** draw.uniform(0, 17)),
            output=round(2 ** draw.uniform(0, 14)),
            batch=round(2 ** draw.uniform(0, 10)),
            price_per_hour=draw.choice([0.0, 1.5]),
        )
        quantization, dtype = draw.choice(WEIGHT_FORMATS), draw.choice(KV_FORMATS)
        settings = replace(
            SETTINGS,
            quantization=quantization,
            kv_cache_dtype=dtype,
            block_size=fitting_block_size(SETTINGS.block_size, dtype),
        )
        model, facts = plan_shape(shape, SHAPES[shape], settings), KNOWN_MACHINES[machine]
        numbers = estimate(model, model.engine_plan(facts.memory_bytes), facts, work)
        expected.append([asdict(number) for number in numbers])
        asked = {"shape": shape, "machine": machine, "quantization": quantization}
        asked |= {"kv_cache_dtype": dtype, "prompt": work.prompt, "output": work.output}
        asked |= {"batch": work.batch, "price_per_hour": work.price_per_hour}
        queries.append({name: str(value) for name, value in asked.items()})
    found = page.evaluate(ESTIMATES, [json.loads(json.dumps(table)), queries])
    for query, theirs, ours in zip(queries, found, expected, strict=True):
        assert [each["name"] for each in theirs] == [each["name"] for each in ours], query
        for figure, known in zip(theirs, ours, strict=True):
            about = (query, known["name"])
            assert figure.pop("value") == pytest.approx(known.pop("value"), rel=1e-12), about
            inputs = known.pop("inputs")
            assert figure.pop("inputs") == {
                name: value if isinstance(value, str) else pytest.approx(value, rel=1e-12)
                for name, value in inputs.items()
            }, about
            assert figure == known, about


def test_the_recorded_table_is_what_the_planner_says_now() -> None:
    recorded = json.loads(gzip.decompress(ANSWERS.read_bytes()))["plan"]
    assert recorded["models"].keys() == {"", *SHAPES}
    shapes = {name: SHAPES[name] for name in ("gemma-3-270m", "granite-3.1-1b-a400m")}
    settings = replace(SETTINGS, block_size=recorded["models"][""]["caches"]["bf16"]["block_tok"])
    own = plan_shape("", SHAPES["gpt2"], settings)
    table = json.loads(json.dumps(plan_table(own, KNOWN_MACHINES, shapes, settings)))
    assert recorded["formulas"] == table["formulas"]
    assert recorded["settings"] == table["settings"]
    assert {name: recorded["machines"][name] for name in KNOWN_MACHINES} == table["machines"]
    for name in shapes:
        before, now = recorded["models"][name], table["models"][name]
        for of_format in (*before["weights"].values(), *now["weights"].values()):
            del of_format["scratch"]  # depends on the processor's kernels
        assert before == now, name


def show(page: Any, view: str) -> None:
    page.evaluate("view => { location.hash = view; }", view)
    wait_until(page, "view => pellucid.views[view] !== undefined", view)


def test_without_an_engine_views_replay_and_plan_computes(browser: Any, tmp_path: Path) -> None:
    answers = json.loads(gzip.decompress(ANSWERS.read_bytes()))
    export_file(tmp_path / "run.html", None)
    page = patient_page(browser, reduced_motion="reduce")  # runs are there at once
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: message.type == "error" and problems.append(message.text))
    page.goto((tmp_path / "run.html").as_uri())
    wait_until(page, "pellucid.source.status.value === 'ended'")

    show(page, "generate")
    (req, looks), *_ = answers["looks"].items()
    page.evaluate("req => { pellucid.selection.req.value = req; }", req)
    sink = looks["views"][""][-1][0] / 10  # of what the newest token read
    page.locator(".read-list .apart", has_text=f"{sink:.1f}").first.wait_for()
    page.locator(".candidates tr.chosen").wait_for()
    page.evaluate("pellucid.views.generate.layer.value = pellucid.views.generate.head.value = 0")
    page.get_by_text("the mean of each layer and of each head").wait_for()

    show(page, "compare")
    for number, kind in enumerate(("cache", "kv_dtype", "batch")):
        (run,) = [each for each in answers["runs"] if each["body"].get("kind") == kind]
        if number > 0:  # the first one plays by itself
            page.locator(".replay .chip").nth(number).click()
        made = [event["n_tok"] for _, event in run["events"] if event["ev"] == "cmp"]
        wait_until(page, HAS_ENDED, [kind, made])
        if kind != "batch":  # what tokens of one text read was recorded as well
            page.locator(".written").first.locator(".arcs path").first.wait_for()
    show(page, "speculate")
    page.get_by_text("tokens are the same").wait_for()
    show(page, "serve")
    page.get_by_role("row", name="all served after").wait_for()
    wait_until(page, "Object.values(pellucid.views.serve.loads).every((load) => load?.end)")

    show(page, "plan")
    seconds = "pellucid.views.plan.estimate.value?.numbers.find(({ name }) => name === 'decode_seconds')?.value"
    wait_until(page, f"{seconds} > 0")
    page.locator("#plan-shape").select_option("llama-3.1-8b")
    page.locator("#plan-machine").select_option("h100-80g")
    model = plan_shape("llama-3.1-8b", SHAPES["llama-3.1-8b"], SETTINGS)
    facts = KNOWN_MACHINES["h100-80g"]
    numbers = estimate(model, None, facts, Workload(512, 128, 8))
    (expected,) = [each.value for each in numbers if each.name == "decode_seconds"]
    wait_until(page, f"expected => Math.abs({seconds} / expected - 1) < 1e-12", expected)
    assert problems == []
    page.close()


def test_a_site_has_the_runs_of_its_own_model(tmp_path: Path) -> None:
    name, trace = "one more model", tmp_path / "late.jsonl.gz"
    wanted = {"hello", "req.add", "req.state", "tok"}
    with open_recording(trace) as file:
        file.writelines(
            event_line(event)
            for event in read_recording(WEB_FOLDER / DEMO_TRACE)
            if event["ev"] in wanted and event.get("req", "late/0") == "late/0"
        )
    body = {"kind": "drafts", "prompt": COPY, "max_tokens": 8, "drafter": "ngram", "num_drafts": 2}
    lessons = {"memory": {"engine": name}}
    asked = [("/v1/compare", body)]
    engine = bundled_engine(max_num_seqs=2)
    # In a thread of its own: playwright keeps an event loop in this one.
    with ThreadPoolExecutor(1) as thread:
        written_to = (tmp_path / "site", name, engine, trace, lessons, asked, {})
        whole = thread.submit(write_site, *written_to).result()
    text, folder = whole.read_text(), tmp_path / "site"
    written = (folder / "traces/answers.json.gz").read_bytes()
    for each in (written, (folder / "traces/lessons.json").read_bytes(), trace.read_bytes()):
        assert base64.b64encode(each).decode() in text
    found = json.loads(gzip.decompress(written))
    assert found["model"] == found["plan"]["models"][""]["name"] == name
    ((path, (_, end)),) = [(run["path"], run["events"][-1]) for run in found["runs"]]
    assert (path, end["ev"], end["first_diff"]) == ("/v1/compare", "cmp.end", None)
    (looks,) = found["looks"].values()
    committed = json.loads(gzip.decompress(ANSWERS.read_bytes()))["looks"]["late/0"]
    assert looks["texts"] == committed["texts"]
    assert looks["views"].keys() == committed["views"].keys()
