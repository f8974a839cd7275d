"""Malformed requests among good ones: the server refuses each, and answers each good one."""

import copy
import json
import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from support.http_server import TIMEOUT, RunningServer

NUM_THREADS = 4
GOOD: list[dict[str, Any]] = [
    {"prompt": [number, 2, 3], "max_tokens": 12, "seed": number, "temperature": 0.9, "logprobs": 2}
    for number in range(1, 9)
]
MESSAGES = [{"role": "user", "content": "Hi"}]
ROUTES: dict[str, dict[str, Any]] = {  # each with a body that it serves
    "/v1/completions": {"prompt": "Hi", "max_tokens": 1},
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 1},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 1},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 1},
    "/v1/messages/count_tokens": {"messages": MESSAGES},
    "/api/chat": {"model": "tested", "messages": MESSAGES, "options": {"num_predict": 1}},
    "/api/generate": {"model": "tested", "prompt": "Hi", "options": {"num_predict": 1}},
    "/tokenize": {"prompt": "Hi"},
    "/detokenize": {"tokens": [1, 2]},
    "/apply-template": {"messages": MESSAGES},
}
FIELD_NAMES = """prompt messages input model max_tokens temperature top_k top_p min_p repetition_penalty repeat_penalty
    frequency_penalty stop n logit_bias tools tool_choice stream stream_options options system thinking seed tokens
    logprobs response_format structured_outputs output_config format text cache_salt priority timeout"""
NAMES = (*FIELD_NAMES.split(), "\x00", "a" * 300)


def random_value(rng: random.Random, depth: int = 0) -> Any:
    kinds = ["number", "text", "none", "bool", "special"]
    if depth < 3:
        kinds += ["list", "object", "message"]
    kind = rng.choice(kinds)
    if kind == "number":
        return rng.choice(
            [0, 1, -1, 2**31, 2**63, -(2**63) - 1, 10**30, 0.5, 1e-300, 1e308, -1e308, 3]
        )
    if kind == "text":
        return rng.choice(
            ["", "a", "\u0000", "\ud83e\udd8a", "{{ 7 * 7 }}", "a" * 2000, "<|user|>"]
        )
    if kind == "list":
        return [random_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == "object":
        return {rng.choice(NAMES): random_value(rng, depth + 1) for _ in range(rng.randrange(4))}
    if kind == "message":
        role = rng.choice(["user", "assistant", "system", "tool", "nobody"])
        return [{"role": role, "content": random_value(rng, depth + 1)}]
    return {"none": None, "bool": rng.random() < 0.5, "special": {"type": "image", "role": "user"}}[
        kind
    ]


def malformed_body(rng: random.Random, good: dict[str, Any]) -> bytes:
    """A good body with some fields replaced or added, and perhaps some bytes."""
    names = [*NAMES, *good, *good]
    changed = {rng.choice(names): random_value(rng) for _ in range(rng.randrange(4))}
    limit = {"max_tokens": 1} if "max_tokens" in good else {}
    data = json.dumps({**good, **changed, **limit}).encode()
    change = rng.choice(["none", "none", "none", "cut", "flip", "repeat"])
    if change == "cut":
        return data[: rng.randrange(len(data))]
    if change == "flip":
        place = rng.randrange(len(data))
        return data[:place] + bytes([rng.randrange(256)]) + data[place + 1 :]
    return data * 2 if change == "repeat" else data


EXTREMES = (
    *(sign * number for sign in (1, -1) for number in (5e-324, 1e-40, 1e-7, 1e7, 1e39, 1.7e308)),
    *(sign * 2**bits for sign in (1, -1) for bits in (31, 32, 53, 63, 64, 70)),
)
REPEATING = {"prompt": [5, 2, 3, 5, 2], "max_tokens": 3, "seed": 1, "logprobs": 2}


SAMPLING_NAMES = """temperature top_k top_p min_p typical_p repetition_penalty presence_penalty
    frequency_penalty min_tokens max_tokens seed n best_of logprobs prompt_logprobs timeout
    thinking_budget logit_bias"""
OLLAMA_NAMES = """num_predict temperature top_k top_p min_p typical_p repeat_penalty presence_penalty
    frequency_penalty seed"""


@pytest.mark.parametrize(
    ("route", "names"),
    [
        ("/v1/completions", SAMPLING_NAMES),
        ("/v1/chat/completions", "top_logprobs max_completion_tokens thinking_token_budget"),
        ("/v1/responses", "temperature top_p max_output_tokens"),
        ("/v1/messages", "temperature top_p top_k max_tokens"),
        ("/api/generate", OLLAMA_NAMES),
    ],
)
def test_tiny_and_huge_numbers_are_served_or_refused_by_name(
    server: RunningServer, route: str, names: str
) -> None:
    """A refusal names the field as the client did, its value and what is allowed."""
    body = REPEATING if route == "/v1/completions" else ROUTES[route]
    wrong = []
    for name in names.split():
        for value in EXTREMES:
            given: dict[str, Any] = {name: {"5": value} if name == "logit_bias" else value}
            if name == "top_logprobs":
                given["logprobs"] = True
            if route == "/api/generate":
                given = {"options": {"num_predict": 3, **given}}
            elif name == "max_completion_tokens":
                given["max_tokens"] = None
            elif not name.startswith("max"):
                given["temperature" if name != "temperature" else "top_p"] = 0.9
            reply = server.post(route, {**body, **given})
            text = reply.body.decode()
            if reply.status != 200 and not (reply.status == 400 and name in text):
                wrong.append((name, value, reply.status, text))
    assert wrong == []


def test_numbers_that_a_step_cannot_take_harm_no_neighbour(server: RunningServer) -> None:
    """Refused before a step, as an error within a step would end all requests of the step."""
    (alone,) = server.post("/v1/completions", {**GOOD[0], "max_tokens": 60}).json["choices"]
    found: list[Any] = []

    def ask() -> None:
        found.append(server.post("/v1/completions", {**GOOD[0], "max_tokens": 60}).json["choices"])

    neighbour = threading.Thread(target=ask)
    neighbour.start()
    while neighbour.is_alive():
        for fields in ({"top_k": 2**63}, {"repetition_penalty": 1e-300}):
            assert server.post("/v1/completions", {**REPEATING, **fields}).status == 400
    neighbour.join()
    assert found == [[alone]]


def test_malformed_requests_harm_nobody(
    server: RunningServer, request: pytest.FixtureRequest
) -> None:
    """No 5xx, no answer that differs by a bit, nothing left behind. `--malformed 10000` sends more."""
    num_malformed = request.config.getoption("malformed")
    alone = [server.post("/v1/completions", body).json["choices"] for body in GOOD]
    wrong: list[str] = []

    def send_malformed(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(num_malformed // NUM_THREADS):
            route = rng.choice(list(ROUTES))
            body = malformed_body(rng, ROUTES[route])
            reply = server.call("POST", route, body)
            if reply.status >= 500:
                wrong.append(f"{route} {reply.status} {body!r} {reply.body!r}")

    def send_good(number: int) -> None:
        for _ in range(10):
            reply = server.post("/v1/completions", GOOD[number]).json
            if reply.get("choices") != alone[number]:
                wrong.append(f"{GOOD[number]} {reply}")

    threads = [threading.Thread(target=send_malformed, args=(seed,)) for seed in range(NUM_THREADS)]
    threads += [threading.Thread(target=send_good, args=(number,)) for number in range(len(GOOD))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT + num_malformed)
    assert wrong == []
    server.wait_until_idle()


FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object"}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
NESTED: dict[str, dict[str, Any]] = {  # by route: a body with each kind of object
    "/v1/responses": {
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {
                "type": "reasoning",
                "content": [{"type": "reasoning_text", "text": "b"}],
                "summary": [{"type": "summary_text", "text": "c"}],
            },
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "d"},
            {"type": "additional_tools", "tools": [{"type": "function", **FUNCTION}]},
            {"role": "user", "content": "e"},
        ],
        "tools": [{"type": "function", **FUNCTION}],
        "tool_choice": "none",
        "max_output_tokens": 1,
    },
    "/v1/messages": {
        "system": [{"type": "text", "text": "a"}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "b"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "c", "signature": "s"},
                    {"type": "tool_use", "id": "c", "name": "f", "input": {}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c"}]},
        ],
        "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "none"},
        "max_tokens": 1,
    },
    "/v1/chat/completions": {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}]},
            {"role": "assistant", "reasoning_content": "b", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c", "content": "d"},
        ],
        "tools": [{"type": "function", "function": FUNCTION}],
        "tool_choice": "none",
        "max_tokens": 1,
    },
    "/api/chat": {
        "model": "tested",
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "thinking": "b", "tool_calls": [CALL]},
            {"role": "tool", "content": "d", "tool_name": "f"},
        ],
        "options": {"num_predict": 1},
        "stream": False,
    },
}
WRONG_VALUES: tuple[Any, ...] = (5, ["x" * 5000], {"type": ["x" * 5000]})


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each list or object within a value, with each of its keys."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from places(value[key])


@pytest.mark.parametrize("route", NESTED)
def test_a_wrong_value_anywhere_in_a_body_is_no_fault_of_the_server(
    server: RunningServer, route: str
) -> None:
    """No 5xx, and no refusal that repeats thousands of characters."""
    body = copy.deepcopy(NESTED[route])
    assert server.post(route, body).status == 200
    wrong = []
    for holder, key in places(body):
        good = holder[key]
        for value in WRONG_VALUES:
            holder[key] = value
            reply = server.post(route, body)
            if reply.status >= 500 or (reply.status != 200 and len(reply.body) > 1000):
                wrong.append(f"{key!r}: {str(value)[:20]}: {reply.status} {reply.body[:200]!r}")
        holder[key] = good
    assert wrong == []


@pytest.mark.parametrize("part", ["content", "summary"])
def test_reasoning_in_another_form_is_refused_and_not_lost(
    server: RunningServer, part: str
) -> None:
    item = {"type": "reasoning", part: "as text alone"}
    reply = server.post("/v1/responses", {"input": [item], "max_output_tokens": 1})
    assert reply.status == 400 and f"input[0].{part}" in reply.body.decode()
