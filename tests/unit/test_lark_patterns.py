"""Grammars in Lark's syntax as regular expressions."""

import re

import pytest

from pellucid.text.lark_patterns import lark_pattern
from support.codex import PATCH, PATCH_GRAMMAR
from support.refusals import check_refusals


def accepts(grammar: str, text: str) -> bool:
    pattern = lark_pattern(grammar)
    assert pattern is not None
    python = re.sub(r"\\x\{([0-9a-f]+)\}", lambda match: re.escape(chr(int(match[1], 16))), pattern)
    return re.fullmatch(python, text) is not None


@pytest.mark.parametrize(
    ("grammar", "accepted", "refused"),
    [
        ('start: "a" b? | C\nb: "b"\nC: /c+/', ["a", "ab", "ccc"], ["", "b", "abc"]),
        ('start: "a"~2..3 ["b"] ("c" | "d")*', ["aa", "aaabcd"], ["a", "aaaa"]),
        ('start: "a"~2', ["aa"], ["a", "aaa"]),
        (
            '// a comment\nstart: "a"  # and another\n     | "b"i\n\n     | "c"',
            ["a", "B", "c"],
            ["A"],
        ),
        ('?start: x -> y\n!x: "(" /[a-z]/i ")"', ["(a)", "(A)"], ["(1)"]),
        ("start: INT LF\n%import common.INT\n%import common.LF", ["12\n"], ["12", "a\n"]),
        ('start: "\\"" "\\n" "é"', ['"\né'], ["é"]),
        (r"start: /a\/b/", ["a/b"], ["a"]),
        (PATCH_GRAMMAR, [PATCH, PATCH.rstrip()], [PATCH[4:], PATCH.replace("@@", "?"), ""]),
    ],
)
def test_the_same_texts(grammar: str, accepted: list[str], refused: list[str]) -> None:
    assert [text for text in accepted if not accepts(grammar, text)] == []
    assert [text for text in refused if accepts(grammar, text)] == []


@pytest.mark.parametrize(
    "grammar",
    [
        'start: "(" start ")" | "x"',
        "start: a\n%ignore /x/",
        "\n".join(['start: a0 "x"', *(f"a{n}: a{n + 1} a{n + 1}" for n in range(40)), 'a40: "y"']),
    ],
)
def test_grammars_without_a_short_pattern(grammar: str) -> None:
    assert lark_pattern(grammar) is None


def test_the_longest_pattern() -> None:
    rest = 20_000 - len(lark_pattern("start: /b/") or "") + 1
    found = [lark_pattern(f"start: /{'b' * length}/") for length in (rest, rest + 1)]
    assert [each and len(each) for each in found] == [20_000, None]


WRONG = [
    "",
    "a: b",
    "start: b",
    'start: "a',
    "start: (b",
    'start: "a" )',
    "what",
    "start: X\n%import common.X",
    'start: "\\q"',
    'start: * "a"',
    "start: " + "(" * 5000,
]


def test_what_is_no_grammar_is_said() -> None:
    check_refusals("lark", WRONG, lark_pattern)
