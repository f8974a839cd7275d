"""The text generator: turns `[either|or]` and `{slot}` into sentences, always from one seeded generator."""

import re
import zlib
from collections.abc import Mapping, Sequence
from random import Random

CHOICE = re.compile(r"\[([^\[\]]*)\]")
ARTICLE = re.compile(r"\b([Aa]) (?=(?:[aeioAEIO]|u(?!n?i)|un(?!i)|hour|honest))")
SENTENCE_START = re.compile(r"(^“?|[.!?]\s+“?|: “|\n“?)([a-zà-ž])")


def expand(rng: Random, template: str, slots: Mapping[str, object] | None = None) -> str:
    """Resolves choices innermost first, then slots, then `a` before a vowel and capitals after a full stop."""
    while match := CHOICE.search(template):
        choice = rng.choice(match.group(1).split("|"))
        template = template[: match.start()] + choice + template[match.end() :]
    text = template.format_map(slots) if slots else template
    return ARTICLE.sub(r"\1n ", text)


def sentence(rng: Random, template: str, slots: Mapping[str, object] | None = None) -> str:
    text = expand(rng, template, slots).strip()
    return SENTENCE_START.sub(lambda m: m.group(1) + m.group(2).upper(), text)


def listing(items: Sequence[str]) -> str:
    if len(items) < 2:
        return "".join(items)
    return ", ".join(items[:-1]) + " and " + items[-1]


def is_held_out(*parts: object) -> bool:
    """One combination in twenty is never trained on; evaluation uses only those."""
    return zlib.crc32("/".join(map(str, parts)).encode()) % 20 == 0


def chat(*turns: tuple[str, str]) -> str:
    return "".join(f"<|{role}|>{text.strip()}<|end_of_turn|>" for role, text in turns)


def question(user: str, assistant: str) -> str:
    return chat(("user", user), ("assistant", assistant))
