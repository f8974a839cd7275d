"""Grammars in Lark's syntax as one regular expression, where they have no recursion.

A tool's input stands within a JSON string or an element of XML. llguidance escapes a regular expression for such a
place, and not a grammar.

https://lark-parser.readthedocs.io/en/stable/grammar.html, as far as llguidance reads it.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence

MAX_PATTERN_CHARS = 20_000
_TOKEN = re.compile(
    r"""
    (?P<blank>[ \t\f]+|//[^\n]*|\#[^\n]*)
    | (?P<newline>\r?\n)
    | (?P<string>"(?:\\.|[^"\\])*"i?)
    | (?P<regexp>/(?!/)(?:\\.|[^/\\\n])+/[imslux]*)
    | (?P<name>[A-Za-z_][A-Za-z_0-9-]*)
    | (?P<number>\d+)
    | (?P<sign>->|\.\.|[?!:|()\[\]*+~,.%])
    """,
    re.VERBOSE,
)
_COMMON = {
    "CR": r"\r",
    "DIGIT": "[0-9]",
    "ESCAPED_STRING": r'"(?:\\.|[^"\\])*"',
    "INT": "[0-9]+",
    "LETTER": "[A-Za-z]",
    "LF": r"\n",
    "NEWLINE": r"(?:\r?\n)+",
    "NUMBER": r"[0-9]+(?:\.[0-9]+)?",
    "SIGNED_NUMBER": r"[+-]?[0-9]+(?:\.[0-9]+)?",
    "WORD": "[A-Za-z]+",
    "WS": r"[ \t\f\r\n]+",
    "WS_INLINE": r"[ \t]+",
}


def lark_pattern(grammar: str) -> str | None:
    """The regular expression of the texts that a grammar accepts; None if there is none, or it would be very long.

    Raises:
        ValueError: it is not a grammar.
    """
    try:
        pattern = _Expansion(dict(_rules(grammar))).rule("start", ())
    except _NotRegularError:
        return None
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    return pattern if len(pattern) <= MAX_PATTERN_CHARS else None


class _NotRegularError(Exception):
    """A grammar is recursive, or has a construct that is no regular expression."""


def _tokens(grammar: str) -> list[tuple[str, str]]:
    found = []
    position = 0
    while position < len(grammar):
        match = _TOKEN.match(grammar, position)
        if match is None:
            raise ValueError(f"has an error at {grammar[position : position + 20]!r}")
        position = match.end()
        if match.lastgroup != "blank":
            found.append((str(match.lastgroup), match[0]))
    return found


def _rules(grammar: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """The name of each rule, and the tokens of its expansions. A line that begins with a bar continues a rule."""
    lines: list[list[tuple[str, str]]] = [[]]
    depth = 0
    for token in _tokens(grammar):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(token[1], 0)
        if token[0] == "newline":
            if depth == 0:
                lines.append([])
        elif not lines[-1] and token[1] == "|" and len(lines) > 1:
            while not lines[-1] and len(lines) > 1:
                lines.pop()
            lines[-1].append(token)
        else:
            lines[-1].append(token)
    for line in filter(None, lines):
        texts = [text for _, text in line]
        if texts[:2] == ["%", "import"]:
            if texts[2:4] != ["common", "."] or texts[-1] not in _COMMON:
                known = ", ".join(_COMMON)
                raise ValueError(f"imports {''.join(texts[2:])!r}; known are {known} of common")
            yield texts[-1], [("regexp", f"/{_COMMON[texts[-1]]}/")]
        elif texts[0] == "%":  # %ignore and others
            raise _NotRegularError
        elif ":" not in texts:
            raise ValueError(f"has an error at {texts[0]!r}")
        else:
            yield texts[texts[0] in "?!"], line[texts.index(":") + 1 :]


class _Tokens:
    """The tokens of a rule, read one by one."""

    def __init__(self, tokens: Sequence[tuple[str, str]]) -> None:
        self._tokens = tokens
        self._position = 0

    @property
    def text(self) -> str:
        """Of the next token; "" at the end."""
        return self._tokens[self._position][1] if self._position < len(self._tokens) else ""

    def take(self) -> tuple[str, str]:
        """The next token: its kind and its text."""
        if not self.text:
            raise ValueError("ends within a rule")
        self._position += 1
        return self._tokens[self._position - 1]


class _Expansion:
    """Writes rules as patterns."""

    def __init__(self, rules: Mapping[str, Sequence[tuple[str, str]]]) -> None:
        self._rules = rules
        self._done: dict[str, str] = {}

    def rule(self, name: str, within: tuple[str, ...]) -> str:
        """The pattern of a rule.

        Args:
            within: the rules that need it.

        Raises:
            _NotRegularError: it needs itself, or is very long.
            ValueError: there is no such rule.
        """
        if name in within:
            raise _NotRegularError
        if name not in self._rules:
            raise ValueError(f"has no rule {name!r}")
        if name not in self._done:
            tokens = _Tokens(self._rules[name])
            self._done[name] = self._alternatives(tokens, (*within, name))
            if tokens.text:
                raise ValueError(f"has an error at {tokens.text!r} in rule {name!r}")
        return self._done[name]

    def _alternatives(self, tokens: _Tokens, within: tuple[str, ...]) -> str:
        """The pattern up to the end of a group or of the rule."""
        items: list[str] = []
        num_chars = 0
        while tokens.text not in ("", ")", "]"):
            if tokens.text == "|":
                items.append(tokens.take()[1])
            elif tokens.text == "->":
                tokens.take()
                tokens.take()  # an alias
            else:
                items.append(self._item(tokens, within))
            num_chars += len(items[-1]) if items else 0
            if num_chars > MAX_PATTERN_CHARS:  # each rule may double the one before
                raise _NotRegularError
        return f"(?:{''.join(items)})"

    def _item(self, tokens: _Tokens, within: tuple[str, ...]) -> str:
        kind, text = tokens.take()
        if kind == "name":
            pattern = self.rule(text, within)
        elif kind == "string":
            pattern = _quoted_pattern(text)
        elif kind == "regexp":
            body, _, flags = text[1:].rpartition("/")
            flags = flags.replace("u", "")
            pattern = f"(?{flags}:{body})"
        elif text in ("(", "["):
            pattern = self._alternatives(tokens, within)
            tokens.take()
            pattern += "?" if text == "[" else ""
        else:
            raise ValueError(f"has an error at {text!r}")
        if tokens.text in ("*", "+", "?"):
            return f"(?:{pattern}){tokens.take()[1]}"
        if tokens.text == "~":
            tokens.take()
            counts = tokens.take()[1]
            if tokens.text == "..":
                tokens.take()
                counts += f",{tokens.take()[1]}"
            return f"(?:{pattern}){{{counts}}}"
        return pattern


def _quoted_pattern(text: str) -> str:
    ignores_case = text.endswith("i")
    try:
        literal = json.loads(text.removesuffix("i"), strict=False)
    except ValueError:
        raise ValueError(f"has a string that is none: {text[:40]}") from None
    pattern = literal_pattern(literal)
    return f"(?i:{pattern})" if ignores_case else f"(?:{pattern})"


def literal_pattern(text: str) -> str:
    """The regular expression of one text, in the syntax of Rust and of Python alike."""
    return "".join(
        each if each.isascii() and each.isalnum() else _ESCAPE.format(ord(each)) for each in text
    )


_ESCAPE = "\\x{{{:x}}}"  # Rust's
