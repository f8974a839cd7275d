"""How answers end in each protocol: cancelled, at the end of the context, and prompts beyond it."""

import threading
from collections.abc import Iterator
from typing import Any

import anthropic
import ollama
import openai
import pytest

from pellucid.outputs import CompletionDelta
from pellucid.server.streaming import TextChunks
from support.http_server import TIMEOUT, HttpReply, RunningServer, running_server
from support.scripted_model import scripted_engine
from support.step_gate import StepGate

QUESTION = [{"role": "user", "content": "What is 12 + 7?"}]
# Each token is one letter, so that the answer fills the context
ANSWER = "<think>Hm.</think>" + "I do not know. " * 200
ENDLESS: dict[str, Any] = {"ignore_eos": True}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "Once", "max_tokens": 1000, **ENDLESS},
    "/v1/chat/completions": {"messages": QUESTION, **ENDLESS},
    "/v1/responses": {"input": QUESTION},
    "/v1/messages": {"messages": QUESTION, "max_tokens": 1000},
}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server(scripted_engine(ANSWER, context_length=256)) as running:
        yield running
        running.wait_until_idle()


def last_of(reply: HttpReply, path: str) -> dict[str, Any]:
    """The ending as it stands in a stream or in a whole reply."""
    if reply.body.startswith(b"{"):
        found: dict[str, Any] = reply.json
    else:
        events = [event for event in reply.events if event != "[DONE]"]
        found = next(event for event in reversed(events) if event.get("type") != "message_stop")
    if path == "/v1/responses":
        return found
    return found["choices"][0] if "choices" in found else found.get("delta", found)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
def test_a_cancelled_answer(server: RunningServer, path: str, stream: bool) -> None:
    server.wait_until_idle()
    gate = StepGate(server.engine, num_steps=12)
    replies: list[HttpReply] = []
    body = {**BODIES[path], "stream": stream}
    thread = threading.Thread(target=lambda: replies.append(server.post(path, body)))
    thread.start()
    try:
        server.wait_until(lambda: gate._num_left == 0, "some steps")
        (request_id,) = server.service.under_way
        assert server.post(f"/v1/requests/{request_id}/cancel", {}).status == 200
    finally:
        gate.open()
        thread.join(TIMEOUT)
    (reply,) = replies
    ending = last_of(reply, path)
    if path == "/v1/responses":
        if stream:
            assert ending["type"] == "response.cancelled"
            ending = ending["response"]
        assert ending["status"] == "cancelled"
    elif path == "/v1/messages":
        assert ending["stop_reason"] == "pause_turn"
    else:
        assert (ending["finish_reason"], ending["stop_reason"]) == ("length", "cancelled")


@pytest.mark.parametrize("path", BODIES)
def test_all_but_the_first_and_last_words_of_a_text_are_put_into_a_template(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Encoding each frame anew takes a multiple of the time."""
    written: list[str] = []
    of = TextChunks.of

    def counted(chunks: TextChunks, delta: CompletionDelta) -> bytes:
        written.append(delta.text)
        return of(chunks, delta)

    monkeypatch.setattr(TextChunks, "of", counted)
    engine = scripted_engine("It is 19.", chat_template="{{ messages[0]['content'] }}")
    with running_server(engine) as server:
        server.send_each_step()
        fields = {**BODIES[path], "ignore_eos": False, "stream": True}
        assert server.post(path, fields).status == 200
    assert "".join(written) == " is 19."


def test_an_answer_that_fails_while_it_streams() -> None:
    with running_server(scripted_engine("It is 19.")) as server:
        decoder: Any = server.engine.model.decoder
        forward, third = decoder.forward, decoder.token_ids[2]

        def failing(batch: Any, kv_cache: Any) -> Any:
            logits = forward(batch, kv_cache)
            logits[logits[:, third] > 0] = float("nan")
            return logits

        decoder.forward = failing
        message = "the request failed: "
        with (
            ollama.Client(server.url) as client,
            pytest.raises(ollama.ResponseError, match=message),
        ):
            list(client.chat("tested", QUESTION, stream=True))
        with (
            anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as anthropics,
            pytest.raises(anthropic.APIStatusError, match=message) as caught,
        ):
            list(anthropics.messages.create(model="tested", stream=True, **BODIES["/v1/messages"]))
        error: Any = caught.value.body
        assert error["error"]["type"] == "api_error" and len(error["request_id"]) == 24
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as openais:
            last = list(openais.responses.create(input=QUESTION, model="tested", stream=True))[-1]
        assert last.type == "response.failed" and last.response.status == "failed"
        assert last.response.error is not None and last.response.error.message.startswith(message)
        assert last.response.error.code == "generation_failed"
        server.wait_until_idle()


def test_progress_is_sent_at_the_start_and_at_the_first_token(server: RunningServer) -> None:
    body = {"messages": QUESTION, "max_tokens": 2, "stream": True, "return_progress": True}
    events = server.post("/v1/chat/completions", body).events
    progress = [event["prompt_progress"] for event in events[:-1] if "prompt_progress" in event]
    assert progress and progress[-1]["processed"] == progress[-1]["total"]
    assert "prompt_progress" in events[0]
