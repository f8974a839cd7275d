"""/openapi.json has every route, and the bodies that the tables of fields define."""

import json
import re
from typing import Any

import jsonschema
import pytest

from pellucid.server.field_tables import FIELD_TABLES
from pellucid.server.fields import Treatment
from support.http_server import RunningServer


@pytest.fixture(scope="module")
def document(server: RunningServer) -> Any:
    reply = server.get("/openapi.json")
    assert reply.status == 200
    return reply.json


def body_schema(document: Any, path: str) -> dict[str, Any]:
    operation = document["paths"][path]["post"]
    assert operation["requestBody"]["required"]
    (content,) = operation["requestBody"]["content"].values()
    return {**content["schema"], "components": document["components"]}


def test_it_has_every_route_and_every_reference_leads_somewhere(document: Any) -> None:
    assert document["openapi"] == "3.1.0" and document["info"]["title"] == "pellucid"
    assert {"/v1/chat/completions", "/v1/models/{model}", "/health"} <= document["paths"].keys()
    ids = [
        operation["operationId"]
        for path in document["paths"].values()
        for operation in path.values()
    ]
    assert len(set(ids)) == len(ids)
    schemas = document["components"]["schemas"]
    references = set(re.findall(r'"\$ref": "(.*?)"', json.dumps(document)))
    assert references and references <= {f"#/components/schemas/{name}" for name in schemas}
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize(
    "table",
    [table for table in FIELD_TABLES if table.title.startswith("POST ")],
    ids=lambda table: table.title,
)
def test_a_body_has_the_fields_of_its_table(document: Any, table: Any) -> None:
    reference = body_schema(document, table.title.removeprefix("POST "))["$ref"]
    schema = document["components"]["schemas"][reference.rpartition("/")[2]]
    listed = {field.name for field in table.fields if field.treatment is not Treatment.REFUSED}
    assert schema["properties"].keys() == listed
    assert all(each["description"] for each in schema["properties"].values())
    assert schema["additionalProperties"] is (table.unknown is not Treatment.REFUSED)


def test_it_tells_good_bodies_from_bad_ones(document: Any) -> None:
    chat = jsonschema.Draft202012Validator(body_schema(document, "/v1/chat/completions"))
    good = {"messages": [], "stop": ["a"], "stream_options": {"include_usage": True}, "user": "x"}
    assert chat.is_valid(good)
    for wrong in ({"stop": 1}, {"guided_choice": ["a"]}, {"unheard_of": 1}):
        assert not chat.is_valid({**good, **wrong})
    assert not chat.is_valid({})
