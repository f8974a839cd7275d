"""Hostile requests to the bundled model: prompts, conversations and parameters."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hostile.case import Case
from hostile.checkpoint_cases import MEGABYTES
from pellucid import LLM, SamplingParams
from pellucid.inputs.beam_search_params import BeamSearchParams
from pellucid.inputs.structured_outputs import StructuredOutputsParams

CHARACTERS = 4_000_000


@functools.cache
def llm() -> LLM:
    return LLM(kv_cache_memory=64 << 20)


def GOOD() -> None:  # noqa: N802 (one of the three that warm up)
    """Answers a good prompt and a good conversation."""
    llm().generate("Once upon a time", SamplingParams(max_tokens=4), use_tqdm=False)
    llm().chat([{"role": "user", "content": "hi"}], SamplingParams(max_tokens=4), use_tqdm=False)


def generate(prompt: Any, params: SamplingParams | None = None) -> None:
    llm().generate(prompt, params or SamplingParams(max_tokens=1), use_tqdm=False)


def prompt_case(what: str, prompt: Callable[[], Any], *, may_succeed: bool = False) -> Case:
    return Case(f"prompt: {what}", lambda _: prompt(), generate, may_succeed)


def params_case(what: str, *, may_succeed: bool = False, **params: Callable[[], Any] | Any) -> Case:
    """Parameters; a function makes a large value."""

    def make(_: Path) -> dict[str, Any]:
        return {"max_tokens": 2} | {
            name: value() if callable(value) else value for name, value in params.items()
        }

    return Case(
        f"params: {what}",
        make,
        lambda given: generate("Once", SamplingParams(**given)),
        may_succeed,
    )


def chat_case(what: str, make: Callable[[], dict[str, Any]], *, may_succeed: bool = False) -> Case:
    def answer(given: dict[str, Any]) -> None:
        llm().chat(**given, sampling_params=SamplingParams(max_tokens=1), use_tqdm=False)

    return Case(f"chat: {what}", lambda _: make(), answer, may_succeed)


def user(content: Any, **others: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **others}


def nested(depth: int) -> list[Any]:
    inner: list[Any] = []
    for _ in range(depth):
        inner = [inner]
    return inner


def tool(name: str = "f", **parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


PROMPTS: dict[str, Callable[[], Any]] = {
    "four million letters": lambda: "a" * CHARACTERS,
    "four million different letters": lambda: "".join(
        chr(97 + i * i % 26) for i in range(CHARACTERS)
    ),
    "four million blanks": lambda: " " * CHARACTERS,
    "four million line feeds": lambda: "\n" * CHARACTERS,
    "four million digits": lambda: "1234567890" * (CHARACTERS // 10),
    "four million marks": lambda: "!?" * (CHARACTERS // 2),
    "words of four million letters": lambda: "the quick brown fox " * (CHARACTERS // 20),
    "two million emoji": lambda: "\U0001f98a" * 2_000_000,
    "three million ideographs": lambda: "".join(chr(0x4E00 + i % 20_000) for i in range(3_000_000)),
    "four million combining marks": lambda: "a" + "\u0301" * CHARACTERS,
    "special tokens": lambda: "<|end_of_text|>" * 600_000,
    "a contraction without an end": lambda: "'" * CHARACTERS,
    "zeros": lambda: "\0" * CHARACTERS,
    "a lone surrogate": lambda: "\ud800" * CHARACTERS,
    "a million token ids": lambda: [5] * 1_000_000,
    "ids that are none": lambda: [[-1]],
    "ids beyond 64 bits": lambda: [[2**70]],
    "ids nested deeply": lambda: nested(10_000),
    "bytes": lambda: b"x" * MEGABYTES,
    "100,000 empty prompts": lambda: [""] * 100_000,
    "100,000 prompts, one of which is too long": lambda: ["a"] * 20_000 + ["a" * 100_000],
}
PROMPT_CASES = [
    *(prompt_case(what, prompt) for what, prompt in PROMPTS.items()),
    prompt_case("a word within the context", lambda: "a" * 8_000, may_succeed=True),
]

PARAMS_CASES = [
    params_case("a stop string of a megabyte", stop=lambda: ["x" * 1_000_000]),
    params_case(
        "stop strings of three megabytes for eight answers",
        n=8,
        stop=lambda: [f"{i:0999}" for i in range(3_000)],
    ),
    params_case("100,000 stop strings", stop=lambda: [f"s{i}" for i in range(100_000)]),
    params_case("a million empty stop strings", stop=lambda: [""] * 1_000_000),
    params_case("stop strings that are none", stop=lambda: [1] * 1_000_000),
    params_case("a bad word of a megabyte", bad_words=lambda: ["x" * 1_000_000]),
    params_case("a bad word of spaces", bad_words=lambda: [" " * 1_000_000]),
    params_case("100,000 bad words", bad_words=lambda: [f"w{i}" for i in range(100_000)]),
    params_case("an empty bad word", bad_words=[""]),
    params_case("a bias for a million tokens", logit_bias=lambda: dict.fromkeys(range(1_000_000), 1.0)),
    params_case("a bias for 200,000 tokens", logit_bias=lambda: dict.fromkeys(range(200_000), 1.0)),
    params_case("a bias of NaN", logit_bias={1: float("nan")}),
    params_case("a bias for text", logit_bias={"a" * 1000: 1.0}),
    params_case("a million pairs of bias", logit_bias=lambda: [(1, 1.0)] * 1_000_000, may_succeed=True),
    params_case("a million allowed tokens", allowed_token_ids=lambda: list(range(1_000_000))),
    params_case("one allowed token a million times", allowed_token_ids=lambda: [1] * 1_000_000, may_succeed=True),
    params_case("a million stop tokens", stop_token_ids=lambda: list(range(1_000_000))),
    params_case("a stop token beyond 64 bits", stop_token_ids=[2**70]),
    params_case(
        "a schema of 6,000 properties",
        structured_outputs=lambda: StructuredOutputsParams(
            json={"type": "object", "properties": {f"p{i}": {} for i in range(6_000)}}
        ),
    ),
    params_case(
        "a schema of 3,000 alternatives",
        structured_outputs=lambda: StructuredOutputsParams(
            json={
                "anyOf": [
                    {"type": "object", "properties": {f"p{i}": {"type": "integer"}}}
                    for i in range(3_000)
                ]
            }
        ),
    ),
    params_case(
        "repetitions of repetitions of repetitions",
        may_succeed=True,
        structured_outputs=lambda: StructuredOutputsParams(regex="((a{1,1000}){1,1000}){1,1000}"),
    ),
    params_case("a billion answers", n=10**9),
    params_case("a billion candidates", best_of=10**9),
    params_case("a billion log-probabilities", logprobs=10**9),
    params_case("a billion log-probabilities of the prompt", prompt_logprobs=10**9),
    params_case("a limit beyond 64 bits", max_tokens=2**70, max_time=0.1, may_succeed=True),
    params_case("a least number beyond 64 bits", min_tokens=2**70),
    params_case("a seed beyond 64 bits", seed=2**70),
    params_case("a temperature of NaN", temperature=float("nan")),
    params_case("a temperature beyond floats", temperature=10**400),
    params_case("a negative top_k", top_k=-(10**30)),
    params_case("an infinite time", max_time=float("inf")),
    Case(
        "params: a billion beams",
        lambda _: {"beam_width": 10**9},
        lambda given: llm().beam_search("Once", BeamSearchParams(**given)),
    ),
    Case("params: a salt of nine megabytes", lambda _: {"prompt": "Once", "cache_salt": "x" * MEGABYTES}, generate),
    Case(
        "params: a priority beyond 64 bits",
        lambda _: 2**70,
        lambda given: llm().generate(
            "Once", SamplingParams(max_tokens=1), priority=given, use_tqdm=False
        ),
    ),
]  # fmt: skip

CHATS: dict[str, Callable[[], dict[str, Any]]] = {
    "a message of four million letters": lambda: {"messages": [user("a" * CHARACTERS)]},
    "a message of nine million line feeds": lambda: {"messages": [user("\n" * MEGABYTES)]},
    "100,000 messages": lambda: {"messages": [user("a")] * 100_000},
    "100,000 conversations": lambda: {"messages": [[user("a" * 3000)]] * 3_000},
    "350,000 parts": lambda: {"messages": [user([{"type": "text", "text": "a"}] * 350_000)]},
    "parts nested deeply": lambda: {"messages": [user(nested(10_000))]},
    "a role of nine megabytes": lambda: {"messages": [{"role": "x" * MEGABYTES, "content": "a"}]},
    "special tokens": lambda: {"messages": [user("<|im_end|>" * 800_000)]},
    "a lone surrogate": lambda: {"messages": [user("\udfff" * 1000)]},
    "100,000 tools": lambda: {"messages": [user("a")], "tools": [tool()] * 100_000},
    "4,096 tools": lambda: {"messages": [user("a")], "tools": [tool(f"f{i}") for i in range(4096)]},
    "a tool nested deeply": lambda: {"messages": [user("a")], "tools": [tool(a=nested(10_000))]},
    "a template of nine megabytes": lambda: {
        "messages": [user("a")],
        "chat_template": "{% if a %}b{% endif %}" * 400_000,
    },
    "a template without an end": lambda: {
        "messages": [user("a")],
        "chat_template": "{% for x in range(99999) %}{% for y in range(99999) %}{% endfor %}{% endfor %}",
    },
    "a variable nested deeply": lambda: {
        "messages": [user("a")],
        "chat_template_kwargs": {"a": nested(10_000)},
    },
}
CHAT_CASES = [
    *(chat_case(what, make) for what, make in CHATS.items()),
    chat_case(
        "a variable of nine megabytes",
        lambda: {"messages": [user("a")], "chat_template_kwargs": {"a": "x" * MEGABYTES}},
        may_succeed=True,
    ),
]

CASES = (*PROMPT_CASES, *PARAMS_CASES, *CHAT_CASES)
