"""Looking at one token, at a block and at the prefix tree over HTTP."""

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from support.api_keys import ADMIN_KEY, KEYS, OTHER_KEY, USER_KEY
from support.bundled import bundled_engine
from support.http_server import HttpReply, RunningServer, running_server

USER, OTHER, ADMIN = ({"x-api-key": key} for key in (USER_KEY, OTHER_KEY, ADMIN_KEY))
BODY = {
    "prompt": "Once upon a time, Mira went to the market. Mira had a small red key. " * 4,
    "max_tokens": 24,
    "temperature": 0.8,
    "top_p": 0.9,
    "presence_penalty": 0.4,
    "seed": 3,
    "n": 2,
    "logprobs": 3,
    "ignore_eos": True,
    "return_token_ids": True,
}


@pytest.fixture(scope="module")
def inspected() -> Iterator[RunningServer]:
    with running_server(bundled_engine(), api_keys=KEYS) as server:
        yield server


@pytest.fixture(scope="module")
def reply(inspected: RunningServer) -> Any:
    answered = inspected.call("POST", "/v1/completions", BODY, USER)
    assert answered.status == 200
    return answered.json


def get(server: RunningServer, path: str, headers: dict[str, str] = USER) -> HttpReply:
    return server.call("GET", path, None, headers)


def call_id(reply: Any) -> str:
    return str(reply["id"]).removeprefix("cmpl-")


def test_candidates_are_those_of_the_step_and_the_funnel_can_be_redrawn(
    inspected: RunningServer, reply: Any
) -> None:
    name = call_id(reply)
    tokens = inspected.post("/tokenize", {"prompt": BODY["prompt"]}, x_api_key=USER_KEY).json
    num_prompt = tokens["count"]
    for index, choice in enumerate(reply["choices"]):
        for offset in (0, 5, 23):
            position = num_prompt + offset
            seen = get(inspected, f"/v1/logits/{name}/{index}/{position}?top=200&logits=1").json
            assert (seen["req"], seen["pos"]) == (f"{name}/{index}", position)
            assert seen["recomputed"]["dur_us"] > 0
            assert seen["id"] == seen["drawn"] == choice["token_ids"][offset]
            assert seen["prompt_tok"] == num_prompt
            logits = np.frombuffer(base64.b64decode(seen["logits_f32"]), "<f4").astype(np.float64)
            assert len(logits) == seen["vocab"] == inspected.engine.model_config.vocab_size
            # The log-probability that the answer came with is of the same logits.
            logprob = choice["logprobs"]["token_logprobs"][offset]
            own = logits[seen["id"]] - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
            assert np.isclose(own, logprob, rtol=1e-6)
            penalised = logits.copy()
            for token_id, _ in seen["output_counts"]:
                penalised[token_id] -= BODY["presence_penalty"]
            weights = np.exp((penalised - penalised.max()) / BODY["temperature"])
            order = np.argsort(-weights, kind="stable")
            mass = np.cumsum(weights[order]) / weights.sum()
            kept = int(np.searchsorted(mass, BODY["top_p"])) + 1
            stages = {stage["stage"]: stage for stage in seen["stages"]}
            assert list(stages) == ["logits", "presence_penalty", "temperature", "top_p"]
            assert stages["top_p"]["kept"] == kept
            assert np.isclose(stages["top_p"]["mass_frac"], mass[kept - 1], atol=1e-6)
            assert stages["top_p"]["cand"][0][0] == order[0]
            assert sum(each[3] for each in stages["top_p"]["cand"]) <= 1 + 1e-9


def test_attention_adds_up_and_is_the_kernels_own(inspected: RunningServer, reply: Any) -> None:
    name, position = call_id(reply), 20
    for query in ("", "?layer=1", "?layer=0&head=2&top=4096"):
        seen = get(inspected, f"/v1/attn/{name}/{position}{query}").json
        total = seen["sink"] + seen["other"] + sum(weight for *_, weight in seen["top"])
        assert np.isclose(total, 1, rtol=1e-9)
        assert np.isclose(sum(seen["blocks"]), 1, rtol=1e-9)
        assert all(at <= position for at, *_ in seen["top"])
        assert seen["output_error_frac"] < 0.02 and seen["recomputed"]["dur_us"] > 0
    assert seen["other"] == pytest.approx(0, abs=1e-12) and len(seen["top"]) == position


def test_the_numbers_of_a_head_give_its_weights(inspected: RunningServer, reply: Any) -> None:
    path = f"/v1/attn/{call_id(reply)}/40?top=4096&numbers=1"
    config = inspected.engine.model_config.layers[1].attention
    for head in (0, config.num_heads - 1):
        seen = get(inspected, f"{path}&layer=1&head={head}").json
        query, keys, values = (np.array(seen[name]) for name in ("query", "keys", "values"))
        assert keys.shape == values.shape == (41, config.head_dim)
        weights = np.exp(seen["scale"] * keys @ query)
        told = {0: seen["sink"]} | {at: weight for at, *_, weight in seen["top"]}
        expected = [told[at] for at in range(41)]
        assert np.allclose(weights / weights.sum(), expected, rtol=1e-3, atol=1e-6)
    for wrong in ("numbers=2&layer=0&head=0", "numbers=1&layer=0", "numbers=1&head=0"):
        answered = get(inspected, f"/v1/attn/{call_id(reply)}/9?{wrong}")
        assert (answered.status, answered.json["error"]["param"]) == (400, "numbers")


def test_blocks_and_tree_are_for_admins(inspected: RunningServer, reply: Any) -> None:
    tree = get(inspected, "/v1/kv/tree", ADMIN).json
    first = next(node for node in tree["nodes"] if node["index"] == 0)
    assert first["parent"] is None and first["refs"] == 0
    children = [node for node in tree["nodes"] if node["parent"] == first["block"]]
    assert [node["index"] for node in children] == [1]
    block = get(inspected, f"/v1/kv/blocks/{first['block']}?layer=1&head=0", ADMIN).json
    assert block["ids"] == first["ids"] and block["filled_tok"] == block["block_tok"] == 32
    others = [
        get(inspected, f"/v1/kv/blocks/{first['block']}{query}", ADMIN).json
        for query in ("?layer=1", "?layer=1&head=1", "")
    ]
    assert others[0] == block  # the first head
    assert [(each["layer"], each["head"]) for each in others] == [(1, 0), (1, 1), (0, 0)]
    assert len({str(each["k"]) for each in others}) == 3
    k = np.array(block["k"])
    assert k.shape == (32, block["head_dim"])
    for side in ("k", "v"):
        errors = [block[bits][side]["rms_error_frac"] for bits in ("int8", "int4")]
        assert 0 < errors[0] < 0.02 < errors[1] < 0.2
    empty = get(inspected, "/v1/kv/blocks/200", ADMIN).json
    assert (empty["filled_tok"], empty["k"], empty["int4"]["v"]["max_error"]) == (0, [], 0.0)
    for path in ("/v1/kv/tree", "/v1/kv/blocks/0"):
        assert get(inspected, path).status == 403
    for path in ("/v1/kv/blocks/x", "/v1/kv/blocks/9999999", "/v1/kv/blocks/0?layer=99"):
        assert get(inspected, path, ADMIN).status == 400


def test_a_caller_sees_its_own_requests(inspected: RunningServer, reply: Any) -> None:
    name = reply["id"]
    for kind in ("logits", "attn"):
        for headers, status in ((USER, 200), (ADMIN, 200), (OTHER, 404), ({}, 401)):
            assert get(inspected, f"/v1/{kind}/{name}/9", headers).status == status
        for wrong, status in (
            (f"{name}/9999", 400),
            (f"{name}/x", 400),
            (f"{name}/7/9", 404),
            (f"{'0' * 24}/9", 404),
            ("nobody/9", 404),
        ):
            assert get(inspected, f"/v1/{kind}/{wrong}").status == status, wrong
    inspected.wait_until_idle()


@pytest.mark.parametrize(("kind", "default", "most"), [("logits", 20, 200), ("attn", 16, 4096)])
def test_how_many_are_shown_has_a_default_and_a_limit(
    inspected: RunningServer, reply: Any, kind: str, default: int, most: int
) -> None:
    path = f"/v1/{kind}/{reply['id']}/40"
    found = [get(inspected, each).json for each in (path, f"{path}?top={default}")]
    for each in found:
        del each["recomputed"]
    assert found[0] == found[1]
    for top, status in ((0, 400), (1, 200), (most, 200), (most + 1, 400)):
        assert get(inspected, f"{path}?top={top}").status == status, top
