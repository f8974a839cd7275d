"""/v1/estimate: the loaded model on this machine, known shapes, and what is refused."""

import pytest

from pellucid.server.page import estimate_routes
from pellucid.shapes import SHAPES
from support.bundled import bundled_engine
from support.http_server import RunningServer, running_server
from support.tiny_shape import TINY_SHAPE


def test_the_loaded_model_on_this_machine(server: RunningServer) -> None:
    found = server.get("/v1/estimate?prompt=100&output=28&batch=4").json
    numbers = {number["name"]: number for number in found["numbers"]}
    plan = server.engine.memory_plan
    assert found["model"] == "tested" and found["machine"]["provenance"] == "M"
    # What the formula says of a block is what the pool allocates.
    formula = numbers["kv_bytes_per_request"]["inputs"]
    assert formula["block_bytes"] == plan.bytes_per_block
    assert formula["by_formula"] == 127 * plan.bytes_per_block / server.engine.config.block_size
    assert numbers["kv_blocks"]["value"] == plan.num_blocks
    assert numbers["requests_that_fit"]["value"] == server.engine.plan.num_requests(127)
    assert numbers["bandwidth"]["provenance"] == "M" and numbers["bandwidth"]["value"] > 1e8
    again = server.get("/v1/estimate").json
    assert again["machine"] == found["machine"]  # measured once


def test_limits_of_the_engine_are_those_of_its_model_on_its_machine() -> None:
    given = "bandwidth=1&flops=1&memory_bytes=1e18"  # nothing is measured
    with running_server(bundled_engine(max_model_len=160, num_kv_blocks=11)) as server:
        for query, longest in (
            (given, 160),
            (f"{given}&quantization=int8", 160),
            ("machine=h100-80g", 2048),
            ("shape=qwen2.5-0.5b", 32_768),
        ):
            numbers = server.get(f"/v1/estimate?{query}").json["numbers"]
            found = {number["name"]: number["value"] for number in numbers}
            assert found["longest_context"] == longest, query


def test_known_shapes(server: RunningServer) -> None:
    query = "shape=qwen2.5-0.5b&machine=h100-80g&quantization=int4&kv_cache_dtype=int8"
    found = server.get(f"/v1/estimate?{query}").json
    assert "qwen2.5-0.5b" in found["shapes"] and found["machine"]["provenance"] == "E"


def test_what_this_machine_has_measured_is_said_of_this_machine_alone(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(
        estimate_routes, "speed_of_this_machine", lambda model: asked.append(model.name)
    )
    server.get("/v1/estimate?machine=h100-80g")
    assert asked == []
    server.get("/v1/estimate")
    assert asked == ["tested"]


DEFAULTS = {
    "prompt": (512, 1, 1 << 24),
    "output": (128, 1, 1 << 24),
    "batch": (1, 1, 1 << 20),
    "price_per_hour": (0, 0, 1e9),
    "acceptance": (0.7, 0, 1),
    "num_drafts": (0, 0, 64),
    "draft_cost": (0.05, 0, 100),
    "verify_cost": (1, 1e-6, 100),
}


def test_what_is_left_out_has_its_default_and_what_is_given_has_limits(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SHAPES, "tiny", TINY_SHAPE)  # type: ignore[call-overload]
    path = "/v1/estimate?shape=tiny&machine=h100-80g"
    given = "".join(f"&{name}={default}" for name, (default, *_) in DEFAULTS.items())
    assert server.get(path + given).json == server.get(path).json
    for name, (_, low, high) in DEFAULTS.items():
        for value, status in ((low, 200), (high, 200), (low - 1, 400), (high + 1, 400)):
            whole = f"{value:.0f}" if value == round(value) else value
            assert server.get(f"{path}&{name}={whole}").status == status, (name, value)
    limits = "&bandwidth=1&flops=1&memory_bytes=1e18"
    assert server.get(f"/v1/estimate?shape=tiny{limits}").json["machine"] == {
        "name": "given",
        "provenance": "E",
        "bandwidth_bytes_per_second": 1.0,
        "flops_per_second": 1.0,
        "source": "",
        "memory_bytes": 1e18,
    }
