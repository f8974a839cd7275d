"""Arithmetic of the corpus: sums that a child can do."""

from random import Random

from . import words as w
from .prose import is_held_out, question, sentence


def sum_of(rng: Random, held_out: bool) -> tuple[int, str, str, int]:
    while True:
        top = rng.choice([10, 20, 100, 100])
        sign = rng.choice("+++--*")
        a, b = rng.randrange(top), rng.randrange(top)
        if sign == "*":
            a, b = rng.randint(0, 12), rng.randint(0, 12)
        if sign == "-":
            a, b = max(a, b), min(a, b)
        if is_held_out(a, sign, b) == held_out:
            break
    word = {"+": "plus", "-": "minus", "*": "times"}[sign]
    return a, sign, word, b


def value(a: int, sign: str, b: int) -> int:
    return a + b if sign == "+" else a - b if sign == "-" else a * b


def word_problem(rng: Random) -> tuple[str, str, int]:
    girl = rng.random() < 0.5
    name, he = (rng.choice(w.GIRLS), "she") if girl else (rng.choice(w.BOYS), "he")
    things = rng.choice(w.COUNTABLES)
    a, b = rng.randint(2, 12), rng.randint(1, 9)
    if rng.random() < 0.5:
        return (f"{name} has {a} {things} and [gets|finds|buys] {b} more. How many {things} does {he} have [now|]?", f"{name} has {a} + {b} = {a + b} {things}.", a + b)
    a, b = max(a, b) + 1, min(a, b)
    return (f"{name} has {a} {things} and [sells|loses|gives away] {b}. How many {things} are left?", f"{a} - {b} = {a - b}, so {a - b} {things} are left.", a - b)


def document(rng: Random, held_out: bool = False) -> str:
    kind = rng.random()
    if kind < 0.15:
        ask, answer, number = word_problem(rng)
        return question(sentence(rng, ask).replace(" ?", "?"), answer if rng.random() < 0.8 else str(number))
    if kind < 0.55:
        lines = []
        for _ in range(rng.randint(1, 10)):
            a, sign, _, b = sum_of(rng, held_out)
            lines.append(f"{a} {sign} {b} = {value(a, sign, b)}")
        return "\n".join(lines)
    a, sign, word, b = sum_of(rng, held_out)
    result = value(a, sign, b)
    if kind < 0.6 and sign == "+" and result < 100:
        words = w.spell_number
        return question(f"What is {words(a)} plus {words(b)}?", sentence(rng, f"{words(a)} plus {words(b)} is {words(result)}."))
    ask = sentence(rng, rng.choice([f"[What is|What's|How much is|Calculate|Compute] {a} {word} {b}?", f"What is {a} {sign} {b}?", f"{a} {sign} {b} = ?", f"{a} {sign} {b}", f"How much is {a} {sign} {b}?"]))
    return question(ask, rng.choice([f"{a} {word} {b} is {result}.", f"{a} {sign} {b} = {result}", f"{result}", f"It is {result}.", f"{a} {word} {b} is {result}."]))
