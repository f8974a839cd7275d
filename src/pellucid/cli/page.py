"""`pellucid page`: shows a recording on the live page, without an engine; writes both as a folder."""

import tempfile
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from pellucid.cli.output.terminal import note
from pellucid.cli.parsing.panels import OTHERS, SERVER, argument

EXPORT = "export"


def page(
    recording: str | None = argument(
        "RECORDING", "A recording to show, or the word export. Left out: the bundled demonstration."
    ),
    target: Path | None = argument(
        "DIR|FILE.html", "With export: the folder to write, or the one file."
    ),
    *,
    trace: Path | None = OTHERS.option(
        "FILE",
        "With export: the recording that the page shows.",
        show_default="the bundled demonstration",
    ),
    port: int = SERVER.option("PORT", "Port on this machine; 0 takes a free one.", default=8001),
) -> None:
    """Show a recording on the live page.

    Serves the page with a recording at http://127.0.0.1 until Ctrl-C; no model is loaded. pellucid page
    export DIR writes the page and a recording as a folder, for any web server; pellucid page export FILE.html
    as one file, which a browser opens from a disk too. pellucid serve shows the page of a running engine.
    """
    from pellucid.observing.page_bundle import export_file
    from pellucid.observing.page_export import export_page

    if recording == EXPORT:
        if target is None:
            raise ValueError(
                "page export: needs a folder or a file, as in pellucid page export run.html"
            )
        if target.suffix == ".html":
            export_file(target, trace)
            note(f"{target}: open it in a browser, or send it to somebody")
            return
        index = export_page(target, trace)
        note(
            f"{index}: put {target} on a web server; a browser opens {target}.html from a disk,"
            " if you export to that"
        )
        return
    if target is not None or trace is not None:
        raise ValueError(f"{target or '--trace'}: needs pellucid page export")
    if not 0 <= port < 2**16:
        raise ValueError(f"--port {port}: must be in 0..65535")
    with tempfile.TemporaryDirectory() as folder:
        export_page(Path(folder), None if recording is None else Path(recording))
        handler = partial(_Quiet, directory=folder)
        with ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
            note(f"{recording or 'the demonstration'} at http://127.0.0.1:{server.server_port}/")
            with suppress(KeyboardInterrupt):  # how it ends
                server.serve_forever()


class _Quiet(SimpleHTTPRequestHandler):
    """Files of a folder, as they are: a compressed recording is the page's to unpack."""

    extensions_map = {  # noqa: RUF012
        ".css": "text/css",
        ".gz": "application/gzip",
        ".html": "text/html; charset=utf-8",
        ".js": "text/javascript",
        ".mjs": "text/javascript",
        ".svg": "image/svg+xml",
        "": "application/octet-stream",
    }

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass
