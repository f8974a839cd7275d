"""/docs: every route and field of /openapi.json in a page that loads nothing from elsewhere; the examples run."""

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from pellucid.server.api_reference import type_name
from support.http_server import RunningServer


class Page(HTMLParser):
    """What a page loads and links to, its ids, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.tags: set[str] = set()
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.tags.add(tag)
        self.links += [named["href"] or ""] if tag == "a" else []
        self.loaded += [named[key] or "" for key in ("src", "href") if key in named and tag != "a"]
        self.ids += [named["id"] or ""] if "id" in named else []
        assert not any(name.startswith("on") or name == "style" for name in named)

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def document(server: RunningServer) -> Any:
    return server.get("/openapi.json").json


def test_the_page_has_every_route_and_field(server: RunningServer, document: Any) -> None:
    page = Page(server.get("/docs").body.decode())
    for path, operations in document["paths"].items():
        assert path in page.text
        for method, operation in operations.items():
            assert operation["summary"], f"the handler of {method} {path} has no docstring"
            assert operation["summary"] in page.text
    for schema in document["components"]["schemas"].values():
        assert all(name in page.text for name in schema["properties"])
    assert len(page.ids) == len(set(page.ids))
    assert all(link[1:] in page.ids for link in page.links if link.startswith("#"))


def test_the_page_loads_nothing_from_elsewhere_and_runs_nothing(server: RunningServer) -> None:
    reply = server.get("/docs")
    page = Page(reply.body.decode())
    assert "script" not in page.tags
    for path in page.loaded:
        assert path.startswith("data:") or server.get(path).status == 200
    policy = reply.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'self' 'sha256-")
    assert len(reply.body) < 200_000


def test_the_examples_of_the_document_are_answered(server: RunningServer, document: Any) -> None:
    posts = {
        path: content["application/json"].get("example")
        for path, operations in document["paths"].items()
        for content in [operations.get("post", {}).get("requestBody", {}).get("content", {})]
        if content
    }
    own = {"/v1/page/fork", "/v1/load", "/v1/compare", "/api/show"}  # no text is sent to these
    assert {path for path, example in posts.items() if example is None} == own
    for path in posts.keys() - own:
        example = posts[path]
        reply = server.post(path, example)
        assert reply.status == 200, (path, reply.body)
        assert "x-pellucid-warnings" not in reply.headers, path


@pytest.mark.parametrize(
    ("schema", "name"),
    [
        ({"type": "integer"}, "integer"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string"),
        (
            {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
            "string or list of string",
        ),
        ({"$ref": "#/components/schemas/Options"}, "object"),
        ({"enum": ["text", None]}, '"text" or null'),
        ({}, "any"),
    ],
)
def test_types_in_a_few_words(schema: Any, name: str) -> None:
    assert type_name(schema) == name


def test_what_comes_from_a_name_is_text(server: RunningServer) -> None:
    """The model's name stands in the examples."""
    assert re.search(r"&#34;model&#34;: &#34;tested&#34;", server.get("/docs").body.decode())
