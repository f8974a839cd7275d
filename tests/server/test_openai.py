"""OpenAI's protocol, by its official client and as lm-eval uses it; completions equal those of `LLM`."""

import json
from typing import Any

import openai
import pytest

from pellucid.inputs.prompts import ChatPrompt
from pellucid.outputs import RequestOutput
from pellucid.server.protocols.messages import readable_messages
from pellucid.server.protocols.openai_shared.writer import ReplyWriter
from support.bundled import bundled_model
from support.http_server import RunningServer
from support.offline import offline
from support.step_gate import StepGate

CAPITAL = "The capital of France is"
QUESTION = [{"role": "user", "content": "What is 12 + 7?"}]
SEEDED = {"temperature": 0.8, "seed": 7}


def texts(output: RequestOutput) -> list[str]:
    return [completion.text for completion in output.outputs]


def test_models_and_their_context_length(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert model.id == "tested"
    found = client.models.retrieve("tested").model_dump()
    assert found["max_model_len"] == found["context_length"] == found["meta"]["n_ctx_train"] == 2048
    assert client.models.retrieve("alias-7").id == "alias-7"
    assert client.models.retrieve("tested:latest").id == "tested:latest"
    with pytest.raises(openai.NotFoundError) as refused:
        client.models.retrieve("gpt-5")
    assert refused.value.code == "model_not_found"


def test_a_completion_is_what_the_engine_gives(client: openai.OpenAI) -> None:
    expected = offline(CAPITAL, max_tokens=12, **SEEDED)
    reply = client.completions.create(model="tested", prompt=CAPITAL, max_tokens=12, **SEEDED)
    assert [choice.text for choice in reply.choices] == texts(expected)
    assert reply.choices[0].finish_reason == expected.outputs[0].finish_reason
    assert reply.usage is not None
    assert reply.usage.prompt_tokens == len(expected.prompt_token_ids)
    assert reply.usage.completion_tokens == len(expected.outputs[0].token_ids)
    assert reply.model == "tested" and reply.id.startswith("cmpl-")
    assert reply._request_id == reply.id.removeprefix("cmpl-")


def test_strings_ids_and_lists_of_both(server: RunningServer) -> None:
    ids = bundled_model().tokenizer.encode("Once upon a time")
    prompts = [CAPITAL, ids, "What is 12 + 7?"]
    body = {"prompt": prompts, "max_tokens": 6, "n": 2, **SEEDED}
    reply = server.post("/v1/completions", body).json
    expected = [
        text for prompt in prompts for text in texts(offline(prompt, n=2, max_tokens=6, **SEEDED))
    ]
    assert [choice["index"] for choice in reply["choices"]] == list(range(6))
    assert [choice["text"] for choice in reply["choices"]] == expected
    streamed = server.post("/v1/completions", {**body, "stream": True}).events
    assert streamed.pop() == "[DONE]"
    joined = [""] * 6
    for chunk in streamed:
        for choice in chunk["choices"]:
            joined[choice["index"]] += choice["text"]
    assert joined == expected
    single = server.post("/v1/completions", {**body, "prompt": ids, "n": 1}).json
    assert single["choices"][0]["text"] == expected[2]


def test_a_stream_is_the_whole_reply(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": "tested", "prompt": CAPITAL, "max_tokens": 12, "logprobs": 3}
    whole = client.completions.create(**fields, **SEEDED)
    chunks = list(
        client.completions.create(
            **fields, **SEEDED, stream=True, stream_options={"include_usage": True}
        )
    )
    *parts, last = chunks
    assert last.choices == [] and last.usage == whole.usage
    assert all(chunk.usage is None for chunk in parts)
    assert "".join(chunk.choices[0].text for chunk in parts) == whole.choices[0].text
    assert parts[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    expected = whole.choices[0].logprobs
    assert expected is not None and expected.tokens is not None
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        joined = [item for part in parts for item in getattr(part.choices[0].logprobs, name)]
        assert joined == getattr(expected, name)


def test_lm_eval_local_completions_gets_the_engines_own_numbers(server: RunningServer) -> None:
    """Lists of id lists, echo, max_tokens 1, logprobs 1; llama.cpp #27174 scores chance."""
    tokenizer = bundled_model().tokenizer
    texts_ = [CAPITAL + " Paris.", "12 + 7 = 19", "Once upon a time, there was"]
    prompts = [tokenizer.encode(text) for text in texts_]
    body = {
        "prompt": prompts,
        "echo": True,
        "max_tokens": 1,
        "logprobs": 1,
        "temperature": 0,
        "seed": 1234,
    }
    reply = server.post("/v1/completions", {**body, "model": "tested"}).json
    for prompt, choice in zip(prompts, reply["choices"], strict=True):
        expected = offline(prompt, temperature=0, max_tokens=1, prompt_logprobs=1, logprobs=1)
        logprobs = choice["logprobs"]
        assert expected.prompt_logprobs is not None
        exact = [
            at and at[i].logprob for i, at in zip(prompt, expected.prompt_logprobs, strict=True)
        ]
        assert logprobs["token_logprobs"][: len(prompt)] == exact
        assert len(logprobs["tokens"]) == len(prompt) + 1
        top = logprobs["top_logprobs"]
        assert top[0] is None
        for token, value, at in zip(
            logprobs["tokens"], logprobs["token_logprobs"], top, strict=True
        ):
            assert at is None or at[token] == value <= max(at.values())
        greedy = [
            at is not None and at[t] == max(at.values())
            for t, at in zip(logprobs["tokens"], top, strict=True)
        ]
        ranks = [
            at is not None and at[i].rank == 1
            for i, at in zip(prompt, expected.prompt_logprobs, strict=True)
        ]
        assert greedy[: len(prompt)] == ranks


def test_tokens_of_equal_text_are_all_there() -> None:
    from pellucid.outputs import Logprob
    from pellucid.server.protocols.openai_completions_api.writer import _by_text

    at = {
        5: Logprob(-1.0, -1.0, 1, "a"),
        6: Logprob(-2.0, -2.0, 2, "a"),
        7: Logprob(-3.0, -3.0, 3, "b"),
    }
    assert _by_text(6, at) == {"token_id:5": -1.0, "a": -2.0, "b": -3.0}
    assert _by_text(7, at) == {"a": -1.0, "token_id:6": -2.0, "b": -3.0}


def test_a_chat_is_what_the_engine_gives(client: openai.OpenAI) -> None:
    expected = offline(ChatPrompt(QUESTION), n=3, max_tokens=20, **SEEDED)
    fields: dict[str, Any] = {
        "model": "tested",
        "messages": QUESTION,
        "max_completion_tokens": 20,
        "n": 3,
    }
    whole = client.chat.completions.create(**fields, **SEEDED)
    assert [choice.message.content for choice in whole.choices] == texts(expected)
    assert all(choice.message.role == "assistant" for choice in whole.choices)
    joined, roles, ends = [""] * 3, [0] * 3, [""] * 3
    for chunk in client.chat.completions.create(**fields, **SEEDED, stream=True):
        for choice in chunk.choices:
            joined[choice.index] += choice.delta.content or ""
            roles[choice.index] += choice.delta.role is not None
            ends[choice.index] = choice.finish_reason or ends[choice.index]
    assert (joined, roles) == (texts(expected), [1, 1, 1])
    assert ends == [choice.finish_reason for choice in whole.choices]


def test_chat_logprobs_with_their_bytes(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {
        "model": "tested",
        "messages": QUESTION,
        "max_tokens": 8,
        "top_logprobs": 2,
    }
    whole = client.chat.completions.create(**fields, logprobs=True, temperature=0)
    expected = offline(ChatPrompt(QUESTION), max_tokens=8, logprobs=2, temperature=0).outputs[0]
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None and expected.logprobs is not None
    exact = [at[i].logprob for i, at in zip(expected.token_ids, expected.logprobs, strict=True)]
    assert [entry.logprob for entry in logprobs.content] == exact
    for entry in logprobs.content:
        assert len(entry.top_logprobs) == 2
        assert entry.top_logprobs[0].logprob == entry.logprob  # greedy
        assert bytes(entry.bytes or []).decode() == entry.token
    text = b"".join(bytes(entry.bytes or []) for entry in logprobs.content).decode()
    assert text.startswith(whole.choices[0].message.content or "?")
    streamed = [
        entry
        for chunk in client.chat.completions.create(
            **fields, logprobs=True, temperature=0, stream=True
        )
        for entry in (chunk.choices[0].logprobs.content or [])  # type: ignore[union-attr]
    ]
    assert streamed == logprobs.content


def test_what_a_request_waits_for_is_shown(server: RunningServer) -> None:
    limited = {"max_tokens": 2, "ignore_eos": True}
    body = {"prompt": "Hello " * 500, **limited, "stream": True, "return_progress": True}
    server.wait_until_idle()
    gate = StepGate(server.engine)
    with server.open_call("/v1/completions", body, connection="close") as connection:
        received = b""
        while b"prompt_progress" not in received:
            received += connection.recv(65536)
        gate.open()
        while data := connection.recv(65536):
            received += data
    prefix = b"data: "
    lines = [line for line in received.splitlines() if line.startswith(prefix)]
    first, *others = (line.removeprefix(prefix) for line in lines)
    progress = json.loads(first)["prompt_progress"]
    assert progress["total"] >= 500 and progress["processed"] >= progress["cache"]
    assert set(progress) == {"total", "cache", "processed", "time_ms", "queue_position"}
    assert others[-1] == b"[DONE]"
    timings = json.loads(others[-2])["timings"]
    assert timings["prompt_n"] + timings["cache_n"] == progress["total"]
    assert timings["predicted_n"] == 2 and timings["prompt_ms"] > 0


def test_fields_of_vllm(server: RunningServer) -> None:
    body = {"messages": QUESTION, "max_tokens": 3, "return_token_ids": True, "prompt_logprobs": 1}
    fields = {"stop_token_ids": [], "min_tokens": 3, "top_k": 1, "repetition_penalty": 1.1}
    (choice,) = server.post("/v1/chat/completions", {**body, **fields}).json["choices"]
    expected = offline(
        ChatPrompt(QUESTION), max_tokens=3, min_tokens=3, top_k=1, repetition_penalty=1.1
    )
    assert choice["token_ids"] == expected.outputs[0].token_ids
    assert choice["prompt_token_ids"] == expected.prompt_token_ids
    assert len(choice["prompt_logprobs"]) == len(expected.prompt_token_ids)
    answer = server.post("/v1/chat/completions", {**body, **fields, "stream": True}).events
    chunks = [chunk["choices"][0] for chunk in answer[:-1]]
    assert [i for chunk in chunks for i in chunk["token_ids"]] == choice["token_ids"]
    assert chunks[0]["prompt_token_ids"] == choice["prompt_token_ids"]


def test_what_a_client_notes_in_messages_has_no_effect() -> None:
    """LiteLLM and others send an assistant's message back with keys of their own."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": "Hello", "tool_calls": [call]}
    noted_call = {**call, "caller": {"type": "x"}, "function": {**call["function"], "note": "x"}}
    noted = {
        **message,
        "tool_calls": [noted_call],
        "annotations": [],
        "provider_specific_fields": 1,
    }
    warnings: list[str] = []
    assert readable_messages([noted], warnings) == [message]
    assert len(warnings) == 3


def test_the_tokens_of_a_prompt_that_is_far_too_long_are_not_counted_to_its_end(
    server: RunningServer,
) -> None:
    reply = server.post(
        "/v1/chat/completions", {"messages": [{"role": "user", "content": "word " * 100_000}]}
    )
    assert "your prompt has at least " in reply.json["error"]["message"]


def test_a_client_that_leaves_a_stream_ends_the_request(
    client: openai.OpenAI, server: RunningServer
) -> None:
    server.wait_until_idle()
    gate = StepGate(server.engine, num_steps=3)  # the request does not end by itself
    try:
        stream = client.chat.completions.create(
            model="tested",
            messages=QUESTION,
            stream=True,
            extra_body={"ignore_eos": True},  # type: ignore
        )
        next(iter(stream))
        stream.close()
        server.wait_until_idle()
    finally:
        gate.open()


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/completions", {"prompt": "Once"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Once"}]}),
    ],
)
def test_a_text_that_grows_is_written_without_a_new_object_for_each_token(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, path: str, asked: dict[str, Any]
) -> None:
    written: list[Any] = []
    write = ReplyWriter._object
    monkeypatch.setattr(
        ReplyWriter, "_object", lambda *args, **given: written.append(args) or write(*args, **given)
    )
    body = {**asked, "max_tokens": 40, "ignore_eos": True, "temperature": 0, "stream": True}
    assert server.post(path, body).body.endswith(b"data: [DONE]\n\n")
    assert len(written) <= 4  # the first, the last, and templates
