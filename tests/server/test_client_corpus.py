"""Requests as well-known clients send them, on the chat templates of well-known models.

A file of `corpus` has the requests of one client, with what the reply warns about and what the prompt shows. A warning
that ends with a question mark depends on the model.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pellucid.async_engine import AsyncLLMEngine
from pellucid.prompts import ChatPrompt
from support.chat_templates import FAMILIES
from support.http_server import HttpReply, RunningServer, running_server
from support.scripted_model import scripted_engine

pytest.importorskip("llguidance")

CORPUS = {
    f"{file.stem}: {request['name']}": request
    for file in sorted(Path(__file__).with_name("corpus").glob("*.json"))
    for request in json.loads(file.read_text(encoding="utf-8"))["requests"]
}


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


def has_failed(reply: HttpReply) -> bool:
    """Whether a stream ended with an error."""
    if not reply.headers["content-type"].startswith("text/event-stream"):
        return b'"error":{' in reply.body
    events = [event for event in reply.events if event != "[DONE]"]
    return any("failed" in event.get("type", "") or event.get("error") for event in events)
