"""Small mistakes to make in a source file: in Python by its syntax tree, in C++ by patterns."""

import ast
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple


class Change(NamedTuple):
    """`source[start:end]`, which begins on `line`, becomes `text`."""

    line: int
    start: int
    end: int
    text: str

    def applied_to(self, source: str) -> str:
        return source[: self.start] + self.text + source[self.end :]


_SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
_DELETED = ast.Expr | ast.Assign | ast.AugAssign | ast.Delete | ast.Raise | ast.Continue | ast.Break
# An assert is a check itself. Python 3.11 places the parts of an f-string wrongly.
_SKIPPED = ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom
_SKIPPED_FIELDS = {"annotation", "returns", "decorator_list", "type_params", "bases"}
_LOG_CALL = re.compile(r"warnings\.warn|.*log(ger)?\.(debug|info|warning|error|exception|critical)")


def _is_skipped(node: ast.AST) -> bool:
    match node:
        case ast.FunctionDef(name="__repr__" | "check_integrity") | ast.Expr(value=ast.Constant()):
            return True
        case ast.If(test=ast.Name("TYPE_CHECKING")) | ast.Assign(targets=[ast.Name("__all__")]):
            return True
        case ast.Call(func=function):
            return _LOG_CALL.fullmatch(ast.unparse(function)) is not None
    return isinstance(node, _SKIPPED) or (isinstance(node, ast.keyword) and node.arg == "strict")


def _is_first_value(node: ast.AST) -> bool:
    """Whether a name gets a value that does not come from its earlier one: nothing runs without it."""
    if not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name | ast.Tuple)):
        return False
    names = {it.id for it in ast.walk(node.targets[0]) if isinstance(it, ast.Name)}
    return not any(isinstance(it, ast.Name) and it.id in names for it in ast.walk(node.value))


def _mistakes(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """A part of a node, and what it becomes."""
    match node:
        case ast.Compare(left, ops, right):
            for i, op in enumerate(ops):
                yield node, ast.Compare(left, [*ops[:i], _SWAPS[type(op)](), *ops[i + 1 :]], right)
        case ast.BinOp(left, op, right) if type(op) in _SWAPS:
            yield node, ast.BinOp(left, _SWAPS[type(op)](), right)
        case ast.AugAssign(target, op, value) if type(op) in _SWAPS:
            yield node, ast.AugAssign(target, _SWAPS[type(op)](), value)
        case ast.BoolOp(op, values):
            yield node, ast.BoolOp(_SWAPS[type(op)](), values)
        case ast.UnaryOp(ast.Not() | ast.USub(), operand):
            yield node, operand
        case ast.Constant(bool()):
            yield node, ast.Constant(not node.value)
        case ast.Constant(int() | float()):
            yield node, ast.Constant(node.value + 1)
        case ast.Return(ast.expr()) if ast.unparse(node.value) != "None":
            yield node.value, ast.Constant(None)
        case ast.If(test) | ast.IfExp(test):
            yield from ((test, ast.Constant(value)) for value in (True, False))
        case ast.While(test):
            yield test, ast.Constant(False)
        case ast.comprehension(ifs=tests):
            yield from ((test, ast.Constant(True)) for test in tests)
        case ast.Call(function, arguments, keywords):
            for i, keyword in enumerate(keywords):
                if keyword.arg != "strict":
                    yield node, ast.Call(function, arguments, keywords[:i] + keywords[i + 1 :])


def _nodes(node: ast.AST, in_function: bool = False) -> Iterator[tuple[ast.AST, ast.AST]]:
    """All mistakes below a node, and statements that go."""
    if _is_skipped(node):
        return
    if in_function and isinstance(node, _DELETED) and not _is_first_value(node):
        yield node, ast.Pass()
    if isinstance(node, ast.Raise):
        return  # no test needs its words
    yield from _mistakes(node)
    in_function |= isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    for field, value in ast.iter_fields(node):
        if field not in _SKIPPED_FIELDS and (field, type(node)) != ("keywords", ast.ClassDef):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _nodes(child, in_function)


def _of_python(source: str) -> Iterator[tuple[int, int, str]]:
    starts = [0]
    lines = source.splitlines(keepends=True)
    for line in lines:
        starts.append(starts[-1] + len(line))

    def place(line: int, column: int) -> int:
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    for old, new in _nodes(ast.parse(source)):
        text = ast.unparse(new)
        is_part = isinstance(new, ast.expr) and not isinstance(new, ast.Constant | ast.Name)
        end = place(old.end_lineno, old.end_col_offset)
        yield place(old.lineno, old.col_offset), end, f"({text})" if is_part else text


# What is compared with the source has spaces for comments, texts and checks.
_BLANK = re.compile(
    r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\])'|^[ \t]*#[^\n]*(?:\\\n[^\n]*)*"
    r"|\b(?:static_)?assert\((?:[^;]|\n)*?\);",
    re.MULTILINE | re.DOTALL,
)
_CPP_SWAPS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&",
    "+": "-", "-": "+", "*": "/", "/": "*", "%": "/", "&": "|", "|": "&", "<<": ">>", ">>": "<<",
    "+=": "-=", "-=": "+=", "*=": "/=", "/=": "*=", "|=": "&=", "&=": "|=",
    "true": "false", "false": "true",
}  # fmt: skip
_OPERATOR = "|".join(map(re.escape, sorted(_CPP_SWAPS, reverse=True)))
# A pattern, the group that changes, and what it becomes.
_CPP: list[tuple[str, int, Callable[[str], str]]] = [
    (rf"(?<= )(?:{_OPERATOR})(?=\s)|\b(?:true|false)\b", 0, _CPP_SWAPS.__getitem__),
    (r"(?<![\w.'])\d+(?=[uUlLzZ]*\b)(?![\w.']*[.'])|(?<![\w.'])\d+(?=\.\d)", 0, lambda it: str(int(it) + 1)),
    (r"\b(?:if|while) (?:constexpr )?\((.*)\) ?(?:\{|[^{}]*;)?$", 1, lambda _: "false"),
    (r"\bif (?:constexpr )?\((.*)\) ?(?:\{|[^{}]*;)?$", 1, lambda _: "true"),
    (r"!(?=[\w(])", 0, lambda _: ""),
    (r"\breturn ([^;{}]+);", 1, lambda _: "{}"),
    # No declaration: without it, nothing compiles.
    (r"(?<=[;{}\n])\s*^ +((?![\w:]+(?:<.*?>)?[&*]* \w|\w+:)[\w*(+-][^;{}]*;)$", 1, lambda _: ";"),
]  # fmt: skip


def _of_cpp(source: str) -> Iterator[tuple[int, int, str]]:
    text = _BLANK.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), source)
    for pattern, group, new in _CPP:
        for match in re.finditer(pattern, text, re.MULTILINE):
            yield *match.span(group), new(match[group])


def changes(path: str, source: str) -> list[Change]:
    """All changes of one file, ordered by place."""
    found = _of_python(source) if path.endswith(".py") else _of_cpp(source)
    return sorted(Change(source.count("\n", 0, it[0]) + 1, *it) for it in found)
