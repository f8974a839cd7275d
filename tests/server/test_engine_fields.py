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
