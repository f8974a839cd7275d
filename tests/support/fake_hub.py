"""A Hugging Face hub on a local port: the part of its API that downloads of snapshots and of ranges of bytes use."""

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import urlparse

import pytest
from huggingface_hub import constants
from huggingface_hub.utils import tqdm  # type: ignore[attr-defined]

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class FakeHub:
    """One model repository. `error`, a status and the hub's code for it, answers every request. Each file is named
    by its SHA-256, as the hub names weights."""

    model: str
    files: Mapping[str, bytes]
    revisions: tuple[str, ...] = ("main",)
    error: tuple[int, str] | None = None
    breaks_off_after: int | None = None  # bytes of each range
    downloads: list[str] = field(default_factory=list)  # names of the files that were asked for
    num_sent: Counter[str] = field(default_factory=Counter)  # bytes of each file
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
            path = urlparse(self.path).path
            status, headers, body = _answer(hub, path)
            wanted = self.headers.get("Range")
            if status == 200 and wanted is not None:
                status, headers, body = _part(wanted, headers, body)
            if with_body and "/resolve/" in path:
                hub.num_sent[path.partition(f"/resolve/{COMMIT}/")[2]] += len(body)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if with_body:
                self.wfile.write(body if wanted is None else body[: hub.breaks_off_after])

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


def use_hub(monkeypatch: pytest.MonkeyPatch, endpoint: str, cache: Path) -> None:
    """Makes huggingface_hub ask `endpoint`, and keep what it gets in `cache`."""
    for name, value in {
        "ENDPOINT": endpoint,
        "HUGGINGFACE_CO_URL_TEMPLATE": endpoint + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_CACHE": str(cache),
        "HF_HUB_OFFLINE": False,
        "HF_HUB_DISABLE_XET": True,
    }.items():
        monkeypatch.setattr(constants, name, value)
    # A module that may have been imported before has a copy of this constant.
    monkeypatch.setattr(sys.modules[tqdm.__module__], "HF_HUB_DISABLE_PROGRESS_BARS", True)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("HF_TOKEN", raising=False)


def _part(wanted: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
    """The answer to a request for a range of bytes."""
    first, end = wanted.removeprefix("bytes=").split("-")
    start = int(first)
    if start >= len(body):
        return 416, {"Content-Range": f"bytes */{len(body)}"}, b"there are fewer bytes"
    part = body[start : int(end) + 1] if end else body[start:]
    last = start + len(part) - 1
    return 206, {**headers, "Content-Range": f"bytes {start}-{last}/{len(body)}"}, part


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
    return 200, {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha256(data).hexdigest()}"'}, data
