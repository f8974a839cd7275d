"""Fields of llama.cpp, vLLM and others: each changes the answer as its engine documents, or says that it does not."""

import asyncio
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pellucid.async_engine import AsyncLLMEngine
from pellucid.inputs.prompts import ChatPrompt
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.outputs import CompletionOutput, RequestMetrics, RequestOutput
from pellucid.server.protocols.answer_form import AnswerForm
from pellucid.server.protocols.conversation import ConversationBuilder
from pellucid.server.protocols.openai_shared.usage import timings_of
from pellucid.server.protocols.reasoning import switch_budget
from pellucid.server.protocols.tokens import Tokens
from pellucid.text.tokenizer import Tokenizer
from support.chat_templates import FAMILIES
from support.http_server import RunningServer, running_server
from support.scripted_model import scripted_engine
from support.tokenizer_kinds import KINDS

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
QUESTION = [{"role": "user", "content": "What is 12 + 7?"}]
GREEDY: dict[str, Any] = {"messages": QUESTION, "temperature": 0}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("weather", "clock")
]
CALLS = "".join(
    f'<tool_call>\n{{"name": "{name}", "arguments": {{}}}}\n</tool_call>'
    for name in ("weather", "clock")
)


@pytest.fixture(scope="module")
def reasoner() -> Iterator[RunningServer]:
    """Always answers with reasoning, text and two calls."""
    with running_server(scripted_engine(f"<think>Hm.</think>I look.\n{CALLS}")) as running:
        yield running
        running.wait_until_idle()


def answered(server: RunningServer, body: dict[str, Any], path: str = CHAT) -> dict[str, Any]:
    """The reply without what differs in each."""
    reply = server.post(path, body)
    assert reply.status == 200, reply.body
    return {key: reply.json.get(key) for key in ("choices", "warnings")}


@pytest.mark.parametrize(
    ("fields", "warned"),
    [
        (
            {"id_slot": 0, "request_id": "mine", "keep_alive": "5m"},
            ["id_slot", "request_id", "keep_alive"],
        ),
        ({"num_ctx": 8192, "provider": {"order": ["a"]}}, ["num_ctx", "provider"]),
        ({"spaces_between_special_tokens": True}, ["spaces_between_special_tokens"]),
        ({"chat_template_kwargs": {"colour": "red"}}, ["chat_template_kwargs.colour"]),
        ({"chat_template_kwargs": {"enable_thinking": False}}, ["enable_thinking"]),
        ({"enable_thinking": False}, ["enable_thinking"]),
        ({"max_tokens": 100_000}, ["max_tokens=100000"]),
    ],
)
def test_what_has_no_effect_is_said(
    server: RunningServer, fields: dict[str, Any], warned: list[str]
) -> None:
    body = {"max_tokens": 1, **GREEDY, "stop": ["."], **fields}
    reply = server.post(CHAT, body)
    assert [line.partition(":")[0] for line in reply.json["warnings"]] == warned
    assert json.loads(reply.headers["x-pellucid-warnings"]) == reply.json["warnings"]


def test_a_prompt_that_is_not_to_be_cached() -> None:
    body = {"prompt": "Once upon a time " * 30, "max_tokens": 1}
    with running_server(scripted_engine("Yes.", enable_prefix_caching=True)) as server:
        found = [
            server.post(TEXT, {**body, **fields}).json["usage"]["prompt_tokens_details"][
                "cached_tokens"
            ]
            for fields in (
                {"cache_prompt": False},
                {"cache_prompt": False},
                {},
                {"cache_prompt": True},
            )
        ]
        assert found[:3] == [0, 0, 0] and found[3] > 64
        server.wait_until_idle()


def test_timings_are_those_of_the_metrics() -> None:
    metrics = RequestMetrics(1.0, 1.5, [1.75, 2.0, 2.75])
    completion = CompletionOutput(0, "abc", [7, 8, 9])
    output = RequestOutput("a", None, [1, 2, 3, 4, 5], 0, [completion], metrics)
    output.num_cached_tokens = 3
    of_prompt = {"cache_n": 3, "prompt_n": 2, "prompt_ms": 250.0, "prompt_per_token_ms": 125.0}
    assert timings_of([output]) == {
        "queue_ms": 500.0,
        **of_prompt,
        "prompt_per_second": 8.0,
        "predicted_n": 3,
        "predicted_ms": 1000.0,
        "predicted_per_token_ms": 500.0,
        "predicted_per_second": 2.0,
    }
    output.metrics = RequestMetrics(1.0)
    timings = timings_of([output])
    assert timings and timings["queue_ms"] == timings["prompt_ms"] == timings["predicted_ms"] == 0


def test_timings_in_every_frame_and_tokens_by_their_ids(server: RunningServer) -> None:
    body = {**GREEDY, "max_tokens": 4, "ignore_eos": True, "stream": True}
    events = server.post(CHAT, {**body, "timings_per_token": True}).events[:-1]
    assert [event["timings"]["predicted_n"] for event in events][-1] == 4
    for path, key in ((CHAT, "logprobs"), (TEXT, "logprobs")):
        asked: dict[str, Any] = (
            {**GREEDY, "logprobs": True} if path == CHAT else {"prompt": "Once", key: 1}
        )
        reply = server.post(
            path,
            {
                **asked,
                "max_tokens": 2,
                "return_tokens_as_token_ids": True,
                "return_token_ids": True,
            },
        )
        (choice,) = reply.json["choices"]
        found = choice[key]
        names = [at["token"] for at in found["content"]] if path == CHAT else found["tokens"]
        assert names == [f"token_id:{token_id}" for token_id in choice["token_ids"]]
        if path == TEXT:
            assert all(set(names) & set(at) for at in found["top_logprobs"])


def test_routes_without_a_prefix_and_the_count_of_tokens(server: RunningServer) -> None:
    reply = server.post("/chat/completions", {**GREEDY, "max_tokens": 1})
    counted = {
        "object": "response.input_tokens",
        "input_tokens": reply.json["usage"]["prompt_tokens"],
    }
    for path in ("/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"):
        assert server.post(path, {**GREEDY, "max_tokens": 1}).json == counted
    assert server.get("/models").json["data"][0]["id"] == "tested"
    assert server.post("/responses", {"input": "Hi", "max_output_tokens": 1}).status == 200


def test_thinking_is_switched_off_by_the_template_or_by_a_budget(
    reasoner: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script ignores both; what the engine gets is looked at."""
    given: list[Any] = []
    encode = AsyncLLMEngine.encode
    monkeypatch.setattr(
        AsyncLLMEngine,
        "encode",
        lambda engine, prompt: given.append(prompt) or encode(engine, prompt),
    )
    for fields in (
        {"enable_thinking": False},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ):
        assert answered(reasoner, {**GREEDY, **fields, "max_tokens": 1})["warnings"] is None
        assert given[-1].chat_template_kwargs == {"enable_thinking": False}
    tokenizer = Tokenizer(KINDS["byte_level_bpe"](), 1000, {}, FAMILIES["llama"], "m")
    assert (
        switch_budget(False, tokenizer) == 0
    )  # its answers may have reasoning, its template no switch
    warnings: list[str] = []
    builder = ConversationBuilder(tokenizer, warnings)
    builder.set_variables({"enable_thinking": False, "date_string": "1 Jan"})
    assert builder.variables == {"date_string": "1 Jan"}
    assert [line.partition(":")[0] for line in warnings] == ["chat_template_kwargs.enable_thinking"]


def test_the_tokens_that_begin_a_call_are_forbidden_where_there_may_be_none() -> None:
    backend = KINDS["byte_level_bpe"]()
    backend.add_tokens(["<tool_call>"])
    tokenizer = Tokenizer(backend, 1000, {}, FAMILIES["qwen"], "m")
    prompt = ChatPrompt(QUESTION, TOOLS)
    for may_call, forbidden in ((True, ()), (False, ("<tool_call>",))):
        form = AnswerForm.of(tokenizer, prompt, may_call=may_call)
        assert form.adapt(SamplingParams()).bad_words == forbidden


def test_special_tokens_that_a_tokenizer_does_not_have_are_null() -> None:
    tokenizer = Tokenizer(KINDS["byte_level_bpe"](), 1000, {}, FAMILIES["llama"], "m")
    serving: Any = SimpleNamespace(model=SimpleNamespace(tokenizer=tokenizer, max_model_len=8))
    call: Any = None
    info = json.loads(asyncio.run(Tokens(serving).tokenizer_info(call)).body)
    names = ("bos_token", "bos_token_id", "eos_token", "eos_token_id")
    assert [info[name] for name in names] == [None] * 4
