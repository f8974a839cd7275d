"""Small mistakes to make in a source: an operator, number, condition, argument, result or statement is another one."""

import re
from typing import NamedTuple


class Change(NamedTuple):
    line: int
    before: str  # the line, and what it becomes
    after: str
    start: int  # what `text` replaces in the source
    end: int
    text: str


_SWAPS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "+": "-", "-": "+", "*": "+", "/": "*",
    "//": "*", "%": "+", "**": "*", "&": "|", "|": "&", "<<": ">>", ">>": "<<", "+=": "-=", "-=": "+=", "*=": "+=",
    "/=": "*=", "|=": "&=", "&=": "|=", "&&": "||", "||": "&&", "and": "or", "or": "and", "is": "is not",
    "is not": "is", "in": "not in", "not in": "in", "true": "false", "false": "true", "True": "False", "False": "True",
}  # fmt: skip
# Patterns, whose last group becomes one of these; no other is given where it is an operator or a number.
_BOTH = {
    r"(?<= )([-+*/%<>=!&|]{1,2}|and|or|is not|is|not in|in)(?=\s)|\b([Tt]rue|[Ff]alse)\b": (),
    r"(?<![\w.'])(\d+(?:\.\d+)?)(?=[uUlLzZfF]*\b)(?![\w.']*[.'])": (),
    r"(?<=[(\[ ])(-|!|not )(?=[\w(])(?!in )": ("",),
}
_PYTHON = _BOTH | {
    r"\breturn (?!False$|None$)(.+)$": ("None",),
    r"\bif (.+?)(?=:$| else |[\])}]*,?$)": ("True", "False"),
    r"\bwhile (.+):$": ("False",),
    r"(?<=[(, ])((?!strict=)\w+=(?![= ])[^,()]*(?:\([^()]*\))?,?)(?=$|[ )])": ("",),
    # Not the first value of a name: without it, nothing runs.
    r"^ +((?:self\.[\w.]+|[\w.]+\[.*\]) = .*|[\w.]+(?:\[.*\])? [-+*/|&]{1,2}= .*)$": ("pass",),
    r"^ +((?:await )?[\w.]+\(.*\)|raise\b.*|del .*|continue|break)$": ("pass",),
}
_BRACKETS = r"(\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))"  # with two pairs within one another in it
_CPP = _BOTH | {
    r"\breturn (?!(?:false|0|nullptr);)([^;{}]+);": ("{}",),
    rf"\bif (?:constexpr )?{_BRACKETS}": ("(true)", "(false)"),
    rf"\bwhile {_BRACKETS}": ("(false)",),
    # No declaration: without it, nothing compiles.
    r"(?<=[;{}\n])\s*^ +((?![\w:]+(?:<.*?>)?[&*]* \w|\w+:)[\w*(+-][^;{}]*;)$": (";",),
}
# What is not changed: texts; then comments, checks, words that are no operators, what only developers read, sizes
# that NumPy computes, for which any negative number stands, and sizes of arrays in C++, which may be larger.
_NOT_PYTHON = {
    r"(?:\b[rbf]{1,2})?(?:\"\"\"[\s\S]*?\"\"\"|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*')": "'",
    r"#.*|^ *(?:assert|@|from|import|class)\b.*|^ *def \w+|\bfor [\w, ()*]+ in\b|\bstrict=True": " ",
    r"^ *(?:[\w.]*_?log(?:ger)?\.\w+|warnings\.warn)\(.*|-> .*:$|\bif TYPE_CHECKING:|(?<=[\w\]] )\|(?= [\w'])": " ",
    r"\breshape\(.*?-1(?=[,)])": " ",
}
_NOT_CPP = {
    r"\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\])'": "'",
    r"//.*|/\*[\s\S]*?\*/|^[ \t]*#.*(?:\\\n.*)*|\b(?:static_)?assert\([\s\S]*?\);": " ",
    r"\balignas\(\d+\)|(?<=[\w>,] )(?<!return )\w+\[[\w /*]+\](?=;| = {|, \w+[\[{])": " ",
}


def _other(text: str) -> str:
    one_more = str((float if "." in text else int)(text) + 1) if text[0].isdigit() else text
    return _SWAPS.get(text, one_more)


def changes(path: str, source: str) -> list[Change]:
    """All changes of a file, some of which do not compile."""
    patterns, skipped = (_PYTHON, _NOT_PYTHON) if path.endswith(".py") else (_CPP, _NOT_CPP)
    text, found = source, []
    for pattern, filler in skipped.items():
        text = re.sub(pattern, lambda it: re.sub(".", filler, it[0]), text, flags=re.MULTILINE)  # noqa: B023
    for pattern, others in patterns.items():
        for match in re.finditer(pattern, text, re.MULTILINE):
            start, end = match.span(match.lastindex)
            line = source.count("\n", 0, start)
            for new in others or [_other(text[start:end])]:
                made = source[:start] + new + source[end:]
                before, after = (" ".join(it.split("\n")[line].split()) for it in (source, made))
                found.append(Change(line + 1, before, after, start, end, new))
    return [it for it in found if it.before != it.after]
