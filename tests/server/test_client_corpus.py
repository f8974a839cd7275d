"""Requests as well-known clients send them, on the chat templates of well-known models.

A file of `corpus` has the requests of one client, with what the reply warns about and what the prompt shows. A warning
that ends with a question mark depends on the model. The text file beside it has the whole replies of one model; the
number before a frame is that of its values, of which those stand there that the reply did not have before.
UPDATE_GOLDEN=1 pytest tests/server/test_client_corpus.py writes it.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pellucid.async_engine import AsyncLLMEngine
from pellucid.inputs.prompts import ChatPrompt
from support.chat_templates import FAMILIES
from support.golden_files import compare
from support.http_server import HttpReply, RunningServer, running_server
from support.replies import frames, short
from support.scripted_model import scripted_engine

pytest.importorskip("llguidance")

CLIENTS = {
    file: json.loads(file.read_text(encoding="utf-8"))["requests"]
    for file in sorted(Path(__file__).with_name("corpus").glob("*.json"))
}
CORPUS = {
    f"{file.stem}: {request['name']}": request
    for file, requests in CLIENTS.items()
    for request in requests
}
# As Qwen 3.5 answers a prompt that begins its reasoning
ANSWER = """\
I look.
</think>

It is:
<tool_call>
<function=weather>
<parameter=city>
Lima
</parameter>
</function>
</tool_call>"""


@pytest.fixture(scope="module", params=["qwen3.5", "harmony", "gemma4", "llama", "mistral small"])
def server(request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    engine = scripted_engine("Done.", 4096, FAMILIES[request.param], enable_prefix_caching=True)
    with running_server(engine) as running:
        yield running
        running.wait_until_idle()


@pytest.mark.parametrize("name", CORPUS)
def test_a_client_is_answered(
    server: RunningServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = CORPUS[name]
    prompts: list[Any] = []
    encode = AsyncLLMEngine.encode
    monkeypatch.setattr(
        AsyncLLMEngine,
        "encode",
        lambda engine, prompt: prompts.append(prompt) or encode(engine, prompt),
    )
    reply = server.post(request["path"], request["body"])
    assert reply.status == 200, reply.body
    assert not has_failed(reply)
    warned = json.loads(reply.headers.get("x-pellucid-warnings", "[]"))
    for line in warned:
        assert any(line.startswith(text.rstrip("?")) for text in request["warned"]), line
    for text in request["warned"]:
        assert text.endswith("?") or any(line.startswith(text) for line in warned), (text, warned)
    if request["shows"]:
        (prompt,) = prompts
        assert isinstance(prompt, ChatPrompt)
        written = server.engine.tokenizer.render_chat(prompt)
        assert [text for text in request["shows"] if text not in written] == []


@pytest.fixture(scope="module")
def reasoner() -> Iterator[RunningServer]:
    with running_server(
        scripted_engine(ANSWER, 2560, FAMILIES["qwen3.5"]), keepalive_seconds=3600
    ) as running:
        running.send_each_step()
        yield running
        running.wait_until_idle()


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.stem)
def test_the_whole_replies(reasoner: RunningServer, client: Path) -> None:
    lines: list[str] = []
    for request in CLIENTS[client]:
        lines.append(f"# {request['name']}")
        seen: dict[str, Any] = {}
        for frame in frames(reasoner.post(request["path"], request["body"])):
            new = [
                f"{path}={short(value)}"
                for path, value in frame.items()
                if (path, value) not in seen.items()
            ]
            lines.append(f"{len(frame)} {', '.join(new)}")
            seen |= frame
    compare(client.with_suffix(".replies.txt"), lines)


def has_failed(reply: HttpReply) -> bool:
    """Whether a stream ended with an error."""
    if not reply.headers["content-type"].startswith("text/event-stream"):
        return b'"error":{' in reply.body
    events = [event for event in reply.events if event != "[DONE]"]
    return any("failed" in event.get("type", "") or event.get("error") for event in events)
