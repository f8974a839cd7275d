"""Writes /openapi.json: the routes of the server, and the bodies of requests from the tables of their fields."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from pellucid.server.endpoint import Call, Reply
from pellucid.server.fields import FieldTable, Treatment
from pellucid.server.served_model import FINGERPRINT


class OpenApi:
    """The handler of the route.

    Args:
        routes: method and path of each.
        tables: of fields; their titles are method and path.
    """

    def __init__(
        self, routes: Iterable[tuple[str, str]], tables: Sequence[FieldTable[Any]]
    ) -> None:
        self._document = msgspec.json.encode(openapi_document(routes, tables))

    async def __call__(self, call: Call) -> Reply:
        return Reply(self._document)


def openapi_document(
    routes: Iterable[tuple[str, str]], tables: Sequence[FieldTable[Any]]
) -> dict[str, Any]:
    """The document in OpenAPI 3.1. Arguments as for `OpenApi`.

    It lists the fields that are honoured, and those that are accepted with a warning; a field that is refused
    is left out, and `additionalProperties` says whether fields that are not listed are refused as well.
    """
    by_title = {table.title: table for table in tables}
    bodies = [by_title[title].body for title in by_title]
    schemas, components = msgspec.json.schema_components(
        bodies, ref_template="#/components/schemas/{name}"
    )
    body_schemas = dict(zip(by_title, schemas, strict=True))
    for title, table in by_title.items():
        _describe(components[body_schemas[title]["$ref"].rpartition("/")[2]], table)
    paths: dict[str, Any] = {}
    for method, route in routes:
        path = route.replace(":path}", "}")
        operation: dict[str, Any] = {
            "operationId": f"{method} {path}",
            "responses": {
                "200": {"description": "the answer"},
                "4XX": {"description": "a refusal in the protocol's own shape"},
                "503": {"description": "the server cannot answer now"},
            },
        }
        names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
        if names:
            operation["parameters"] = [
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                for name in names
            ]
        if (schema := body_schemas.get(f"{method} {path}")) is not None:
            content = {"application/json": {"schema": schema}}
            operation["requestBody"] = {"required": True, "content": content}
        paths.setdefault(path, {})[method.lower()] = operation
    name, _, version = FINGERPRINT.rpartition("-")
    return {
        "openapi": "3.1.0",
        "info": {"title": name or FINGERPRINT, "version": version},
        "paths": paths,
        "components": {"schemas": components},
    }


def _describe(schema: dict[str, Any], table: FieldTable[Any]) -> None:
    """Adds to a body's schema what its table says."""
    properties = schema["properties"]
    for field in table.fields:
        if field.treatment is Treatment.HONOURED:
            given = properties[field.name]
            if "$ref" in given:
                given = {"allOf": [given]}
            properties[field.name] = {**given, "description": field.note}
        elif field.treatment is Treatment.WITHOUT_EFFECT:
            properties[field.name] = {"description": f"has no effect: {field.note}"}
    schema["additionalProperties"] = table.unknown is not Treatment.REFUSED
