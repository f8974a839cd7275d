"""Small mistakes to make in a source file: in Python by its syntax tree, in C++ by patterns."""

import ast
import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple


class Change(NamedTuple):
    """Bytes `start:end` of a file, which begin on `line`, become `text`."""

    path: str
    line: int
    start: int
    end: int
    text: str

    def applied_to(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.end :]

    def lines(self) -> tuple[str, str]:
        """The changed line, or lines, before and after."""
        source = Path(self.path).read_bytes()
        first, last = source.rfind(b"\n", 0, self.start) + 1, source.find(b"\n", self.end)
        after = source[first : self.start] + self.text.encode() + source[self.end : last]
        return " ".join(source[first:last].decode().split()), " ".join(after.decode().split())


_SWAPS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "+": "-", "-": "+", "*": "//", "/": "*",
    "//": "*", "%": "//", "**": "*", "&": "|", "|": "&", "<<": ">>", ">>": "<<", "+=": "-=", "-=": "+=",
    "*=": "//=", "/=": "*=", "|=": "&=", "&=": "|=", "and": "or", "or": "and", "is": "is not", "is not": "is",
    "in": "not in", "not in": "in", "&&": "||", "||": "&&", "true": "false", "false": "true",
}  # fmt: skip
# Checks, words, and what only developers read. Python 3.11 places the parts of an f-string wrongly.
_SKIPPED = re.compile(
    rb"assert\b|import |from |f['\"]|if TYPE_CHECKING|def (__repr__|check_integrity)\b|warnings\.warn\("
    rb"|(\w+\.)*_?log(ger)?\.(debug|info|warning|error|exception|critical)\(|strict="
)
_SKIPPED_FIELDS = {"annotation", "returns", "decorator_list", "bases", "exc"}


class _Python:
    def __init__(self, source: bytes) -> None:
        self._source = source
        lines = source.splitlines(keepends=True)
        self._starts = [0, *itertools.accumulate(map(len, lines))]

    def _span(self, node: ast.AST) -> tuple[int, int]:
        starts = self._starts
        first = starts[node.lineno - 1] + node.col_offset
        return first, starts[node.end_lineno - 1] + node.end_col_offset

    def mistakes(self, node: ast.AST) -> Iterator[tuple[int, int, str]]:
        """What to write instead of which bytes, at a node and below it."""
        if hasattr(node, "lineno") and _SKIPPED.match(self._source, self._span(node)[0]):
            return
        match node:
            case (
                ast.Compare(left=a, comparators=[b, *_])
                | ast.BinOp(left=a, right=b)
                | ast.BoolOp(values=[a, b, *_])
                | ast.AugAssign(target=a, value=b)
            ):
                between = re.compile(rb"\)*\s*([^\s(\\]+(?: (?:not|in)\b)?)")
                found = between.match(self._source, self._span(a)[1], self._span(b)[0])
                if new := found and _SWAPS.get(found[1].decode()):
                    yield *found.span(1), new
            case ast.UnaryOp(ast.Not() | ast.USub() as op):
                start = self._span(node)[0]
                yield start, start + (3 if isinstance(op, ast.Not) else 1), ""
            case ast.Constant(bool(value)):
                yield *self._span(node), str(not value)
            case ast.Constant(int(value) | float(value)):
                yield *self._span(node), str(value + 1)
            case ast.Return(ast.expr() as value):
                yield *self._span(value), "None"
            case ast.If(test) | ast.IfExp(test):
                yield from ((*self._span(test), it) for it in ("True", "False"))
            case ast.While(test):
                yield *self._span(test), "False"
            case ast.comprehension(ifs=tests):
                yield from ((*self._span(test), "True") for test in tests)
            case ast.keyword():
                start, end = self._span(node)
                yield start, re.compile(rb"(\s*,)?").match(self._source, end).end(), ""
        match node:
            # A name needs its first value: nothing runs without it.
            case ast.Assign([ast.Attribute() | ast.Subscript()]) | ast.AugAssign() | ast.Delete():
                yield *self._span(node), "pass"
            case ast.Expr(ast.Call() | ast.Await()) | ast.Raise() | ast.Continue() | ast.Break():
                yield *self._span(node), "pass"
        for field, value in ast.iter_fields(node):
            if field not in _SKIPPED_FIELDS and (field, type(node)) != ("keywords", ast.ClassDef):
                for part in value if isinstance(value, list) else [value]:
                    if isinstance(part, ast.AST):
                        yield from self.mistakes(part)


# What is compared with the source has spaces for comments, words and checks.
_BLANK = re.compile(
    r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\])'|^[ \t]*#[^\n]*(?:\\\n[^\n]*)*"
    r"|\b(?:static_)?assert\(.*?\);",
    re.MULTILINE | re.DOTALL,
)
# A pattern, whose group changes, and what it becomes.
_CPP: list[tuple[str, Callable[[str], str]]] = [
    (r"(?<= )([-+*/%<>=!&|]{1,2})(?=\s)|\b(true|false)\b", lambda it: _SWAPS.get(it, it).replace("//", "/")),
    (r"(?<![\w.'])(\d+)(?=[uUlLzZ]*\b)(?![\w.']*[.'])", lambda it: str(int(it) + 1)),
    (r"\b(?:if|while) (?:constexpr )?\((.*)\) ?(?:\{|[^{}]*;)?$", lambda _: "false"),
    (r"\bif (?:constexpr )?\((.*)\) ?(?:\{|[^{}]*;)?$", lambda _: "true"),
    (r"(!)(?=[\w(])", lambda _: ""),
    (r"\breturn ([^;{}]+);", lambda _: "{}"),
    # No declaration: without it, nothing compiles.
    (r"(?<=[;{}\n])\s*^ +((?![\w:]+(?:<.*?>)?[&*]* \w|\w+:)[\w*(+-][^;{}]*;)$", lambda _: ";"),
]  # fmt: skip


def _of_cpp(source: bytes) -> Iterator[tuple[int, int, str]]:
    text = _BLANK.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), source.decode("latin-1"))
    for pattern, change in _CPP:
        for match in re.finditer(pattern, text, re.MULTILINE):
            yield *match.span(match.lastindex), change(match[match.lastindex])


def changes(path: str) -> list[Change]:
    """All changes of one file, ordered by place."""
    source = Path(path).read_bytes()
    is_python = path.endswith(".py")
    found = set(_Python(source).mistakes(ast.parse(source)) if is_python else _of_cpp(source))
    made = [Change(path, source.count(b"\n", 0, it[0]) + 1, *it) for it in found]
    return sorted(it for it in made if it.applied_to(source) != source)
