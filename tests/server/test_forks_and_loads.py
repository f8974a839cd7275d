"""/v1/page/fork shares blocks and copies one at most; /v1/load asks this engine and tells what became of it."""

from typing import Any

import pytest

from pellucid.inputs.sampling_params import SamplingParams
from pellucid.observing.events import BlockOps, Level
from support.bundled import bundled_engine
from support.fake_model import fake_engine
from support.http_server import RunningServer, running_server

BODY = {"max_tokens": 60, "temperature": 0, "ignore_eos": True}


@pytest.mark.parametrize(("position", "num_copies"), [(37, 1), (32, 0), (45, 1)])
def test_a_fork_of_a_running_request_copies_the_block_in_which_they_part(
    position: int, num_copies: int
) -> None:
    prompt, other = [1, 2, 3] * 12, 9
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    engine = fake_engine(block_size=16)
    rows: list[tuple[Any, ...]] = []
    engine.events.subscribe(
        lambda record: rows.extend(record.event.ops if isinstance(record.event, BlockOps) else ()),
        Level.STEP,
    )
    parent = engine.add_request(prompt, params, "parent")
    while len(parent.outputs[0].token_ids) < 12:
        engine.step()
    text = [*prompt, *parent.outputs[0].token_ids]
    forked = engine.add_prepared(
        engine.prepare([*text[:position], other], params),
        "fork",
        continues=("parent/0", position),
    )
    engine.scheduler.check_integrity()
    while engine.has_unfinished_requests:
        engine.step()
        engine.scheduler.check_integrity()
    assert [op for op, *_ in rows].count("C") == num_copies
    assert forked.num_cached_tokens == position
    # Each got what it gets alone.
    for output, own in ((parent, prompt), (forked, [*text[:position], other])):
        alone = fake_engine(block_size=16)
        expected = alone.add_request(own, params)
        while alone.has_unfinished_requests:
            alone.step()
        assert output.outputs[0].token_ids == expected.outputs[0].token_ids


def test_another_text_or_salt_is_never_shared() -> None:
    engine = fake_engine(block_size=16)
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    parent = engine.add_request([1] * 40, params, "parent", cache_salt="own")
    while len(parent.outputs[0].token_ids) < 3:
        engine.step()
    for name, prompt, salt in (("text", [1] * 30 + [2] * 9, "own"), ("salt", [1] * 38, None)):
        prepared = engine.prepare(prompt, params)
        output = engine.add_prepared(
            prepared, name, cache_salt=salt, continues=("parent/0", len(prompt) - 1)
        )
        engine.step()
        assert output.num_cached_tokens == (16 if name == "text" else 0)
    while engine.has_unfinished_requests:
        engine.step()


@pytest.fixture(scope="module")
def bundled() -> Any:
    with running_server(bundled_engine()) as server:
        yield server


def explains(server: RunningServer, event: Any) -> bool:
    """Whether the name of a request in a frame is that of a completion that the server remembers."""
    found = server.get(f"/v1/explain/{event['req'].partition('/')[0]}").json
    return event["req"] in found.get("completions", ())


def test_a_finished_request_is_continued_from_any_position(bundled: RunningServer) -> None:
    body = {**BODY, "prompt": "Once upon a time, " * 10, "return_token_ids": True}
    reply = bundled.post("/v1/completions", body).json
    (choice,) = reply["choices"]
    prompt = bundled.post("/tokenize", {"prompt": body["prompt"]}).json["tokens"]
    text = [*prompt, *choice["token_ids"]]
    position, other = len(prompt) + 30, 77
    asked = {"req": reply["id"], "position": position, "token_id": other, "max_tokens": 12}
    begin, *tokens, end = bundled.post("/v1/page/fork", asked).events
    assert (begin["ev"], begin["pos"], begin["id"]) == ("fork", position, other)
    assert end["ev"] == "fork.end" and end["n_tok"] == 12 and explains(bundled, end)
    assert end["cached_tok"] == position // 32 * 32
    ids = [token_id for event in tokens for token_id in event["ids"]]
    again = {
        **BODY,
        "prompt": [*text[:position], other],
        "max_tokens": 12,
        "return_token_ids": True,
    }
    direct = bundled.post("/v1/completions", again).json["choices"][0]
    assert ids == direct["token_ids"] and end["text"] == direct["text"]


def test_a_fork_leaves_room_for_a_token() -> None:
    with running_server(fake_engine(context_length=64)) as server:
        body = {**BODY, "prompt": [1, 2, 3], "max_tokens": 61}
        asked = {"req": server.post("/v1/completions", body).json["id"], "token_id": 5}
        refused = server.post("/v1/page/fork", {**asked, "position": 63})
        assert refused.status == 400 and "leaves no room" in refused.json["error"]["message"]
        assert server.post("/v1/page/fork", {**asked, "position": 62}).events[-1]["n_tok"] == 1
        server.wait_until_idle()


def test_a_load_in_both_disciplines_on_the_same_arrivals(bundled: RunningServer) -> None:
    body = {
        "num_requests": 8,
        "rate": 200.0,
        "prompt_tokens": "10-40",
        "output_tokens": "4-16",
        "prefix_tokens": 40,
        "static_batch": 4,
        "ttft_slo": 60,
        "seed": 5,
    }
    arrivals = []
    for discipline in ("continuous", "static"):
        reply = bundled.post("/v1/load", {**body, "discipline": discipline})
        begin, *events, end = reply.events
        assert end["ev"] == "load.end" and explains(bundled, events[-1]), end
        assert (end["completed"], end["failures"], end["good"]) == (8, {}, 8)
        assert end["output_tok"] == sum(
            request["num_output_tokens"] for request in begin["requests"]
        )
        arrivals.append(begin["requests"])
        states: dict[int, list[str]] = {}
        for event in events:
            states.setdefault(event["index"], []).append(event["state"])
        assert all(own == ["sent", "first", "done"] for own in states.values())
        assert all(
            event["at_us"] >= event["due_us"] for event in events if event["state"] == "sent"
        )
        if discipline == "static":  # nobody of the second batch before all of the first have left
            assert end["cached_tok"] > 0  # the second batch finds the shared prefix
            order = [(event["index"], event["state"]) for event in events]
            last = max(order.index((index, "done")) for index in range(4))
            assert all(order.index((index, "sent")) > last for index in range(4, 8))
    assert arrivals[0] == arrivals[1]
    bundled.wait_until_idle()


def test_a_load_ends_with_its_connection_and_is_alone(bundled: RunningServer) -> None:
    with bundled.open_call("/v1/load", {"num_requests": 100, "output_tokens": "1500"}):
        bundled.wait_until(lambda: bundled.service.under_way, "a request of the load")
        assert bundled.post("/v1/load", {}).status == 429
    bundled.wait_until_idle()


def test_a_load_with_prompts_of_the_longest_length_is_no_longer_than_allowed() -> None:
    with running_server(fake_engine(context_length=8192)) as server:
        body = {"num_requests": 1, "prefix_tokens": 96, "output_tokens": "1"}
        allowed = server.post("/v1/load", {**body, "prompt_tokens": "4000"})
        assert allowed.events[-1]["completed"] == 1
        refused = server.post("/v1/load", {**body, "prompt_tokens": "4001"})
        assert refused.status == 400 and "at most 4096 are" in refused.json["error"]["message"]
