"""The tables of fields: complete, correct, and equal to docs/server-fields.md."""

import inspect
import re
import runpy
import typing
from pathlib import Path
from typing import Any

import anthropic.types
import msgspec
import ollama
import openai.types.responses
import openai.types.shared_params
import pytest
from anthropic.types import message_create_params
from openai.types.chat import ChatCompletionStreamOptionsParam, completion_create_params
from openai.types.responses import response_create_params

from pellucid.server.call_warnings import Warnings
from pellucid.server.errors import ApiError
from pellucid.server.field_tables import FIELD_TABLES
from pellucid.server.fields import (
    FieldTable,
    Treatment,
    honoured,
    not_served,
    warn_of_unknown_keys,
    without_effect,
)
from pellucid.server.json_bounds import check_counts
from pellucid.server.page.fields import COMPARE_FIELDS, FORK_FIELDS, LOAD_FIELDS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("table", FIELD_TABLES, ids=lambda table: table.title)
def test_a_table_has_each_field_once_and_honours_what_is_read(table: FieldTable[Any]) -> None:
    names = [field.name for field in table.fields]
    assert len(names) == len(set(names))
    read = {field.name for field in table.fields if field.treatment is Treatment.HONOURED}
    assert read == {field.encode_name for field in msgspec.structs.fields(table.body)}
    assert all(field.note for field in table.fields)


CLIENT_FIELDS = {
    "POST /v1/chat/completions": completion_create_params.CompletionCreateParamsBase,
    "POST /v1/completions": openai.types.completion_create_params.CompletionCreateParamsBase,
    "`stream_options` of completions and chat completions": ChatCompletionStreamOptionsParam,
    "POST /v1/responses": response_create_params.ResponseCreateParamsBase,
    "POST /v1/responses/input_tokens": openai.types.responses.InputTokenCountParams,
    "`reasoning` of responses": openai.types.shared_params.Reasoning,
    "`text` of responses": openai.types.responses.ResponseTextConfigParam,
    "`prompt_cache_options` of responses": response_create_params.PromptCacheOptions,
    "POST /v1/messages": message_create_params.MessageCreateParamsBase,
    "POST /v1/messages/count_tokens": anthropic.types.MessageCountTokensParams,
    "`thinking` of messages": anthropic.types.ThinkingConfigEnabledParam,
    "`output_config` of messages": anthropic.types.OutputConfigParam,
    "POST /api/chat": ollama.Client.chat,
    "POST /api/generate": ollama.Client.generate,
    "`options` of Ollama's requests": ollama.Options,
}
# Sent as headers, or the object that a method belongs to.
NOT_IN_BODIES = {"user_profile_id", "workspace_id", "self"}


@pytest.mark.parametrize("title", CLIENT_FIELDS)
def test_a_table_has_each_field_of_the_vendors_client(title: str) -> None:
    """Its types name what its server takes: a field that the table lacks would be refused as unknown."""
    kind: Any = CLIENT_FIELDS[title]
    sent = kind.__annotations__ if isinstance(kind, type) else inspect.signature(kind).parameters
    (table,) = (table for table in FIELD_TABLES if table.title == title)
    known = {field.name for field in table.fields}
    assert len(sent) > 1
    assert set(sent) - NOT_IN_BODIES <= known


def test_the_docs_are_written_from_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    script = runpy.run_path(str(ROOT / "docs/write_server_fields.py"))
    assert script["page"](FIELD_TABLES) == script["PAGE"].read_text(encoding="utf-8")


class Body(msgspec.Struct):
    size: int | None = None
    names: list[str] = []


class Outer(msgspec.Struct):
    more: Body | None = None


TABLE = FieldTable(
    "a table",
    Body,
    (
        *honoured(size="a size", names="names"),
        *without_effect(colour="there is none"),
        *not_served(shape="send the size"),
    ),
)


@pytest.mark.parametrize(
    ("data", "message", "param"),
    [
        (b'{"shape": 1}', "shape: is not served; send the size", "shape"),
        (b'{"sise": 1}', "'sise' is not a field of this request; did you mean 'size'?", "sise"),
        (b'{"size": "1"}', "size: Expected `int | null`, got `str`", "size"),
        (b'{"names": ["a", 1]}', "names[1]: Expected `str`, got `int`", "names[1]"),
        (b"[1]", "body: Expected `object`, got `array`", None),
        (b"null", "body: Expected `object`, got `null`", None),
        (b"", "the body is not JSON", None),
        (b'{"size": NaN}', "the body is not JSON", None),
        (b'{"size": 1', "the body is not JSON", None),
        (b'{"\xff": 1}', "the body is not JSON", None),
        (b'{"size": 1} {}', "the body is not JSON", None),
        (b'{"names": ["\\ud800"]}', "the body is not JSON", None),
        (b'{"size": ' + b"[" * 100_000, "the body is not JSON", None),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(
    data: bytes, message: str, param: str | None
) -> None:
    with pytest.raises(ApiError) as refused:
        TABLE.decode(data, [])
    assert message in refused.value.message
    assert (refused.value.status, refused.value.param) == (400, param)


def test_what_has_no_effect_is_said() -> None:
    warnings = Warnings()
    body = TABLE.decode(b'{"size": 2, "colour": "red", "shape": null, "other": []}', warnings)
    assert (body.size, warnings) == (2, ["colour: has no effect: there is none"])


@pytest.mark.parametrize(
    ("unknown", "data", "outcome"),
    [
        (
            Treatment.REFUSED,
            b'{"more": {"colour": 1}}',
            ["more.colour: has no effect: there is none"],
        ),
        (Treatment.REFUSED, b'{"more": {"shape": 1}}', "more.shape: is not served; send the size"),
        (Treatment.REFUSED, b'{"more": {"sise": 1}}', "'more.sise' is not a field of this request"),
        (Treatment.WITHOUT_EFFECT, b'{"more": {"x": 1, "size": 2}}', ["more.x: has no effect"]),
        (Treatment.REFUSED, b'{"more": null}', []),
        (Treatment.REFUSED, b'{"more": {"shape": null}}', []),
        (Treatment.REFUSED, b'{"more": 1}', "more: Expected `object | null`, got `int`"),
    ],
)
def test_the_fields_of_an_object_are_treated_like_those_of_a_body(
    unknown: Treatment, data: bytes, outcome: list[str] | str
) -> None:
    inner = FieldTable("an object", Body, TABLE.fields, unknown)
    table = FieldTable("a table", Outer, honoured(more="an object"), objects={"more": inner})
    warnings = Warnings()
    if isinstance(outcome, str):
        with pytest.raises(ApiError) as refused:
            table.decode(data, warnings)
        assert outcome in refused.value.message
    else:
        table.decode(data, warnings)
        assert len(warnings) == len(outcome)
        assert all(map(str.startswith, warnings, outcome))


@pytest.mark.parametrize("table", [COMPARE_FIELDS, LOAD_FIELDS, FORK_FIELDS])
def test_the_bounds_of_numbers_are_those_of_the_docs(table: FieldTable[Any]) -> None:
    required = {"prompt": "", "req": "", "position": 1, "token_id": 1}
    for field in table.fields:
        bounds = re.search(r"(\d+)\.\.(\d+)$", field.note)
        is_number = isinstance(getattr(msgspec.convert(required, table.body), field.name), int)
        if bounds is None:
            assert not is_number or field.name in {*required, "seed", "ignore_eos"}
            continue
        low, high = map(int, bounds.groups())
        for value in (low - 1, low, high, high + 1):
            body = msgspec.convert({**required, field.name: value}, table.body)
            if low <= value <= high:
                body.check()
                continue
            with pytest.raises(ApiError, match=f"{field.name}={value}: must be in {low}..{high}"):
                body.check()


@pytest.mark.parametrize("table", FIELD_TABLES, ids=lambda table: table.title)
def test_every_object_of_a_body_has_a_table(table: FieldTable[Any]) -> None:
    """Otherwise msgspec would drop its unknown fields without a word."""
    objects = {
        field.encode_name
        for field in msgspec.structs.fields(table.body)
        if any(
            isinstance(kind, type) and issubclass(kind, msgspec.Struct)
            for kind in _kinds(field.type)
        )
    }
    assert objects == set(table.objects)
    assert all(inner in FIELD_TABLES for inner in table.objects.values())


def _kinds(annotation: Any) -> tuple[Any, ...]:
    return typing.get_args(annotation) or (annotation,)


def test_keys_that_are_read_without_a_table_are_said_once() -> None:
    warnings = Warnings()
    for _ in range(2):
        warn_of_unknown_keys(
            {"a": 1, "b": 2, "c": None, "d": False, "e": {}}, {"a"}, "tools", warnings
        )
    assert warnings == ["tools: b has no effect"]


def test_warnings_stay_few_whatever_a_client_sends() -> None:
    """60,000 unknown keys in a message stopped the server for 25 s: each was looked for among all earlier ones."""
    warnings = Warnings()
    warn_of_unknown_keys(dict.fromkeys(map(str, range(60_000)), 1), (), "messages", warnings)
    assert len(warnings) == 32 + 1
    assert warnings[-1] == "59968 more fields have no effect"
    warnings = Warnings()
    warnings.append("a" * 257)
    assert warnings == ["a" * 256]


@pytest.mark.parametrize(
    ("data", "status", "message"),
    [
        (b'{"sizes": [%b1]}' % (b"1," * ((1 << 20) + 1)), 413, "at most 1048576 times"),
        (
            b"{%b}" % b",".join(b'"a%d":1' % i for i in range(1025)),
            400,
            "1025 fields; at most 1024",
        ),
        (b"{%b}" % b",".join(b'"a%d":1' % i for i in range(1024)), 400, "'a0' is not a field"),
        (b'{"sizes": %b1%b}' % (b"[" * 130, b"]" * 130), 400, "sizes: nested too deeply"),
        (b'{"sizes": %b1%b}' % (b'{"a":' * 130, b"}" * 130), 400, "sizes: nested too deeply"),
        (b'{"sizes": %b1%b}' % (b"[" * 100_000, b"]" * 100_000), 400, "is not JSON"),
    ],
)
def test_values_and_levels_of_a_body_have_limits(data: bytes, status: int, message: str) -> None:
    class Sizes(msgspec.Struct):
        sizes: Any = None

    table = FieldTable("a table", Sizes, honoured(sizes="any"))
    table.decode(b'{"sizes": %b1%b}' % (b"[" * 128, b"]" * 128), Warnings())
    for mark, most in {b",": 1 << 20, b'"': 1 << 19, b"{": 1 << 17, b"[": 1 << 17}.items():
        check_counts(mark * most)
        with pytest.raises(ApiError, match=f"at most {most} times") as too_large:
            check_counts(mark * (most + 1))
        assert too_large.value.code == "body_too_large"
    with pytest.raises(ApiError) as refused:
        table.decode(data, Warnings())
    assert refused.value.status == status
    assert message in refused.value.message
