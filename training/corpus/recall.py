"""Recall tasks: lists, passphrases and copies that the text asks for much later."""

from collections.abc import Iterator
from itertools import pairwise
from random import Random
from typing import NamedTuple

from . import engine_lesson, facts, stories
from . import words as w
from .prose import chat, listing, sentence

SYLLABLES = "ba ko ri me tu fa sel dor vin pa lu ne zo gra mi tel ka shi ro ven al du pim or ce ja wo xi que bo".split()

ALL_WORDS = [*w.GIRLS, *w.BOYS, *w.TOWNS, *w.THINGS, *w.FOODS, *w.COLOURS, *w.TRADES, *w.ANIMALS, *w.COUNTABLES, *w.FEELINGS, *w.NUMBERS, *facts.CAPITALS, *facts.CAPITALS.values()]


class Recall(NamedTuple):
    """`prompt` ends where the answer must come; `tail` closes the document."""

    prompt: str
    answer: str
    tail: str = ""

    def aligned(self) -> "Recall":
        """The space before an answer belongs to the answer's first token."""
        stripped = self.prompt.rstrip(" ")
        return Recall(stripped, self.prompt[len(stripped) :] + self.answer, self.tail)


def made_up(rng: Random) -> str:
    return "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(2, 3)))


def code(rng: Random) -> str:
    kind = rng.random()
    if kind < 0.35:
        return rng.choice(w.COMMON)
    if kind < 0.6:
        return made_up(rng)
    if kind < 0.8:
        return str(rng.randint(10, 9999))
    if kind < 0.9:
        return f"{rng.choice(w.COMMON)}-{rng.randint(1, 99)}"
    return f"{rng.choice(w.COMMON)} {rng.choice(w.COMMON)}"


def filler(rng: Random, held_out: bool) -> Iterator[str]:
    while True:
        kind = rng.random()
        if kind < 0.5:
            yield from stories.story(rng, held_out).text.replace("\n\n", " ").split(". ")
        elif kind < 0.75:
            yield engine_lesson.explanation(rng, rng.choice(list(engine_lesson.TOPICS)))
        else:
            yield sentence(rng, facts.small_fact(rng)[0])


def filler_text(rng: Random, characters: int, held_out: bool) -> str:
    pieces: list[str] = []
    for piece in filler(rng, held_out):
        if characters <= 0:
            return " ".join(pieces)
        pieces.append(piece if piece.endswith((".", "!", "?", "”")) else piece + ".")
        characters -= len(pieces[-1])
    raise AssertionError("filler never ends")


def passphrase(rng: Random, characters: int, held_out: bool = False) -> Recall:
    secret, (before, after) = code(rng), ((0.1, 0.9) if rng.random() < 0.5 else (0.4, 0.6))
    noun = rng.choice(["secret word", "password", "passphrase", "magic word", "code word"])
    tell = sentence(rng, f"[Remember this: |Important: |]the {noun} is “{secret}”.")
    text = " ".join(filter(None, [filler_text(rng, int(characters * before), held_out), tell, filler_text(rng, int(characters * after), held_out)]))
    if rng.random() < 0.35:
        return Recall(f"{text} The {noun} is “", secret, "”.")
    ask = rng.choice([f"What is the {noun}?", f"What was the {noun}?", f"Do you remember the {noun}?", f"Tell me the {noun}."])
    begin = rng.choice(["", f"The {noun} is ", f"The {noun} is "])
    end = "." if begin else ""
    if rng.random() < 0.3 and characters < 1500:
        reply = rng.choice(["I will remember it.", "All right.", "Understood."])
        return Recall(chat(("user", text), ("assistant", reply), ("user", ask)) + f"<|assistant|>{begin}", secret, f"{end}<|end_of_turn|>")
    return Recall(chat(("user", f"{text} {ask}")) + f"<|assistant|>{begin}", secret, f"{end}<|end_of_turn|>")


def key_value(rng: Random, characters: int, held_out: bool = False) -> Recall:
    entries = max(2, characters // 16)
    style = rng.random()
    keys = w.GIRLS + w.BOYS if style < 0.3 else w.COMMON if style < 0.6 else w.TOWNS + w.THINGS if style < 0.75 else [str(n) for n in range(1, 200)]
    keys = rng.sample(keys, min(entries, len(keys)))
    pairs = {key: code(rng) for key in keys}
    joint, line_end = rng.choice([(": ", "\n"), (" = ", "\n"), (" -> ", "\n"), (" has ", ". "), (": ", ", ")])
    text = line_end.join(f"{key}{joint}{value}" for key, value in pairs.items())
    asked = rng.sample(keys, min(len(keys), rng.choice([1, 2, 4, 8])))
    if rng.random() < 0.5:
        shown = "".join(f"{key}{joint}{pairs[key]}{line_end}" for key in asked[:-1])
        return Recall(f"{text}{line_end.rstrip(' ')}\n{shown}{asked[-1]}{joint}".rstrip(" "), " " + pairs[asked[-1]] if joint.endswith(" ") else pairs[asked[-1]])
    turns = [("user", f"{text}\n\nWhat belongs to {asked[0]}?")]
    for key, following in pairwise(asked):
        turns += [("assistant", f"{pairs[key]}"), ("user", rng.choice([f"And {following}?", f"What belongs to {following}?"]))]
    return Recall(chat(*turns) + "<|assistant|>", pairs[asked[-1]], "<|end_of_turn|>")


def any_word(rng: Random) -> str:
    kind = rng.random()
    if kind < 0.25:
        return rng.choice(ALL_WORDS)
    if kind < 0.55:
        return code(rng)
    letters = "".join(rng.choice("aeiou" if i % 2 else "bcdfghjklmnpqrstvwxyz") for i in range(rng.randint(2, 7)))
    return letters.capitalize() if kind < 0.75 else letters


def drill(rng: Random) -> str:
    """The same row of unrelated words two or three times: the shortest way to learn to copy."""
    words = [any_word(rng) for _ in range(rng.randint(3, 40))]
    joint, between = rng.choice([" ", ", ", "\n", " "]), rng.choice(["\n\n", "\n", " ", ". "])
    return between.join([joint.join(words)] * rng.choice([2, 2, 3]))


def copy(rng: Random, characters: int, held_out: bool = False) -> Recall:
    style = rng.random()
    if style < 0.35:
        text = filler_text(rng, characters, held_out)
    elif style < 0.7:
        text = " ".join(code(rng) for _ in range(max(1, characters // 7)))
    else:
        text = listing([code(rng) for _ in range(max(1, characters // 7))])
    if rng.random() < 0.6:
        ask = rng.choice(["Copy the following text: ", "Repeat after me: ", "Copy this: ", "Say this again: ", "Repeat: ", "Copy the following text.\n\n"])
        return Recall(chat(("user", ask + text)) + "<|assistant|>", text, "<|end_of_turn|>")
    return Recall(f"{text}\n\n", text)


def story_question(rng: Random, characters: int, held_out: bool = False) -> Recall:
    tale = stories.story(rng, held_out)
    questions = rng.sample(stories.QUESTIONS[tale.plot], rng.randint(1, 2))
    more = filler_text(rng, characters, held_out) if characters > 1200 else ""
    text = f"{tale.text} {more}".strip()
    asks = [(sentence(rng, ask, tale.slots), sentence(rng, full, tale.slots) if rng.random() < 0.7 else sentence(rng, brief, tale.slots)) for ask, full, brief in questions]
    if rng.random() < 0.4:
        lines = [f"Question: {ask}\nAnswer: {answer}" for ask, answer in asks]
        return Recall(text + "\n\n" + "\n".join(lines)[: -len(asks[-1][1])], asks[-1][1])
    lead = rng.choice(["Read this story. ", "", "Here is a story: "])
    turns = [("user", f"{lead}{text}\n\n{asks[0][0]}")]
    for (_, answer), (following, _) in pairwise(asks):
        turns += [("assistant", answer), ("user", following)]
    return Recall(chat(*turns) + "<|assistant|>", asks[-1][1], "<|end_of_turn|>")


TASKS = {"passphrase": passphrase, "key_value": key_value, "copy": copy, "story_question": story_question}


def document(rng: Random, held_out: bool = False, longest: int = 1600) -> str:
    """`longest` is in characters; about four of them make a token, fewer in lists of made-up words."""
    task = rng.choices(list(TASKS), [30, 30, 22, 18])[0]
    characters = int(longest ** rng.uniform(0.45, 1))
    if task == "copy":
        characters //= 2
    if task == "key_value":
        characters = int(characters * 0.7)
    return "".join(TASKS[task](rng, characters, held_out))
