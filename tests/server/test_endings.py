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


def test_a_chat_that_its_limit_ends_says_so_with_its_last_token(server: RunningServer) -> None:
    body = {"messages": QUESTION, "max_tokens": 60}
    (whole,) = server.post("/v1/chat/completions", body).json["choices"]
    *frames, _ = server.post("/v1/chat/completions", {**body, "stream": True}).events
    parts = [frame["choices"][0] for frame in frames]
    texts = [part["delta"].get("content", "") for part in parts]
    assert "".join(texts) == whole["message"]["content"]
    assert parts[-1]["finish_reason"] == whole["finish_reason"] == "length" and texts[-1]


@pytest.mark.parametrize("stream", [False, True])
def test_a_full_context_ends_a_message_in_anthropics_words(
    server: RunningServer, stream: bool
) -> None:
    body = {"messages": QUESTION, "max_tokens": 1000, "stream": stream}
    full = server.post("/v1/messages", body)
    assert last_of(full, "/v1/messages")["stop_reason"] == "model_context_window_exceeded"
    limited = server.post("/v1/messages", {**body, "max_tokens": 3})
    assert last_of(limited, "/v1/messages")["stop_reason"] == "max_tokens"


@pytest.mark.parametrize(
    ("path", "fields", "limit"),
    [
        ("/v1/completions", {"prompt": [[5] * 3, [5] * 56]}, "max_tokens=201: at most 200 tokens"),
        ("/v1/messages", {"messages": QUESTION}, "max_tokens=1000: at most "),
        ("/v1/responses", {"input": QUESTION}, "max_output_tokens=1000: at most "),
        ("/api/chat", {"messages": QUESTION}, "options.num_predict=1000: at most "),
    ],
)
def test_a_limit_that_the_context_does_not_hold_is_said(
    server: RunningServer, path: str, fields: dict[str, Any], limit: str
) -> None:
    name, number = limit.split(":")[0].split("=")
    for wanted in (int(number), 200):
        given: Any = {name: wanted}
        if name.startswith("options"):
            given = {"model": "tested", "stream": False, "options": {"num_predict": wanted}}
        warnings = server.post(path, {**fields, **given}).headers.get("x-pellucid-warnings", "")
        assert (limit in warnings) is (wanted != 200)
        assert ("fit into the context behind the prompt" in warnings) is (wanted != 200)


def test_thinking_has_a_signature(server: RunningServer) -> None:
    """Clients send thinking without a signature never back."""
    body = {"messages": QUESTION, "max_tokens": 100}
    (thinking, *_) = server.post("/v1/messages", body).json["content"]
    events = server.post("/v1/messages", {**body, "stream": True}).events
    first = [event for event in events if event.get("index") == 0]
    kinds = [event.get("delta", event)["type"] for event in first]
    assert kinds[0] == "content_block_start" and first[0]["content_block"]["signature"] == ""
    assert kinds[-2:] == ["signature_delta", "content_block_stop"]
    assert first[-2]["delta"]["signature"] == thinking["signature"] != ""
    again = {
        **body,
        "messages": [*QUESTION, {"role": "assistant", "content": [thinking]}, *QUESTION],
    }
    assert server.post("/v1/messages", again).status == 200


def test_a_prompt_beyond_the_context_in_llama_cpps_words(server: RunningServer) -> None:
    text = "word " * 300
    for path in ("/v1/chat/completions", "/v1/responses"):
        body = (
            {"messages": [{"role": "user", "content": text}]} if "chat" in path else {"input": text}
        )
        error = server.post(path, body).json["error"]
        assert (error["type"], error["code"]) == (
            "exceed_context_size_error",
            "context_length_exceeded",
        )
        assert error["n_prompt_tokens"] > error["n_ctx"] == 256


def test_progress_is_sent_at_the_start_and_at_the_first_token(server: RunningServer) -> None:
    body = {"messages": QUESTION, "max_tokens": 2, "stream": True, "return_progress": True}
    events = server.post("/v1/chat/completions", body).events
    progress = [event["prompt_progress"] for event in events[:-1] if "prompt_progress" in event]
    assert progress and progress[-1]["processed"] == progress[-1]["total"]
    assert "prompt_progress" in events[0]


def test_ollamas_calls_have_their_index_and_a_model_that_is_not_needed_is_said_to_be_unloaded() -> (
    None
):
    call = '<tool_call>{"name": "clock", "arguments": {}}</tool_call>'
    tools = [{"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}]
    with running_server(scripted_engine(call * 2)) as server:
        body = {"model": "tested", "messages": QUESTION, "tools": tools}
        lines = server.post("/api/chat", {**body, "stream": False}).json["message"]["tool_calls"]
        assert [line["function"]["index"] for line in lines] == [0, 1]
        with ollama.Client(server.url) as client:
            parts = [
                (part.message.model_dump().get("tool_calls") or [])
                for part in client.chat(**body, stream=True)
            ]
            assert sum(map(len, parts)) == 2
            for keep_alive in (0, "0", "0s"):
                assert client.generate("tested", keep_alive=keep_alive).done_reason == "unload"
                assert client.chat("tested", keep_alive=keep_alive).done_reason == "unload"
            assert client.chat("tested", keep_alive="5m").done_reason == "load"
        server.wait_until_idle()
