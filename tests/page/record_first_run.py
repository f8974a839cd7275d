"""Records the run that plays on a page where nothing has been generated yet: traces/first_run.json.

python tests/page/record_first_run.py MODEL        a model to which the prompt means something: SmolLM2's GGUF file
"""

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from pellucid.engine import LLMEngine
from pellucid.inputs.config import EngineConfig
from pellucid.observing.event_recording import event_line
from pellucid.observing.events import EventRecord, Level
from pellucid.observing.page_files import WEB_FOLDER
from support.http_server import running_server

PROMPT = "The Eiffel Tower stands in the city of"
NUM_TOKENS = 15
BLOCK_TOKENS = 16
CANDIDATES_KEPT, READ_KEPT = 4, 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a checkpoint or a GGUF file")
    parser.add_argument("--name", default="SmolLM2 135M", help="as people know it")
    args = parser.parse_args()
    engine = LLMEngine.from_config(
        EngineConfig(model=args.model, block_size=BLOCK_TOKENS, speculation="off")
    )
    events: list[dict[str, Any]] = []

    def note(record: EventRecord) -> None:
        events.append(json.loads(event_line(record.as_dict())))

    with running_server(engine) as server:
        body = {
            "model": "tested",
            "prompt": PROMPT,
            "max_tokens": NUM_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
        }
        server.post("/v1/completions", body)  # the file's pages are in memory after this one
        engine.events.subscribe(note, Level.TOKEN)
        server.post("/v1/completions", {**body, "cache_salt": "recorded"})
        server.wait_until_idle()
        tokens = [event for event in events if event["ev"] == "tok"]
        steps = {event["step"]: event for event in events if event["ev"] == "step"}
        looks = [
            server.get(f"/v1/attn/{each['req']}/{each['pos'] - 1}?top={READ_KEPT}").json
            for each in tokens
        ]
    added = next(event for event in events if event["ev"] == "req.add")
    recorded = {
        "model": args.name,
        "block_tok": BLOCK_TOKENS,
        "prompt": [engine.tokenizer.decode([each]) for each in added["prompt_ids"]],
        "tokens": [
            _token(token, look, steps[token["step"]])
            for token, look in zip(tokens, looks, strict=True)
        ],
    }
    text = json.dumps(recorded, separators=(",", ":"), ensure_ascii=False)
    (WEB_FOLDER / "traces/first_run.json").write_text(text + "\n", encoding="utf-8")
    print(
        f"{len(text)} bytes:",
        "".join(recorded["prompt"]),
        "".join(each["text"] for each in recorded["tokens"]),
    )


def _token(token: dict[str, Any], look: dict[str, Any], step: dict[str, Any]) -> dict[str, Any]:
    """What is shown of a token.

    Its step's forward pass took `us`; `read` has the positions that it read most, but for the first one, and their
    weights.
    """
    return {
        "text": token["text"],
        "us": step["fwd_us"],
        "cand": [
            [text, round(math.exp(lp), 4)] for _, text, lp, _ in token["cand"][:CANDIDATES_KEPT]
        ],
        "read": [[position, round(weight, 4)] for position, _, _, weight in look["top"]],
    }


if __name__ == "__main__":
    main()
