"""Types of option values: sizes in bytes, counts of tokens, text with escapes, text or its file, directories,
and counts.

A value that is not of its type raises typer.BadParameter, where no other error is named.
"""

import re
from pathlib import Path

import typer

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?b)?|b|bytes)?", re.IGNORECASE)
_POWER = {"k": 1, "m": 2, "g": 3, "t": 4}
_TOKENS = re.compile(r"(-?\d+)([kKmM]?)")
_TOKENS_IN = {"": 1, "k": 1000, "K": 1024, "m": 1000**2, "M": 1024**2}
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "\\": "\\"}


def size(value: str | int) -> int:
    """Bytes: 2147483648, 2GiB, 2G (both 2 * 1024**3), 2GB (2 * 1000**3)."""
    match = _SIZE.fullmatch(str(value).strip())
    if match is None:
        raise typer.BadParameter(f"{value!r} is not a size: type 2GiB, 512MiB or a number of bytes")
    number, prefix, unit = match.groups()
    base = 1000 if (unit or "").lower() == "b" else 1024
    return round(float(number) * base ** _POWER[prefix.lower()]) if prefix else round(float(number))


def tokens(value: str | int) -> int:
    """A number of tokens, by vLLM's units: 8192, 8k (8 * 1000), 8K (8 * 1024), 1m, 1M."""
    match = _TOKENS.fullmatch(str(value).strip())
    if match is None:
        raise typer.BadParameter(f"{value!r} is not a number of tokens: type 8192, 8k or 8K")
    number, unit = match.groups()
    return int(number) * _TOKENS_IN[unit]


def text_with_escapes(value: str) -> str:
    r"""Text in which \n, \r, \t, \0 and \\ stand for the characters that they name, as in C. A
    backslash before anything else is a backslash."""
    return re.sub(r"\\([nrt0\\])", lambda escape: _ESCAPES[escape[1]], value)


def text_or_file(value: str) -> str:
    """The text of a file, if `value` is the path of one; else `value` itself."""
    try:
        path = Path(value).expanduser()
        return path.read_text("utf-8-sig") if path.is_file() else value
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"{value}: is not UTF-8 at byte {error.start}") from None
    except (OSError, RuntimeError, ValueError):  # no path: too long, no such user, a null byte
        return value


def directory(value: str) -> str:
    """A directory's path, which need not exist; an empty one would be the current directory."""
    if not value:
        raise typer.BadParameter("is empty; name a directory (. is the current one)")
    return value


def check_count(option: str, count: int, *, least: int) -> None:
    """Raises ValueError, which names the option, if the count is less than `least`."""
    if count < least:
        raise ValueError(f"{option}={count}: must be a whole number of at least {least}")


def parse_counts(option: str, text: str, *, least: int) -> list[int]:
    """The counts of a list such as "1,8,32".

    Raises:
        ValueError: a word is no whole number, is less than `least` or occurs twice.
    """
    counts: list[int] = []
    for word in text.split(","):
        if not word.strip().isdecimal() or int(word) < least or int(word) in counts:
            raise ValueError(
                f"{option}={text!r}: must be different whole numbers of at least {least}, with commas"
                " between them"
            )
        counts.append(int(word))
    return counts
