"""The files of the live page: index.html with versioned paths, media types, the security policy."""

import base64
import hashlib
import html
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

WEB_FOLDER = Path(__file__).parents[1] / "web"
MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".gz": "application/gzip",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
DEMO_TRACE = "traces/demo.jsonl.gz"  # below web/
# In index.html:
NO_TRACE = '<meta name="pellucid-trace" content="">'
IMPORT_MAP = re.compile(r'<script type="importmap">(.*?)</script>', re.DOTALL)


@dataclass(frozen=True)
class PageFile:
    """One file of the page.

    Attributes:
        etag: changes with the contents; with its quotes.
    """

    body: bytes
    media_type: str
    etag: str


@dataclass(frozen=True)
class PageFiles:
    """All files of the page, read once.

    Attributes:
        version: changes with any file. It is a part of the files' paths, so that a browser may keep them.
        files: by path below web/, with forward slashes; index.html is as it lies on disk.
    """

    version: str
    files: dict[str, PageFile]

    def index(self, base: str) -> str:
        """index.html with `base` before each path of a file ("./" in the source).

        Args:
            base: ends with a slash.
        """
        return self.files["index.html"].body.decode().replace('"./', f'"{base}')

    def with_bodies(self, bodies: Mapping[str, bytes]) -> "PageFiles":
        """The page with other contents of some of its files, by their paths."""
        changed = {path: _file(self.files[path].media_type, body) for path, body in bodies.items()}
        return replace(self, files=self.files | changed)


@cache
def page_files() -> PageFiles:
    """Reads the files of the page. Python files and notes for developers are left out."""
    files = {
        path.relative_to(WEB_FOLDER).as_posix(): _read(path)
        for path in sorted(WEB_FOLDER.rglob("*"))
        if path.suffix in MEDIA_TYPES
    }
    digest = hashlib.sha256("".join(f"{name}{files[name].etag}" for name in files).encode())
    return PageFiles(digest.hexdigest()[:12], files)


def security_policy(index: str) -> str:
    """The Content-Security-Policy of a page: nothing from other hosts, no script text, no framing.

    Args:
        index: index.html as it is sent; its import map, the only inline script, is allowed by its hash.
    """
    found = IMPORT_MAP.search(index)
    assert found is not None
    import_map = base64.b64encode(hashlib.sha256(found[1].encode()).digest()).decode()
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src 'self' 'sha256-{import_map}'",
            "style-src 'self'",
            "img-src 'self' data:",
            "connect-src 'self'",
            "worker-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types pellucid",
        )
    )


def recorded_head(policy: str, trace: str) -> str:
    """What stands in index.html in place of `NO_TRACE` without a server: the policy, and the recording to show."""
    return (
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">\n'
        f'<meta name="pellucid-trace" content="{html.escape(trace)}">'
    )


def _read(path: Path) -> PageFile:
    return _file(MEDIA_TYPES[path.suffix], path.read_bytes())


def _file(media_type: str, body: bytes) -> PageFile:
    etag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
    return PageFile(body, media_type, etag)
