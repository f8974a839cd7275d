"""What a server says of an answer that is looked into, and of the same work in several arms: without times.

    mpirun ... python -m support.looks SETTINGS RESULT

writes the JSON of `looks` for an engine with SETTINGS, which are JSON of `EngineConfig`, into a file.
"""

import json
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from pellucid.engine import LLMEngine
from pellucid.inputs.config import EngineConfig
from support.http_server import HttpReply, running_server
from support.replies import without

BODY = {
    "prompt": "Once upon a time, Mira went to the market. Mira had a small red key. " * 3,
    "max_tokens": 6,
    "temperature": 0.8,
    "seed": 3,
    "ignore_eos": True,
    "return_token_ids": True,
}
COMPARISONS = (
    {"kind": "cache"},
    {"kind": "kv_dtype"},
    {"kind": "batch", "batch": 2},
    {"kind": "drafts", "drafter": "ngram"},
)


def looks(engine: LLMEngine) -> dict[str, Any]:
    """Replies by what was asked. Comparisons run between looks: the engine's own blocks stay."""
    found: dict[str, Any] = {}
    with running_server(engine) as server:
        answer = server.post("/v1/completions", BODY).json
        found["token_ids"] = answer["choices"][0]["token_ids"]
        name = answer["id"].removeprefix("cmpl-")
        for number, comparison in enumerate(COMPARISONS):
            asked = {"prompt": BODY["prompt"], "max_tokens": 6, "seed": 3, "runs": 1}
            reply = server.post("/v1/compare", {**asked, **comparison})
            assert reply.status == 200 and reply.events[-1]["ev"] == "cmp.end", reply.body
            found[f"compare {comparison}"] = without_times(reply.events)
            for query in (f"layer={number}", f"layer={5 - number}&head=2&numbers=1"):
                path = f"{number + 50}?top=4096&{query}"
                found[f"attn {path}"] = _checked(server.get(f"/v1/attn/{name}/{path}"))
        found["logits"] = _checked(server.get(f"/v1/logits/{name}/52?logits=1"))
    return found


def _checked(reply: HttpReply) -> Any:
    assert reply.status == 200, reply.body
    return without_times(reply.json)


def without_times(value: Any) -> Any:
    """JSON without times and random names."""
    names = ("us_per_tok", "run", "req")
    return without(value, lambda name: name.endswith("_us") or name in names)


if __name__ == "__main__":
    with closing(LLMEngine.from_config(EngineConfig(**json.loads(sys.argv[1])))) as made:
        Path(sys.argv[2]).write_text(json.dumps(looks(made)))
