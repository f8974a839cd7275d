"""Writes /openapi.json: the routes of the server, and the bodies of requests from the tables of their fields."""

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from pellucid.server.endpoint import Call, Handler, Reply
from pellucid.server.fields import FieldTable, Treatment
from pellucid.server.served_model import FINGERPRINT

# Whose protocol a path belongs to: the first whose beginning fits
TAGS = (
    ("/v1/messages", "Anthropic"),
    ("/api/", "Ollama"),
    ("/v1/models", "OpenAI"),
    ("/v1/chat", "OpenAI"),
    ("/v1/completions", "OpenAI"),
    ("/v1/responses", "OpenAI"),
    ("/tokenize", "Text and tokens"),
    ("/detokenize", "Text and tokens"),
    ("/apply-template", "Text and tokens"),
    ("/props", "Text and tokens"),
    ("/", "pellucid"),
)


@dataclass(frozen=True)
class Operation:
    """A method of a route.

    Attributes:
        path: with the names of its parts in braces.
        handler: its docstring describes the operation; the first paragraph is the summary.
        needs_admin: whether the route needs an admin's key.
    """

    method: str
    path: str
    handler: Handler
    needs_admin: bool

    @property
    def description(self) -> str:
        call = self.handler if inspect.isroutine(self.handler) else type(self.handler).__call__
        return inspect.getdoc(call) or ""


class OpenApi:
    """The handler of the route.

    Args:
        operations: all operations of the server.
        tables: of fields; their titles are method and path.
        model: a name of the model, for examples.
    """

    def __init__(
        self, operations: Iterable[Operation], tables: Sequence[FieldTable[Any]], model: str
    ) -> None:
        self.document = openapi_document(operations, tables, model)
        self._body = msgspec.json.encode(self.document)

    async def __call__(self, call: Call) -> Reply:
        """This API for programs, in OpenAPI 3.1."""
        return Reply(self._body)


def openapi_document(
    operations: Iterable[Operation], tables: Sequence[FieldTable[Any]], model: str
) -> dict[str, Any]:
    """The document in OpenAPI 3.1. Arguments as for `OpenApi`.

    It lists the fields that are honoured, and those that are accepted with a warning; a field that is refused
    is left out, and `additionalProperties` says whether fields that are not listed are refused as well.
    """
    by_title = {table.title: table for table in tables}
    schemas, components = msgspec.json.schema_components(
        [table.body for table in tables], ref_template="#/components/schemas/{name}"
    )
    body_schemas = dict(zip(by_title, schemas, strict=True))
    for title, table in by_title.items():
        _describe(components[body_schemas[title]["$ref"].rpartition("/")[2]], table)
    paths: dict[str, Any] = {}
    for each in operations:
        method, path = each.method, each.path.replace(":path}", "}")
        summary, _, more = each.description.partition("\n\n")
        operation: dict[str, Any] = {
            "operationId": f"{method} {path}",
            "summary": " ".join(summary.split()),
            "description": more,
            "tags": [next(tag for start, tag in TAGS if path.startswith(start))],
            "x-needs-admin": each.needs_admin,
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
            table = by_title[f"{method} {path}"]
            content: dict[str, Any] = {"application/json": {"schema": schema}}
            if table.example:
                content["application/json"]["example"] = {"model": model, **table.example}
            operation["requestBody"] = {"required": True, "content": content}
        paths.setdefault(path, {})[method.lower()] = operation
    name, _, version = FINGERPRINT.rpartition("-")
    return {
        "openapi": "3.1.0",
        "info": {"title": name, "version": version},
        "paths": paths,
        "components": {"schemas": components},
    }


def _describe(schema: dict[str, Any], table: FieldTable[Any]) -> None:
    """Adds the notes of a table of fields to the schema of a body."""
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
