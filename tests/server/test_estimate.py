"""/v1/estimate: the loaded model on this machine, known shapes, and what is refused."""

from support.http_server import RunningServer


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


def test_known_shapes_and_refusals(server: RunningServer) -> None:
    query = "shape=qwen2.5-0.5b&machine=h100-80g&quantization=int4&kv_cache_dtype=int8"
    found = server.get(f"/v1/estimate?{query}").json
    assert "qwen2.5-0.5b" in found["shapes"] and found["machine"]["provenance"] == "E"
    for query, name in (
        ("shape=nobody", "shape"),
        ("machine=abacus", "machine"),
        ("batch=0", "batch"),
        ("batch=1.5", "batch"),
        ("acceptance=nan", "acceptance"),
        ("quantization=int3", "quantization"),
        ("prompts=3", "prompts"),
    ):
        reply = server.get(f"/v1/estimate?machine=h100-80g&{query}")
        assert reply.status == 400 and name in reply.json["error"]["message"], query
