"""One endless, seeded stream of documents."""

import re
from collections.abc import Iterator
from random import Random

from . import arithmetic, dialogues, engine_lesson, facts, recall, stories, things

# Shares of documents, not of tokens: stories and recall are several times longer than facts and sums.
KINDS = {"story": 20, "fact": 20, "thing": 6, "dialogue": 22, "arithmetic": 14, "lesson": 12, "recall": 14}

SINGLE_EXCHANGE = re.compile(r"<\|user\|>([^<]*)<\|end_of_turn\|><\|assistant\|>([^<]*)<\|end_of_turn\|>")

USER_TURN = re.compile(r"(?<=<\|user\|>)[^<]{1,60}(?=<\|end_of_turn\|>)")


def as_typed(rng: Random, text: str) -> str:
    """People leave out capitals and full stops."""
    if rng.random() < 0.12:
        text = text[0].lower() + text[1:]
    if rng.random() < 0.12:
        text = text.rstrip("?.")
    return text


def document(kind: str, rng: Random, held_out: bool, longest_recall: int) -> str:
    if kind == "story":
        return stories.story(rng, held_out).text
    if kind == "drill":
        return recall.drill(rng)
    if kind == "recall":
        return recall.document(rng, held_out, longest_recall)
    module = {"fact": facts, "dialogue": dialogues, "thing": things, "arithmetic": arithmetic, "lesson": engine_lesson}[kind]
    return module.document(rng, held_out)


def documents(seed: int, held_out: bool = False, longest_recall: int = 1600, drills: int = 0) -> Iterator[tuple[str, str]]:
    """Yields (kind, text). `longest_recall` bounds the distance, in characters, over which recall is trained; `drills` is
    the share of copying drills beside the kinds above."""
    rng = Random(f"{seed}/{held_out}")
    while True:
        kind = rng.choices([*KINDS, "drill"], [*KINDS.values(), drills])[0]
        text = document(kind, rng, held_out, longest_recall)
        text = USER_TURN.sub(lambda turn: as_typed(rng, turn.group()), text)
        yield kind, without_roles(text) if rng.random() < 0.12 else text


def without_roles(text: str) -> str:
    """A single exchange as plain text, for those who type a question without a chat template."""
    match = SINGLE_EXCHANGE.fullmatch(text)
    return "\n\n".join(match.groups()) if match else text
