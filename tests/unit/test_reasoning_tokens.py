"""Reasoning tokens and their budget: counted token by token, however texts are cut into tokens."""

from collections.abc import Sequence
from functools import reduce

import pytest

from pellucid.text.reasoning_tokens import ReasoningTokens, ThinkingBudget
from pellucid.text.responses.reasoning_marks import ReasoningMarks

PIECES = ["think", "</", "<think>", "</think>", "b</th", "ink>c"]
VOCABULARY = [piece.encode() for piece in PIECES] + [bytes([byte]) for byte in range(256)]
MARKS = ReasoningMarks(("<think>",), ("</think>",), begins_open=False)
OPEN = ReasoningMarks(("<think>",), ("</think>",), begins_open=True)


def ids(*pieces: str | bytes) -> list[int]:
    return [VOCABULARY.index(p.encode() if isinstance(p, str) else p) for p in pieces]


def encode(text: str) -> Sequence[int]:
    """The longest pieces first, as tokenizers do."""
    found = []
    data = text.encode()
    while data:
        token = max((t for t in VOCABULARY if data.startswith(t)), key=len)
        found.append(VOCABULARY.index(token))
        data = data[len(token) :]
    return found


def count(marks: ReasoningMarks, *pieces: str | bytes) -> int:
    tokens = ReasoningTokens(marks, VOCABULARY.__getitem__)
    return reduce(tokens.after, ids(*pieces), tokens.first).num_reasoning_tokens


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ((), 0),
        (("a", "a"), 0),
        (("<think>", "a", "a", "</think>", "a"), 2),
        (
            ("<think>", "a", "</think>", "a", "<think>", "a", "a"),
            3,
        ),  # several regions, the last open
        (("<", "think", ">", "a", "</", "think", ">", "a"), 1),  # texts of several tokens
        (("<think>", "</", "a", "</think>"), 2),  # the beginning of a text that never came
        (("<think>", "</", "think"), 2),  # the answer ends there
        (("<think>", "a", "b</th", "ink>c", "a"), 2),  # a token that is a part of both
    ],
)
def test_tokens_of_reasoning_are_counted(pieces: tuple[str, ...], expected: int) -> None:
    assert count(MARKS, *pieces) == expected


def test_a_prompt_may_have_begun_the_reasoning() -> None:
    assert count(OPEN, "a", "a", "</think>", "a") == 2
    assert count(OPEN, "</think>", "a") == 0


def budget(num_tokens: int, marks: ReasoningMarks = MARKS) -> ThinkingBudget:
    return ThinkingBudget.of(marks, num_tokens, VOCABULARY.__getitem__, encode)


def forced(made: ThinkingBudget, *pieces: str | bytes) -> bytes | None:
    token_id = made.forced_token(ids(*pieces))
    return None if token_id is None else VOCABULARY[token_id]


def test_the_end_is_forced_when_the_budget_is_used_up() -> None:
    made = budget(2)
    assert forced(made) is None
    assert forced(made, "<think>", "a") is None
    assert forced(made, "<think>", "a", "a") == b"</think>"
    assert forced(made, "<think>", "a", "a", "</think>") is None
    assert forced(made, "<think>", "a", "a", "</think>", "a", "<think>") == b"</think>"
    assert forced(made, "<think>", "a", "</think>", "a", "<think>") is None  # one is left
    assert forced(budget(0, OPEN)) == b"</think>"


def test_wrong_drafts_are_forgotten() -> None:
    made = budget(1)
    assert forced(made, "<think>", "a") == b"</think>"
    assert forced(made, "<think>") is None
    assert forced(made, "a", "a", "a") is None
    assert forced(made, "<think>", "a") == b"</think>"
    assert forced(made.copy()) is None


def test_an_end_that_the_model_has_begun_is_completed() -> None:
    made = budget(1)
    assert forced(made, "<think>", "a", "</") == b"think"
    assert forced(made, "<think>", "a", "</", "think") == b">"
    assert forced(made, "<think>", "</") is None  # it may be the end


def test_a_character_is_completed_first() -> None:
    made = budget(1)
    assert forced(made, "<think>", b"\xc3") is None
    assert forced(made, "<think>", b"\xc3", b"\xa9") == b"</think>"
    assert forced(made, "<think>", *[b"\xe2"] * 4) == b"</think>"  # it never will be


def test_an_end_need_not_be_ascii() -> None:
    made = budget(0, ReasoningMarks(("<think>",), ("é>",), begins_open=True))
    assert forced(made) == b"\xc3"
    assert forced(made, b"\xc3") == b"\xa9"
    assert forced(made, b"\xc3", b"\xa9") == b">"
    assert forced(made, b"\xc3", b"\xa9", ">") is None


def test_of_several_ends_the_one_of_the_fewest_tokens_is_forced() -> None:
    marks = ReasoningMarks(("<think>",), ("</a>a", "</think>"), begins_open=True)
    assert forced(budget(0, marks)) == b"</think>"
