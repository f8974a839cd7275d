"""Changes of C++ source, by patterns: one operator, number, condition, return value or statement at a time."""

import re
from collections.abc import Iterator

from python_changes import Change

# What is compared with the source has spaces for comments, texts and checks.
_BLANK = re.compile(
    r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\])'|^[ \t]*#[^\n]*(?:\\\n[^\n]*)*"
    r"|\b(?:static_)?assert\((?:[^;]|\n)*?\);",
    re.MULTILINE | re.DOTALL,
)
_SWAPS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&",
    "+": "-", "-": "+", "*": "/", "/": "*", "%": "/", "&": "|", "|": "&", "<<": ">>", ">>": "<<",
    "+=": "-=", "-=": "+=", "*=": "/=", "/=": "*=", "|=": "&=", "&=": "|=",
}  # fmt: skip
_OPERATOR = re.compile(
    r"(?<= )(?:" + "|".join(map(re.escape, sorted(_SWAPS, reverse=True))) + r")(?=\s)"
)
_NUMBER = re.compile(r"(?<![\w.'])\d+(?=[uUlLzZ]*\b)(?![\w.']*[.'])|(?<![\w.'])\d+(?=\.\d)")
_BOOLEAN = re.compile(r"\b(?:true|false)\b")
_CONDITION = re.compile(r"\b(?:if|while) (?:constexpr )?\((.*)\) ?(?:\{|[^{}]*;)?$", re.MULTILINE)
_NOT = re.compile(r"!(?=[\w(])")
_RETURN = re.compile(r"\breturn ([^;{}]+);")
# No declaration: without it, nothing compiles.
_STATEMENT = re.compile(
    r"(?<=[;{}\n])\s*^ +((?![\w:]+(?:<.*?>)?[&*]* \w|\w+:)[\w*(+-][^;{}]*;)$", re.MULTILINE
)


def changes(source: bytes) -> list[Change]:
    """All changes of one file, ordered by place."""
    text = source.decode("ascii", errors="replace")
    text = _BLANK.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), text)

    def found() -> Iterator[tuple[re.Match[str], int, str]]:
        for match in _OPERATOR.finditer(text):
            yield match, 0, _SWAPS[match.group()]
        for match in _NUMBER.finditer(text):
            yield match, 0, str(int(match.group()) + 1)
        for match in _BOOLEAN.finditer(text):
            yield match, 0, "false" if match.group() == "true" else "true"
        for match in _CONDITION.finditer(text):
            yield match, 1, "false"
            if match.group().startswith("if"):
                yield match, 1, "true"
        for match in _NOT.finditer(text):
            yield match, 0, ""
        for match in _RETURN.finditer(text):
            yield match, 1, "{}"
        for match in _STATEMENT.finditer(text):
            yield match, 1, ";"

    return sorted(
        Change(text.count("\n", 0, match.start(group)) + 1, *match.span(group), new)
        for match, group, new in found()
    )
