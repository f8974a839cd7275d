"""Calls and their whole replies: all kinds of answers in each protocol, and what is refused.

A file of `whole_replies` begins with the text that its model answers, and settings of the engine. "= NAME" is followed
by what {NAME} stands for. A call stands after "# ", under it its status and the values of each frame. {ID} is the id of
the latest answer. UPDATE_GOLDEN=1 pytest tests/server/test_whole_replies.py writes the replies.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.golden_files import compare, shortened
from support.http_server import HttpReply, running_server
from support.replies import frames, short
from support.scripted_model import scripted_engine

pytest.importorskip("llguidance")
FILES = sorted(Path(__file__).with_name("whole_replies").glob("*.txt"))
FRAMED = ("application/json", "application/x-ndjson", "text/event-stream")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_whole_replies(file: Path) -> None:
    first, *others = file.read_text(encoding="utf-8").splitlines()
    lines, names = [first], {"ID": ""}
    with running_server(scripted_engine(**json.loads(first)), keepalive_seconds=3600) as server:
        server.send_each_step()
        for line in others:
            if line.startswith("= "):
                name, names[name] = line.removeprefix("= ").split(" ", 1)
                lines.append(line)
            if not line.startswith("# "):
                continue
            call = re.sub(r"\{([A-Z]+)\}", lambda found: names[found[1]], line.removeprefix("# "))
            method, path, *body = call.split(" ", 2)
            reply = server.call(method, path, body[0].encode() if body else None)
            server.wait_until_idle()
            lines += [line, *shown(path, reply)]
            found = re.search(rb"[0-9a-f]{24}", reply.body)
            if method == "POST" and reply.status == 200 and found is not None:
                names["ID"] = found[0].decode()
    compare(file, lines)


def shown(path: str, reply: HttpReply) -> Iterator[str]:
    kind = reply.headers.get("content-type", "")
    warned = shortened(reply.headers.get("x-pellucid-warnings", ""))
    yield f"{reply.status} {kind} {warned}".rstrip()
    if kind.startswith(FRAMED):
        for frame in frames(reply):
            yield ", ".join(f"{path}={short(value)}" for path, value in frame.items())
    elif path == "/metrics":
        text = reply.body.decode()
        bounds: defaultdict[str, list[str]] = defaultdict(list)
        for name, bound in re.findall(r"(\S+_bucket)\{.*le=\"(.*?)\"", text):
            bounds[name].append(bound)
        yield from (f"{name}: {shortened(' '.join(each))}" for name, each in bounds.items())
        text = re.sub(r"(?m)^(#.*|.*_(bucket|created)\{.*)\n", "", text)
        text = re.sub(r"[0-9a-f]{32,}", "ID", text)
        text = re.sub(r"(seconds(?:_sum|_without_step)?\{\S*) \S+", r"\1 DURATION", text)
        yield from text.splitlines()
    else:
        yield short(reply.body.decode())
