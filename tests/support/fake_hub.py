"""A Hugging Face hub on a local port: the part of its API that a snapshot download uses."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import urlparse

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class FakeHub:
    """One model repository. `error`, a status and the hub's code for it, answers every request."""

    model: str
    files: Mapping[str, bytes]
    revisions: tuple[str, ...] = ("main",)
    error: tuple[int, str] | None = None
    downloads: list[str] = field(default_factory=list)  # names of the files that were asked for
    url: str = ""


@contextmanager
def serve(hub: FakeHub) -> Iterator[FakeHub]:
    """Runs `hub`, which knows its address inside the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._respond(with_body=False)

        def do_GET(self) -> None:
            self._respond(with_body=True)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base's name)
            pass

        def _respond(self, with_body: bool) -> None:
            status, headers, body = _answer(hub, urlparse(self.path).path)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if with_body:
                self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _answer(hub: FakeHub, path: str) -> tuple[int, dict[str, str], bytes]:
    if hub.error is not None:
        status, code = hub.error
        return status, {"X-Error-Code": code}, b"{}"
    api = f"/api/models/{hub.model}"
    if path.startswith(f"{api}/tree/"):
        tree = [
            {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
            for name, data in hub.files.items()
        ]
        return 200, {}, json.dumps(tree).encode()
    if path == api or path.startswith(f"{api}/revision/"):
        if path.rpartition("/revision/")[2] not in (api, COMMIT, *hub.revisions):
            return 404, {"X-Error-Code": "RevisionNotFound"}, b"{}"
        siblings = [{"rfilename": name} for name in hub.files]
        return 200, {}, json.dumps({"id": hub.model, "sha": COMMIT, "siblings": siblings}).encode()
    name = path.removeprefix(f"/{hub.model}/resolve/{COMMIT}/")
    if name not in hub.files:
        return 404, {"X-Error-Code": "RepoNotFound"}, b"{}"
    hub.downloads.append(name)
    data = hub.files[name]
    etag = hashlib.sha1(data).hexdigest()
    return 200, {"X-Repo-Commit": COMMIT, "ETag": f'"{etag}"'}, data
