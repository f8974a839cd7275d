"""/v1/compare: both arms really run, count what the formulas say, and give the same tokens."""

import re
from pathlib import Path
from typing import Any

import pytest

from pellucid.engine import LLMEngine
from pellucid.engine.kv_divergence import measure_divergence
from pellucid.observing.events import BlockOps, EventRecord, Step
from pellucid.server.page import compare_routes
from support.bundled import bundled_engine
from support.golden_files import compare
from support.http_server import RunningServer, running_server
from support.replies import frames, short

PROMPT = "Once upon a time, Mira went to the market."
RUNS = Path(__file__).with_name("whole_runs.txt")


def run(server: RunningServer, **body: Any) -> tuple[list[Any], Any]:
    """The events of the arms, and the last one."""
    reply = server.post("/v1/compare", {"prompt": PROMPT, **body})
    assert reply.status == 200, reply.body
    begin, *events, end = reply.events
    assert begin["ev"] == "cmp.begin" and end["ev"] == "cmp.end"
    assert len({event["run"] for event in reply.events}) == 1
    return events, end


def test_whole_runs(server: RunningServer) -> None:
    """Comparisons and loads, event by event; UPDATE_GOLDEN=1 writes them."""
    lines = []
    for line in RUNS.read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            path, body = line.removeprefix("# ").split(" ", 1)
            reply = server.post(path, body.encode())
            lines.append(line)
            # Times between tokens are null where these come at once; probabilities have digits of the machine.
            for frame in frames(reply):
                shown = (
                    each for each in frame.items() if not re.search(r"_seconds|new.*\[3\]", each[0])
                )
                lines.append(", ".join(f"{path}={short(value)}" for path, value in shown))
    compare(RUNS, lines)


def test_the_time_of_a_run_is_that_of_its_steps(server: RunningServer) -> None:
    events, end = run(server, max_tokens=24)
    own = [event for event in events if event["ev"] == "cmp" and event["arm"] == "cached"]
    assert [event["n_tok"] for event in own] == list(range(1, 25))
    assert [event["t_us"] for event in own] == sorted(event["t_us"] for event in own)
    assert sum(event["step_us"] for event in own) == end["arms"]["cached"]["runs_us"][0]


@pytest.mark.parametrize("kind", ["cache", "kv_dtype"])
def test_the_answers_in_the_engines_format_can_be_looked_into(
    server: RunningServer, kind: str
) -> None:
    asked = {"prompt": PROMPT, "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    begin, *events = server.post("/v1/compare", {**asked, "kind": kind, "runs": 1}).events
    names = {arm["arm"]: arm["req"] for arm in begin["arms"]}
    if kind == "kv_dtype":
        assert names.pop("int8") is names.pop("int4") is None
    usual = server.post("/v1/completions", {**asked, "model": "tested"}).json["id"]
    position = len(begin["prompt_ids"]) + 2
    expected = server.get(f"/v1/attn/{usual}/{position}").json
    for arm, name in names.items():
        looked = server.get(f"/v1/attn/{name}/{position}").json
        assert (looked["top"], looked["sink"]) == (expected["top"], expected["sink"])
        new = [event["new"][0] for event in events if event["ev"] == "cmp" and event["arm"] == arm]
        _, [token_id], _, [probability] = new[2]
        logits = server.get(f"/v1/logits/{name}/{position}?top=1").json
        assert logits["id"] == logits["drawn"] == token_id
        assert probability == round(logits["stages"][0]["cand"][0][3], 3)


def test_an_arm_adds_up_its_steps_without_the_time_between_them() -> None:
    totals = compare_routes.ArmTotals()
    batch = (("a", 3, 9), ("b", 1, 4))
    step = Step("decode", batch, 64, 1, 20, 300, 4000, 50_000, 7, 100, 20, 3)
    for event in (step, BlockOps((), 3, 0, 5, 0), step, BlockOps((), 2, 0, 6, 0)):
        totals.take(EventRecord(0, 0, 0, event), block_bytes=10)
    assert (totals.pass_tok, totals.flops, totals.moved_bytes) == (8, 14, 246)
    assert (totals.step_us, totals.t_us) == (4321, 2 * 4321)
    assert (totals.kv_step_bytes, totals.kv_peak_bytes) == (20, 30)


def test_arms_run_in_turn_and_the_end_has_their_medians(server: RunningServer) -> None:
    events, end = run(server, max_tokens=4, runs=5)
    runs = [(event["arm"], event["t_us"]) for event in events if event["ev"] == "cmp.run"]
    assert [name for name, _ in runs] == ["cached", "naive"] * 5
    for name, arm in end["arms"].items():
        assert arm["runs_us"] == [time for arm_name, time in runs if arm_name == name]
        assert arm["t_us"] == sorted(arm["runs_us"])[2]
    assert sum(event["ev"] == "cmp" for event in events) == 2 * 4  # of the first runs


def test_a_comparison_whose_time_is_up_before_a_token_says_so(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare_routes, "MAX_SECONDS", 0)
    _, end = run(server, max_tokens=4)
    for arm in end["arms"].values():
        assert not arm["finished"] and arm["us_per_tok"] is None
        assert arm["n_tok"] == arm["pass_tok"] == arm["pass_tok_formula"] == 0


def test_each_format_is_compared_with_the_first(server: RunningServer) -> None:
    _, end = run(server, kind="kv_dtype", max_tokens=24, runs=1)
    first, *others = end["arms"]
    texts = {name: arm["texts"][0] for name, arm in end["arms"].items()}
    for name in others:
        arm = end["arms"][name]
        assert (arm["first_diff"] is None) == (texts[name] == texts[first])
        assert end["same_tok"] <= arm["same_tok"] <= 24
    assert end["same_tok"] == min(end["arms"][name]["same_tok"] for name in others)


def test_formats_say_what_they_make_of_the_text(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prompt and the first answer, as `eval-kv` reads texts."""
    events, end = run(server, kind="kv_dtype", max_tokens=80, runs=1)
    token_ids = list(server.engine.tokenizer.encode(PROMPT))
    for event in events:
        if event["ev"] == "cmp" and event["arm"] == "bf16":
            token_ids += [token_id for _, new, *_ in event["new"] for token_id in new]
    for name, arm in end["arms"].items():
        expected = measure_divergence(server.engine.model, [token_ids], name, "f32")
        assert (arm["kl_nats"], arm["same_top"]) == (expected.nats, expected.same_top)
        assert arm["read_tok"] == len(token_ids)
        block_bytes = server.engine.model.backend.kv_bytes_per_block(
            server.engine.model_config, 32, name
        )
        assert arm["kv_token_bytes"] * 32 == block_bytes
    monkeypatch.setattr(compare_routes, "MAX_READ_TOKENS", 5)
    _, end = run(server, kind="kv_dtype", max_tokens=4, runs=1)
    assert {arm["read_tok"] for arm in end["arms"].values()} == {5}


def test_formats_take_less_memory_one_after_the_other(server: RunningServer) -> None:
    _, end = run(server, kind="kv_dtype", max_tokens=8)
    peaks = [end["arms"][dtype]["kv_peak_bytes"] for dtype in ("bf16", "int8", "int4")]
    assert peaks[0] > peaks[1] > peaks[2]
    assert not server.engine.has_unfinished_requests


@pytest.mark.parametrize("drafter", ["ngram", "draft"])
def test_drafts_change_no_token(server: RunningServer, drafter: str) -> None:
    text = "Copy this: one two three four five six seven eight nine ten. one two"
    asked = {"prompt": text, "drafter": drafter, "num_drafts": 3, "max_tokens": 24}
    events, end = run(server, kind="drafts", **asked)
    plain, drafted = end["arms"]["plain"], end["arms"]["drafted"]
    assert plain["texts"] == drafted["texts"]
    assert end["same_tok"] == 24 and end["first_diff"] is None
    assert plain["rounds"] == plain["drafted"] == plain["draft_us"] == 0 < drafted["draft_us"]
    assert drafted["draft_us"] < drafted["t_us"]
    assert 0 < drafted["right"] <= drafted["drafted"] <= 3 * drafted["rounds"]
    assert drafted["wrong"] <= drafted["rounds"]
    rounds = [each for event in events if event["ev"] == "cmp" for each in event["rounds"]]
    assert drafted["rounds"] == len(rounds)
    assert drafted["drafted"] == sum(len(drafts) for drafts, _, _ in rounds)
    assert all((chosen is None) == (right == len(drafts)) for drafts, right, chosen in rounds)


def test_the_engines_of_a_comparison_are_closed(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, close = [], LLMEngine.close
    monkeypatch.setattr(LLMEngine, "close", lambda engine: closed.append(close(engine)))
    run(server, max_tokens=2, runs=1)
    server.wait_until(lambda: len(closed) == 2, "the end of both engines")


def test_engines_of_a_comparison_have_caches_of_their_own(tmp_path: Path) -> None:
    """Blocks for their requests alone: neither the memory nor the store of the server's."""
    caches = {"kv_cache_memory": 1 << 24, "prefix_store": str(tmp_path)}
    with running_server(bundled_engine(**caches, enable_prefix_caching=True)) as server:
        _, end = run(server, prompt="word " * 70, max_tokens=2, runs=1)
    assert {arm["kv_peak_bytes"] for arm in end["arms"].values()} == {3 * 98304}
