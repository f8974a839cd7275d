"""Each field of each protocol changes the answer or what the engine is asked for, is refused by name, or warns.

`field_effects.jsonl` has values of each field, the fields without which they mean nothing, and what they change.
UPDATE_GOLDEN=1 pytest tests/server/test_field_effects.py writes what they change.
"""

import functools
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from pellucid.async_engine import AsyncLLMEngine
from pellucid.server.field_tables import FIELD_TABLES
from pellucid.server.fields import Field, FieldTable, Treatment
from support.http_server import RunningServer, running_server
from support.replies import flat, frames, short
from support.scripted_model import scripted_engine

pytest.importorskip("llguidance")

TESTS = Path(__file__).parent
EFFECTS = TESTS / "field_effects.jsonl"
MAX_LINES = 8
SCRIPT = """\
<think>12.</think>It is 19.
<tool_call>
{"name": "clock", "arguments": {}}
</tool_call>"""
# The live page's routes run engines of their own, and what counts a body's tokens reads the same body
OTHERS = ("/v1/compare", "/v1/load", "/v1/page/fork", "/v1/chat/completions/input_tokens")
ROUTES = {
    title: table
    for table in FIELD_TABLES
    if (title := table.title.removeprefix("POST ")).startswith("/") and title not in OTHERS
}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server(scripted_engine(SCRIPT, block_size=16), keepalive_seconds=3600) as running:
        running.send_each_step()
        yield running
        running.wait_until_idle()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the engine is asked for."""
    found: list[Any] = []
    add_request = AsyncLLMEngine.add_request

    async def spy(engine: AsyncLLMEngine, prepared: Any, **fields: Any) -> Any:
        prompt = engine.tokenizer.decode(prepared.prompt.token_ids, skip_special_tokens=False)
        named = {name: fields[name] for name in ("priority", "cache_salt")}
        found.append({"prompt": prompt, **asdict(prepared.params), **named})
        return await add_request(engine, prepared, **fields)

    monkeypatch.setattr(AsyncLLMEngine, "add_request", spy)
    return found


def fields_of(table: FieldTable[Any]) -> Iterator[tuple[str, Field]]:
    for field in table.fields:
        yield field.name, field
        inner = table.objects.get(field.name)
        for name, within in fields_of(inner) if inner is not None else ():
            yield f"{field.name}.{name}", within


@pytest.mark.parametrize("route", ROUTES)
def test_every_field_has_an_effect(server: RunningServer, asked: list[Any], route: str) -> None:
    kept = [json.loads(line) for line in EFFECTS.read_text(encoding="utf-8").splitlines()]
    (whole,) = (line for line in kept if "base" in line and line["route"] == route)
    base = whole["base"]

    @functools.cache
    def outcome(body: str) -> dict[str, str]:
        asked.clear()
        reply = server.post(route, body.encode())
        warned = reply.headers.get("x-pellucid-warnings")
        found = {"status": reply.status, "warned": warned, "engine": asked, "reply": frames(reply)}
        return {path: short(value) for path, value in flat(found)}

    def with_field(body: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
        outer, _, inner = name.rpartition(".")
        given = {**body.get(outer, {}), inner: value} if outer else value
        return {**body, outer or inner: given}

    def effect(name: str, value: Any, others: dict[str, Any]) -> list[str]:
        body, inner = base | others, name.rpartition(".")[2]
        before, after = (
            outcome(json.dumps(each)) for each in (body, with_field(body, name, value))
        )
        assert before["status"] == "200", (name, before)
        if after["status"] != "200":
            before = {"warned": after["warned"], "engine": "[]"}
            assert any(inner in text for text in after.values()), (name, after)
        paths = [path for path in before | after if before.get(path) != after.get(path)]
        lines = [f"{path}: {before.get(path, '')} -> {after.get(path, '')}" for path in paths]
        return [*lines[:MAX_LINES], *([short("; ".join(lines))] if len(lines) > MAX_LINES else [])]

    def check(case: dict[str, Any], found: list[str]) -> None:
        if os.environ.get("UPDATE_GOLDEN"):
            case["effect"] = found
        assert case["effect"] == found, case

    idle: dict[
        str, tuple[float, ...]
    ] = {}  # fields that are not honoured: values that mean nothing
    check(whole, [f"{path}: {value}" for path, value in outcome(json.dumps(base)).items()])
    for name, field in fields_of(ROUTES[route]):
        if field.treatment is not Treatment.HONOURED:
            streamed = {"stream": True} if name.startswith("stream_options.") else {}
            found = effect(name, 7, streamed)
            assert any(name in line for line in found), name
            assert ("status" in found[0]) == (field.treatment is Treatment.REFUSED), found
            if not streamed:
                idle[name] = field.neutral
            continue
        cases = [each for each in kept if (each["route"], each.get("field")) == (route, name)]
        assert cases, f"{route}: write a value of {name} into {EFFECTS.name}"
        for case in cases:
            if "test" in case:
                assert f"def {case['test']}(" in (TESTS / case["file"]).read_text(encoding="utf-8")
                continue
            found = effect(name, case["value"], case.get("with", {}))
            assert bool(found) != ("same" in case), (name, case)
            check(case, found)
    for place, value in enumerate((None, False, "", [], {})):
        body = base
        for name, neutral in idle.items():
            body = with_field(body, name, neutral[place % len(neutral)] if neutral else value)
        assert outcome(json.dumps(body)) == outcome(json.dumps(base)), body
    if os.environ.get("UPDATE_GOLDEN"):
        lines = (json.dumps(each, ensure_ascii=False) + "\n" for each in kept)
        EFFECTS.write_text("".join(lines), encoding="utf-8")
