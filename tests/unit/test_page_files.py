"""The files of the live page: vendored libraries as published, security policy, size, nothing from elsewhere."""

import base64
import gzip
import hashlib
import json
import re
from os.path import normpath

from pellucid.observing.page_files import WEB_FOLDER, page_files, security_policy

# Bytes of all files but recordings, which are data: gzipped together, as a folder is sent, and each alone, as a
# server sends them. docs/LOG.md says what less would need.
# Of these, 163 kB are the libraries that Chat loads, 76 of them with its first formula.
MAX_TOGETHER = 355_000
MAX_ALONE = 394_000
MAX_FIRST_VIEW = 90_100
FIRST_VIEW = {
    "index.html",
    "styles.css",
    "theme.js",
    "app.js",
    "state/worker.js",
    "views/generate.js",
}
MAX_RECORDINGS = 174_000  # of these, 130 kB are what a page without an engine replays
OWN_SCRIPTS = [path for path in sorted(WEB_FOLDER.rglob("*.js")) if "vendor" not in path.parts]


def test_vendored_files_are_as_published() -> None:
    table = (WEB_FOLDER / "vendor/README.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| (\S+\.\w+) \| \S+ \| [\d.]+ \| \S+ \| \S+ \| ([0-9a-f]{64}) \|$", table, re.MULTILINE
    )
    listed = dict(rows)
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (WEB_FOLDER / "vendor").iterdir()
        if path.name != "README.md"
    }
    assert found == listed


def test_all_files_are_small() -> None:
    files = {name: file.body for name, file in page_files().files.items()}
    recordings = [name for name in files if name.startswith("traces/")]
    assert sum(len(gzip.compress(files.pop(name), 9)) for name in recordings) <= MAX_RECORDINGS
    assert len(gzip.compress(b"".join(files.values()), 9)) <= MAX_TOGETHER
    sizes = {name: len(gzip.compress(body, 9)) for name, body in files.items()}
    assert sum(sizes.values()) <= MAX_ALONE, sizes
    first = {name: sizes[name] for name in with_imports(files, FIRST_VIEW)}
    assert sum(first.values()) <= MAX_FIRST_VIEW, first


def with_imports(files: dict[str, bytes], names: set[str]) -> set[str]:
    """These files, and all that a browser loads with them."""
    index = files["index.html"].decode()
    libraries = json.loads(re.findall(r'"importmap">(.*?)</script>', index, re.DOTALL)[0])[
        "imports"
    ]
    found, new = set(), names
    while new:
        found |= new
        paths = {
            (name, libraries.get(path, path))
            for name in new
            for path in re.findall(
                r'(?:from|^import) *"([^"]+)"', files[name].decode(), re.MULTILINE
            )
        }
        new = {
            normpath(path if path in libraries.values() else f"{name}/../{path}")
            for name, path in paths
        } - found
    return found


def test_the_policy_allows_the_import_map_and_no_other_inline_script() -> None:
    index = page_files().index("/page/abc/")
    inline = re.findall(r"<script(?P<kind>[^>]*)>(?P<text>[^<]+)</script>", index)
    assert [kind for kind, _ in inline] == [' type="importmap"']
    digest = base64.b64encode(hashlib.sha256(inline[0][1].encode()).digest()).decode()
    policy = security_policy(index)
    assert f"'sha256-{digest}'" in policy
    assert "unsafe" not in policy and "frame-ancestors 'none'" in policy
    assert "require-trusted-types-for 'script'" in policy


def test_the_index_names_files_that_are_there() -> None:
    files = page_files()
    index = files.index("/page/abc/")
    imports = json.loads(re.findall(r'"importmap">(.*?)</script>', index, re.DOTALL)[0])["imports"]
    paths = re.findall(r'(?:src|href)="(/[^"]*)"', index) + list(imports.values())
    assert len(paths) >= 8
    assert {path.removeprefix("/page/abc/") for path in paths} <= files.files.keys()


def test_scripts_say_what_they_are_and_load_nothing_from_elsewhere() -> None:
    for path in OWN_SCRIPTS:
        text = path.read_text(encoding="utf-8")
        assert re.match(r"(// @ts-check\n)?// \S", text), path
        assert not re.search(
            r"""(from|import\(?|fetch\(|src=|href=)\s*["'`](https?:)?//""", text
        ), path
        assert "innerHTML" not in text, path
