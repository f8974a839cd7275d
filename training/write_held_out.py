"""Writes the texts of `pellucid eval-kv`, none of which was trained on: `python training/write_held_out.py`.

Continuous text without the marks of a chat, so that any model can read it; and secrets, told in the
midst of other text, that the last words ask for.
"""

import json
from itertools import islice
from pathlib import Path
from random import Random

from corpus import recall
from corpus.mixture import documents

TARGET = Path(__file__).parents[1] / "src" / "pellucid" / "assets" / "held-out.json"
SEED = 7
NUM_TEXTS, NUM_SECRETS = 40, 40
SHORTEST_TEXT, LONGEST_TEXT = 200, 4000  # characters
SHORTEST_SECRET, LONGEST_SECRET = 100, 1500
CHAT_MARK = "<|"


def held_out_texts() -> list[str]:
    found = (
        text
        for _, text in documents(SEED, held_out=True, longest_recall=3000)
        if CHAT_MARK not in text and SHORTEST_TEXT <= len(text) <= LONGEST_TEXT
    )
    return list(islice(found, NUM_TEXTS))


def secrets() -> list[dict[str, str]]:
    rng, cases = Random(SEED), []
    while len(cases) < NUM_SECRETS:
        characters = rng.randint(SHORTEST_SECRET, LONGEST_SECRET)
        case = recall.passphrase(rng, characters, held_out=True).aligned()
        if CHAT_MARK not in case.prompt:
            cases.append({"prompt": case.prompt, "answer": case.answer})
    return cases


if __name__ == "__main__":
    held_out = {"texts": held_out_texts(), "secrets": secrets()}
    TARGET.write_text(json.dumps(held_out, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
