"""/docs: the document of /openapi.json as a page to read, without scripts and without anything from elsewhere."""

import base64
import hashlib
import json
import re
import shlex
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from pellucid.observing.page_files import PageFiles
from pellucid.server.endpoint import Call, Reply

_TEMPLATE = Path(__file__).with_suffix(".html")
_STYLE = Path(__file__).with_suffix(".css")


class ApiReference:
    """The handler of the route.

    Args:
        document: in OpenAPI.
        files: of the live page, whose stylesheet has the colours.
    """

    def __init__(self, document: Mapping[str, Any], files: PageFiles) -> None:
        self._document = document
        self._stylesheet = f"/page/{files.version}/styles.css"

    async def __call__(self, call: Call) -> Reply:
        """This page: the routes of this server."""
        return self._reply

    @cached_property
    def _reply(self) -> Reply:
        style = _STYLE.read_text(encoding="utf-8")
        page = reference_page(self._document, self._stylesheet, style)
        digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
        policy = (
            f"default-src 'none'; style-src 'self' 'sha256-{digest}'; img-src data:;"
            " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        headers = {
            "content-security-policy": policy,
            "cache-control": "no-cache",
            "referrer-policy": "no-referrer",
        }
        return Reply(page.encode(), 200, "text/html; charset=utf-8", headers)


def reference_page(document: Mapping[str, Any], stylesheet: str, style: str) -> str:
    """The page in HTML.

    Args:
        document: in OpenAPI.
        stylesheet: path of the one that has the colours.
        style: rules of this page's own.
    """
    from jinja2 import Environment, StrictUndefined  # only this page needs them
    from markupsafe import Markup

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True
    )
    environment.filters["lower"] = str.lower
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        title=document["info"]["title"],
        version=document["info"]["version"],
        stylesheet=stylesheet,
        style=Markup(style),  # rules have quotes and `>`
        groups=_groups(document),
    )


def _groups(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The operations by their first tag, in the order in which the tags come first."""
    schemas = document["components"]["schemas"]
    groups: dict[str, list[dict[str, Any]]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            content = operation.get("requestBody", {}).get("content", {})
            body = content.get("application/json", {})
            example = body.get("example")
            made = {
                "id": _anchor(f"{method}-{path}"),
                "method": method.upper(),
                "path": path,
                "summary": operation["summary"],
                "paragraphs": [
                    " ".join(text.split())
                    for text in operation["description"].split("\n\n")
                    if text
                ],
                "needs_admin": operation["x-needs-admin"],
                "example": example and _curl(path, example),
                "fields": list(_fields(body["schema"], schemas)) if body else [],
            }
            groups.setdefault(operation["tags"][0], []).append(made)
    return [
        {"id": _anchor(name), "name": name, "operations": operations}
        for name, operations in groups.items()
    ]


def _fields(reference: Mapping[str, Any], schemas: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    schema = schemas[reference["$ref"].rpartition("/")[2]]
    required = schema.get("required", ())
    for name, given in schema["properties"].items():
        yield {
            "name": name,
            "type": type_name(given),
            "note": given["description"],
            "required": name in required,
        }
        for part in (given, *given.get("anyOf", ()), *given.get("allOf", ())):
            if "$ref" in part:
                for inner in _fields(part, schemas):
                    yield {**inner, "name": f"{name}.{inner['name']}"}


def type_name(schema: Mapping[str, Any]) -> str:
    """A JSON schema's type in a few words; null is left out, since it means leaving the field out."""
    if "$ref" in schema:
        return "object"
    for key in ("anyOf", "allOf"):
        if key in schema:
            names = (type_name(each) for each in schema[key])
            return " or ".join(dict.fromkeys(name for name in names if name != "null"))
    if "enum" in schema:
        return " or ".join(map(json.dumps, schema["enum"]))
    kind = schema.get("type", "any")
    if isinstance(kind, list):
        return " or ".join(each for each in kind if each != "null")
    if kind == "array":
        return f"list of {type_name(schema.get('items') or {})}"
    return str(kind)


def _curl(path: str, example: Mapping[str, Any]) -> str:
    body = json.dumps(example, ensure_ascii=False)
    return (
        f"curl http://127.0.0.1:8000{path} -H 'content-type: application/json' \\\n"
        f"  -d {shlex.quote(body)}"
    )


def _anchor(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
