"""The live page is served to browsers, without a key; Ollama's clients still get what they expect."""

import re

from pellucid.observing.page_files import page_files
from support.api_keys import KEYS, USER_KEY
from support.fake_model import fake_engine
from support.http_server import RunningServer, running_server

HTML = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


def test_browsers_get_the_page_and_ollamas_clients_their_text(server: RunningServer) -> None:
    page = server.call("GET", "/", headers=HTML)
    assert page.status == 200 and page.headers["content-type"].startswith("text/html")
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    assert server.call("GET", "/page").body == page.body
    for accept in ({}, {"accept": "*/*"}, {"accept": "application/json"}):
        assert server.call("GET", "/", headers=accept).body == b"Ollama is running"


def test_files_have_paths_that_a_browser_may_keep(server: RunningServer) -> None:
    page = server.call("GET", "/", headers=HTML)
    again = server.call("GET", "/", headers={**HTML, "if-none-match": page.headers["etag"]})
    assert again.status == 304 and again.body == b""
    path = re.findall(r'src="(/page/[^"]*app\.js)"', page.body.decode())[0]
    script = server.call("GET", path)
    assert script.status == 200 and "immutable" in script.headers["cache-control"]
    assert script.headers["content-type"].startswith("text/javascript")
    assert server.call("GET", path, headers={"if-none-match": script.headers["etag"]}).status == 304


def test_the_page_needs_no_key_and_what_it_asks_for_does() -> None:
    with running_server(fake_engine(), api_keys=KEYS) as server:
        assert server.call("GET", "/", headers=HTML).status == 200
        assert server.call("GET", f"/page/{page_files().version}/app.js").status == 200
        assert server.call("GET", "/v1/events").status == 401
        assert server.get("/v1/kv", x_api_key=USER_KEY).status == 403
