"""Changes of Python source: one operator, number, condition, argument, return value or statement at a time."""

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple


class Change(NamedTuple):
    """`source[start:end]`, on `line`, becomes `text`."""

    line: int
    start: int
    end: int
    text: str


_OPERATORS = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "//"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
    ast.Pow: ("**", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
}
_DELETED = ast.Expr | ast.Assign | ast.AugAssign | ast.Delete | ast.Raise | ast.Continue | ast.Break
# An assert is a check itself. Python 3.11 places the parts of an f-string wrongly.
_SKIPPED = ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom
_SKIPPED_FIELDS = {"annotation", "returns", "decorator_list", "type_params", "bases"}
_LOG_CALL = re.compile(r"warnings\.warn|.*log(ger)?\.(debug|info|warning|error|exception|critical)")


def _is_first_value(node: ast.AST) -> bool:
    """Whether a name gets a value that does not come from its earlier one: nothing runs without it."""
    if not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name | ast.Tuple)):
        return False
    names = {it.id for it in ast.walk(node.targets[0]) if isinstance(it, ast.Name)}
    return not any(isinstance(it, ast.Name) and it.id in names for it in ast.walk(node.value))


def changes(source: bytes) -> list[Change]:
    """All changes of one file, ordered by place."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def begin(node: ast.AST) -> int:
        return starts[node.lineno - 1] + node.col_offset

    def end(node: ast.AST) -> int:
        return starts[node.end_lineno - 1] + node.end_col_offset

    def change(start: int, stop: int, text: str) -> Change:
        return Change(source.count(b"\n", 0, start) + 1, start, stop, text)

    def whole(node: ast.AST, text: str) -> Change:
        return change(begin(node), end(node), text)

    def operator(left: ast.AST, right: ast.AST, kind: ast.AST) -> Iterator[Change]:
        old, new = _OPERATORS.get(type(kind), ("", ""))
        words = re.escape(old).replace(r"\ ", r"\s+").encode()
        if old and (found := re.compile(words).search(source, end(left), begin(right))):
            yield change(found.start(), found.end(), new)

    def own(node: ast.AST) -> Iterator[Change]:
        match node:
            case ast.Compare():
                operands = [node.left, *node.comparators]
                for left, kind, right in zip(operands, node.ops, node.comparators, strict=False):
                    yield from operator(left, right, kind)
            case ast.BinOp():
                yield from operator(node.left, node.right, node.op)
            case ast.AugAssign():
                yield from operator(node.target, node.value, node.op)
            case ast.BoolOp():
                for left, right in zip(node.values, node.values[1:], strict=False):
                    yield from operator(left, right, node.op)
            case ast.UnaryOp(op=ast.Not() | ast.USub()):
                word = b"not" if isinstance(node.op, ast.Not) else b"-"
                yield change(begin(node), begin(node) + len(word), "")
            case ast.Constant(value=bool()):
                yield whole(node, str(not node.value))
            case ast.Constant(value=int() | float()):
                yield whole(node, repr(node.value + 1))
            case ast.Return(value=ast.expr()) if ast.unparse(node.value) != "None":
                yield whole(node.value, "None")
            case ast.If() | ast.IfExp():
                yield from (whole(node.test, text) for text in ("True", "False"))
            case ast.While():
                yield whole(node.test, "False")
            case ast.comprehension():
                yield from (whole(test, "True") for test in node.ifs)
            case ast.Call():
                for keyword in node.keywords:
                    if keyword.arg == "strict":
                        continue
                    rest = re.compile(rb"\s*,?").match(source, end(keyword))
                    yield change(begin(keyword), rest.end(), "")

    def walk(node: ast.AST, in_function: bool) -> Iterator[Change]:
        if isinstance(node, _SKIPPED):
            return
        match node:
            case (
                ast.FunctionDef(name="__repr__" | "check_integrity")
                | ast.Expr(value=ast.Constant())
            ):
                return
            case ast.keyword(arg="strict"):
                return  # of zip: a check, like an assert
            case ast.If(test=ast.Name("TYPE_CHECKING")) | ast.Assign(targets=[ast.Name("__all__")]):
                return
            case ast.Call() if _LOG_CALL.fullmatch(ast.unparse(node.func)):
                return
        if in_function and isinstance(node, _DELETED) and not _is_first_value(node):
            yield whole(node, "pass")
        if isinstance(node, ast.Raise):
            return
        yield from own(node)
        in_function |= isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for field, value in ast.iter_fields(node):
            if field in _SKIPPED_FIELDS or (isinstance(node, ast.ClassDef) and field == "keywords"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from walk(child, in_function)

    return sorted(walk(ast.parse(source), in_function=False))
