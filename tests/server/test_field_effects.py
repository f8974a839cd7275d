"""Each field of each protocol changes the answer or what the engine is asked for, is refused by name, or warns.

`field_effects.jsonl` has values of each field, the fields without which they mean nothing, and what they change.
UPDATE_GOLDEN=1 pytest tests/server/test_field_effects.py writes what they change.
"""

import functools
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

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
Outcome: TypeAlias = Callable[[str, Any], dict[str, str]]
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


@pytest.fixture(scope="module")
def outcome(server: RunningServer) -> Iterator[Outcome]:
    """What a body makes of a route: what the engine is asked for, and the reply."""
    asked: list[Any] = []
    add_request = AsyncLLMEngine.add_request

    async def spy(engine: AsyncLLMEngine, prepared: Any, **fields: Any) -> Any:
        prompt = engine.tokenizer.decode(prepared.prompt.token_ids, skip_special_tokens=False)
        named = {name: fields[name] for name in ("priority", "cache_salt")}
        asked.append({"prompt": prompt, **asdict(prepared.params), **named})
        return await add_request(engine, prepared, **fields)

    @functools.cache
    def found(route: str, body: str) -> dict[str, str]:
        asked.clear()
        reply = server.post(route, body.encode())
        warned = reply.headers.get("x-pellucid-warnings")
        found = {"status": reply.status, "warned": warned, "engine": asked, "reply": frames(reply)}
        return {path: short(value) for path, value in flat(found)}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AsyncLLMEngine, "add_request", spy)
        yield lambda route, body: found(route, json.dumps(body))


@pytest.fixture(scope="module")
def kept() -> Iterator[list[dict[str, Any]]]:
    """The lines of the file."""
    lines = [json.loads(line) for line in EFFECTS.read_text(encoding="utf-8").splitlines()]
    yield lines
    if os.environ.get("UPDATE_GOLDEN"):
        written = (json.dumps(each, ensure_ascii=False) + "\n" for each in lines)
        EFFECTS.write_text("".join(written), encoding="utf-8")


def fields_of(table: FieldTable[Any]) -> Iterator[tuple[str, Field]]:
    for field in table.fields:
        yield field.name, field
        inner = table.objects.get(field.name)
        for name, within in fields_of(inner) if inner is not None else ():
            yield f"{field.name}.{name}", within


FIELDS = [(route, *field) for route, table in ROUTES.items() for field in fields_of(table)]


def is_of_streams(name: str) -> bool:
    return name.startswith("stream_options.")


def with_field(body: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    outer, _, inner = name.rpartition(".")
    given = {**body.get(outer, {}), inner: value} if outer else value
    return {**body, outer or inner: given}


def whole(kept: list[dict[str, Any]], route: str) -> dict[str, Any]:
    """The line of the body to which fields are added."""
    (line,) = (line for line in kept if "base" in line and line["route"] == route)
    return line


def check(case: dict[str, Any], found: list[str]) -> None:
    if os.environ.get("UPDATE_GOLDEN"):
        case["effect"] = found
    assert case["effect"] == found, case


@pytest.mark.parametrize("route", ROUTES)
def test_fields_that_are_not_honoured_may_have_values_that_mean_nothing(
    outcome: Outcome, kept: list[dict[str, Any]], route: str
) -> None:
    line = whole(kept, route)
    plain = outcome(route, line["base"])
    check(line, [f"{path}: {value}" for path, value in plain.items()])
    idle = [
        (name, field.neutral)
        for of, name, field in FIELDS
        if of == route and field.treatment is not Treatment.HONOURED and not is_of_streams(name)
    ]
    for place, value in enumerate((None, False, "", [], {})):
        body = line["base"]
        for name, neutral in idle:
            body = with_field(body, name, neutral[place % len(neutral)] if neutral else value)
        assert outcome(route, body) == plain, body


@pytest.mark.parametrize(
    ("route", "name", "field"), FIELDS, ids=[f"{route} {name}" for route, name, _ in FIELDS]
)
def test_every_field_has_an_effect(
    outcome: Outcome, kept: list[dict[str, Any]], route: str, name: str, field: Field
) -> None:
    base = whole(kept, route)["base"]

    def effect(value: Any, others: dict[str, Any]) -> list[str]:
        body, inner = base | others, name.rpartition(".")[2]
        before, after = (outcome(route, each) for each in (body, with_field(body, name, value)))
        assert before["status"] == "200", before
        if after["status"] != "200":
            before = {"warned": after["warned"], "engine": "[]"}
            assert any(inner in text for text in after.values()), after
        paths = [path for path in before | after if before.get(path) != after.get(path)]
        lines = [f"{path}: {before.get(path, '')} -> {after.get(path, '')}" for path in paths]
        return [*lines[:MAX_LINES], *([short("; ".join(lines))] if len(lines) > MAX_LINES else [])]

    if field.treatment is not Treatment.HONOURED:
        found = effect(7, {"stream": True} if is_of_streams(name) else {})
        assert any(name in line for line in found)
        assert ("status" in found[0]) == (field.treatment is Treatment.REFUSED), found
        return
    cases = [each for each in kept if (each["route"], each.get("field")) == (route, name)]
    assert cases, f"write a value of it into {EFFECTS.name}"
    for case in cases:
        if "test" in case:
            assert f"def {case['test']}(" in (TESTS / case["file"]).read_text(encoding="utf-8")
            continue
        found = effect(case["value"], case.get("with", {}))
        assert bool(found) != ("same" in case), case
        check(case, found)
