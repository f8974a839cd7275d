"""Writes the live page as a folder for any web server, with a recorded trace in place of an engine."""

import shutil
from pathlib import Path

from pellucid.observing.event_recording import read_recording
from pellucid.observing.page_files import (
    DEMO_TRACE,
    NO_TRACE,
    PageFiles,
    page_files,
    recorded_head,
    security_policy,
)

TRACE = "trace.jsonl"  # in the folder; .gz behind it if the trace is compressed


def export_page(directory: Path, trace: Path | None, files: PageFiles | None = None) -> Path:
    """Writes the page's files and a trace.

    Args:
        directory: is made; must be empty or hold an earlier export.
        trace: a recording; None: the bundled demonstration.
        files: of the page; None: as they are installed.

    Returns:
        The page.

    Raises:
        ValueError: the directory holds other files, or the trace is no recording; the message names the line.
        OSError: a file cannot be read or written.
    """
    index = directory / "index.html"
    if directory.exists() and any(directory.iterdir()) and not _is_export(index):
        raise ValueError(f"{directory}: is not empty, and holds no page that was exported before")
    files = files or page_files()
    name = DEMO_TRACE
    if trace is not None:
        for _ in read_recording(trace):  # nothing is written for a file that is no recording
            pass
        name = TRACE + (".gz" if trace.suffix == ".gz" else "")
    directory.mkdir(parents=True, exist_ok=True)
    for path, file in files.files.items():
        if path != "index.html" and (trace is None or path != DEMO_TRACE):
            target = directory / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.body)
    if trace is not None:
        shutil.copyfile(trace, directory / name)
    source = files.index("./")
    # What framing the page is allowed can be said by a server's header alone.
    policy = "; ".join(
        part for part in security_policy(source).split("; ") if not part.startswith("frame-")
    )
    assert NO_TRACE in source
    index.write_text(source.replace(NO_TRACE, recorded_head(policy, name), 1), encoding="utf-8")
    return index


def _is_export(index: Path) -> bool:
    if not index.is_file():
        return False
    text = index.read_text(encoding="utf-8")
    return 'name="pellucid-trace"' in text and NO_TRACE not in text
