"""Calls of routes besides those that client libraries know, right and wrong ones, and their whole replies.

`whole_replies.txt` has a call after each "# "; under it stand the status and the values of each frame. {ID} is the id
of the latest answer. UPDATE_GOLDEN=1 pytest tests/server/test_whole_replies.py writes the replies.
"""

import re
from collections import defaultdict
from pathlib import Path

import pytest

from support.golden_files import compare, shortened
from support.http_server import running_server
from support.replies import frames, short
from support.scripted_model import scripted_engine

pytest.importorskip("llguidance")
CALLS = Path(__file__).with_name("whole_replies.txt")


def test_whole_replies() -> None:
    lines, last_id = [], ""
    with running_server(
        scripted_engine("It is 19.", enable_prefix_caching=True, num_kv_blocks=256)
    ) as server:
        server.send_each_step()
        for line in CALLS.read_text(encoding="utf-8").splitlines():
            if not line.startswith("# "):
                continue
            method, path, *body = line.removeprefix("# ").split(" ", 2)
            data = body[0].replace("{ID}", last_id).encode() if body else None
            reply = server.call(method, path.replace("{ID}", last_id), data)
            server.wait_until_idle()
            kind = reply.headers.get("content-type", "")
            warned = reply.headers.get("x-pellucid-warnings", "")
            lines += [line, " ".join([str(reply.status), kind, shortened(warned)]).rstrip()]
            if kind.startswith(("application/json", "text/event-stream")):
                for frame in frames(reply):
                    lines.append(
                        ", ".join(f"{path}={short(value)}" for path, value in frame.items())
                    )
            elif path == "/metrics":
                bounds: defaultdict[str, list[str]] = defaultdict(list)
                for name, bound in re.findall(r"(\S+_bucket)\{.*le=\"(.*?)\"", reply.body.decode()):
                    bounds[name].append(bound)
                lines += [f"{name}: {shortened(' '.join(each))}" for name, each in bounds.items()]
                text = re.sub(r"(?m)^(#.*|.*_(bucket|created)\{.*)\n", "", reply.body.decode())
                text = re.sub(r"[0-9a-f]{32,}", "ID", text)
                lines += re.sub(
                    r"(seconds(?:_sum|_without_step)?\{\S*) \S+", r"\1 DURATION", text
                ).splitlines()
            else:
                lines.append(short(reply.body.decode()))
            found = re.search(rb"[0-9a-f]{24}", reply.body)
            if method == "POST" and reply.status == 200 and found is not None:
                last_id = found[0].decode()
    compare(CALLS, lines)
