"""Ollama's protocol, by its official client; and the routes about text and tokens."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import ollama
import pytest

from pellucid import EngineConfig
from pellucid.engine import LLMEngine
from pellucid.inputs.prompts import ChatPrompt
from support.bundled import bundled_model
from support.http_server import RunningServer, running_server
from support.offline import offline

QUESTION = [{"role": "user", "content": "What is 12 + 7?"}]
OPTIONS = {"temperature": 0.8, "seed": 7, "num_predict": 12}
PARAMS: dict[str, Any] = {"temperature": 0.8, "seed": 7, "max_tokens": 12}


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[ollama.Client]:
    with ollama.Client(host=server.url) as made:
        yield made


def test_what_clients_ask_before_they_ask(server: RunningServer) -> None:
    assert server.get("/").body == b"Ollama is running"
    for path in ("/", "/api/version", "/api/tags"):
        head = server.call("HEAD", path)
        assert (head.status, head.body) == (200, b"")
        assert head.headers["content-length"] == str(len(server.get(path).body))


def test_models_and_their_facts(client: ollama.Client) -> None:
    (listed,) = client.list().models
    assert listed.model == "tested:latest" and listed.size and listed.size > 5_000_000
    (loaded,) = client.ps().models
    assert loaded.context_length == 2048
    shown = client.show("tested")
    assert shown.modelinfo is not None and shown.capabilities == ["completion"]
    assert shown.modelinfo["llamaforcausallm.context_length"] == 2048
    assert "assistant" in (shown.template or "")
    with pytest.raises(ollama.ResponseError, match="this server has 'tested'") as refused:
        client.show("qwen3")
    assert refused.value.status_code == 404
    assert shown.details is not None and shown.details.format == "safetensors"


def test_the_format_of_a_gguf_file_is_gguf() -> None:
    model = replace(bundled_model(), path=Path("model.gguf"))
    with running_server(LLMEngine(EngineConfig(), model)) as server:
        (listed,) = server.get("/api/tags").json["models"]
    assert listed["details"]["format"] == "gguf"


def test_a_chat_is_what_the_engine_gives(client: ollama.Client) -> None:
    (expected,) = offline(ChatPrompt(QUESTION), **PARAMS).outputs
    whole = client.chat("tested", QUESTION, options=OPTIONS)
    assert whole.message.content == expected.text
    assert whole.done and whole.done_reason == expected.finish_reason
    assert whole.eval_count == len(expected.token_ids)
    assert (whole.total_duration or 0) >= (whole.prompt_eval_duration or 0) > 0
    assert (whole.eval_duration or 0) > 0
    parts = list(client.chat("tested:latest", QUESTION, options=OPTIONS, stream=True))
    assert "".join(part.message.content or "" for part in parts) == expected.text
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].done_reason == expected.finish_reason


def test_each_line_of_a_stream_has_the_time_at_which_it_was_made(client: ollama.Client) -> None:
    before = datetime.now(timezone.utc)
    times = [
        datetime.fromisoformat((part.created_at or "").replace("Z", "+00:00"))
        for part in client.chat("tested", QUESTION, options=OPTIONS, stream=True)
    ]
    assert times  # as many as the server is quick: a line has the tokens of one step or more
    in_order = [before, *times, datetime.now(timezone.utc)]
    assert in_order == sorted(in_order)


def test_generate_uses_the_template_unless_raw(client: ollama.Client) -> None:
    system = {"role": "system", "content": "Be brief."}
    templated = client.generate("tested", "What is 12 + 7?", system="Be brief.", options=OPTIONS)
    assert templated.response == offline(ChatPrompt([system, *QUESTION]), **PARAMS).outputs[0].text
    raw = client.generate("tested", "The capital of France is", raw=True, options=OPTIONS)
    assert raw.response == offline("The capital of France is", **PARAMS).outputs[0].text


def test_an_unfinished_answer_is_continued(client: ollama.Client) -> None:
    messages = [*QUESTION, {"role": "assistant", "content": "12 + 7 ="}]
    expected = offline(ChatPrompt(messages, continue_final_message=True), **PARAMS).outputs[0].text
    assert client.chat("tested", messages, options=OPTIONS).message.content == expected


def test_logprobs(client: ollama.Client) -> None:
    greedy = {"temperature": 0, "num_predict": 5}
    whole = client.chat("tested", QUESTION, options=greedy, logprobs=True, top_logprobs=2)
    expected = offline(ChatPrompt(QUESTION), temperature=0, max_tokens=5, logprobs=2).outputs[0]
    assert expected.logprobs is not None and whole.logprobs is not None
    exact = [at[i].logprob for i, at in zip(expected.token_ids, expected.logprobs, strict=True)]
    assert [entry.logprob for entry in whole.logprobs] == exact
    assert all(len(entry.top_logprobs or ()) == 2 for entry in whole.logprobs)


def test_text_to_tokens_and_back(server: RunningServer) -> None:
    tokenizer = bundled_model().tokenizer
    text = "Once upon a time, 🦊 café"
    ids = tokenizer.encode(text)
    reply = server.post("/tokenize", {"prompt": text, "return_token_strs": True}).json
    assert (reply["tokens"], reply["count"], reply["max_model_len"]) == (ids, len(ids), 2048)
    assert reply["token_strs"] == [tokenizer.token_text(token_id) for token_id in ids]
    bare = server.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json["tokens"]
    assert bare == tokenizer.encode(text, add_special_tokens=False)
    llama = server.post("/tokenize", {"content": text, "with_pieces": True}).json["tokens"]
    assert [token["id"] for token in llama] == bare
    back = server.post("/detokenize", {"tokens": bare}).json
    assert (back["prompt"], back["content"]) == (text, text)
    assert back["token_strs"] == [tokenizer.token_text(token_id) for token_id in bare]
    for body in ({}, {"prompt": "a", "content": "a"}, {"prompt": 1}, {"messages": []}):
        assert server.post("/tokenize", body).status == 400
    assert server.post("/detokenize", {"tokens": [10**6]}).status == 400


def test_a_conversation_as_text_and_as_tokens(server: RunningServer) -> None:
    tokenizer = bundled_model().tokenizer
    text = server.post("/apply-template", {"messages": QUESTION}).json["prompt"]
    assert text == tokenizer.render_chat(ChatPrompt(QUESTION))
    tokens = server.post("/tokenize", {"messages": QUESTION}).json["tokens"]
    assert tokens == tokenizer.encode_conversation(ChatPrompt(QUESTION))
