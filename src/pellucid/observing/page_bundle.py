"""Writes the live page as one HTML file, which a browser opens from a disk as well: a browser loads no modules from
file:// addresses, so that modules, styles and the recording stand in the file, as data: addresses."""

import base64
import hashlib
import json
import posixpath
import re
from functools import partial
from pathlib import Path

from pellucid.observing.event_recording import read_recording
from pellucid.observing.page_files import (
    DEMO_TRACE,
    IMPORT_MAP,
    NO_TRACE,
    PageFiles,
    page_files,
    recorded_head,
)

_MODULE = '<script type="module" src="./app.js"></script>'
_NAMES = "pellucid/"  # before the path of a module, in the import map
_OF_ANSWERS = (
    "highlight.js",
    "katex",
)  # what shows code and formulas of Chat, which has answers beside a server alone
_WORKER = "state/worker.js"  # no import map holds in a worker
# Files that modules read.
_DATA = ("traces/lessons.json", "traces/first_run.json", "traces/answers.json.gz")
_RELATIVE = re.compile(r'(\bfrom\s*|\bimport\s*\(?\s*)(["`])(\.{1,2}/[^"`]+)\2')


def export_file(path: Path, trace: Path | None, files: PageFiles | None = None) -> None:
    """Writes the page and a trace as one file.

    Args:
        path: is replaced.
        trace: a recording; None: the bundled demonstration.
        files: of the page; None: as they are installed.

    Raises:
        ValueError: the trace is no recording; the message names the line.
        OSError: a file cannot be read or written.
    """
    files = files or page_files()
    if trace is None:
        name, recording = DEMO_TRACE, files.files[DEMO_TRACE].body
    else:
        for _ in read_recording(trace):  # nothing is written for a file that is no recording
            pass
        name, recording = trace.name, trace.read_bytes()
    path.write_text(_page(files, name, recording), encoding="utf-8")


def _page(files: PageFiles, trace: str, recording: bytes) -> str:
    """index.html with all that it names in it.

    Args:
        trace: name of the recording.
    """
    index = files.files["index.html"].body.decode()
    found = IMPORT_MAP.search(index)
    assert found is not None
    libraries = json.loads(found[1])["imports"]
    imports = {
        name: _address(files, path.removeprefix("./"))
        for name, path in libraries.items()
        if name not in _OF_ANSWERS
    }
    for path in files.files:
        if path.endswith(".js"):
            body = _RELATIVE.sub(partial(_named, path), _text(files, path))
            imports[_NAMES + path] = _data_address("text/javascript", body.encode())
    data = {path: _address(files, path) for path in _DATA}
    data[_WORKER] = _worker(files)
    data[trace] = _data_address("application/octet-stream", recording)
    scripts = {
        f'<script type="importmap">{found[1]}</script>': (
            '<script type="importmap">',
            json.dumps({"imports": imports}),
        ),
        '<script src="./theme.js"></script>': (
            "<script>",
            _text(files, "theme.js"),
        ),
        _MODULE: (
            '<script type="module">',
            f'import "{_NAMES}app.js";',
        ),
    }
    style, found_by = (
        _text(files, "styles.css"),
        f"globalThis.pellucidFiles = {_json_in_html(data)};",
    )
    policy = _policy([found_by, *(text for _, text in scripts.values())], style)
    parts = {
        NO_TRACE: recorded_head(policy, trace),
        '<link rel="stylesheet" href="./styles.css">': f"<style>{style}</style>",
    }
    parts |= {reference: f"{tag}{text}</script>" for reference, (tag, text) in scripts.items()}
    parts[_MODULE] = f"<script>{found_by}</script>{parts[_MODULE]}"
    for reference, part in parts.items():
        assert index.count(reference) == 1, reference
        index = index.replace(reference, part)
    assert '"./' not in index.replace(style, "")
    return index


def _json_in_html(value: object) -> str:
    """JSON that cannot end the script in which it stands, whatever a recording is called."""
    return json.dumps(value).replace("<", "\\u003c")


def _named(importer: str, match: re.Match[str]) -> str:
    """An import of a module by its name in the import map, in place of its path from the importer."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(importer), match[3]))
    return f"{match[1]}{match[2]}{_NAMES}{path}{match[2]}"


def _worker(files: PageFiles) -> str:
    """The address of the worker, whose imports are addresses too."""

    def addressed(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(_WORKER), match[3]))
        assert not _RELATIVE.search(_text(files, path)), f"{path} imports others"
        return f"{match[1]}{match[2]}{_address(files, path)}{match[2]}"

    body = _RELATIVE.sub(addressed, _text(files, _WORKER))
    return _data_address("text/javascript", body.encode())


def _text(files: PageFiles, path: str) -> str:
    return files.files[path].body.decode()


def _address(files: PageFiles, path: str) -> str:
    media_type = files.files[path].media_type.partition(";")[0]
    return _data_address(media_type, files.files[path].body)


def _data_address(media_type: str, body: bytes) -> str:
    return f"data:{media_type};base64,{base64.b64encode(body).decode()}"


def _policy(scripts: list[str], style: str) -> str:
    """The Content-Security-Policy: what stands in the file, and nothing from elsewhere."""

    def digest(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    return "; ".join(
        (
            "default-src 'none'",
            f"script-src data: {' '.join(map(digest, scripts))}",
            f"style-src {digest(style)}",
            "img-src data:",
            "connect-src data:",
            "worker-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types pellucid",
        )
    )
