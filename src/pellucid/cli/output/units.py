"""Formats numbers with units for people. JSON has base units instead."""

from pellucid.progress import Describe


def seconds(value: float) -> str:
    """Three digits in the unit that fits: 850 us, 21.3 ms, 1.24 s."""
    if value < 1e-3:
        return f"{value * 1e6:.0f} us"
    return f"{_three_digits(value * 1e3)} ms" if value < 1 else f"{_three_digits(value)} s"


def num_bytes(value: float) -> str:
    """Binary units: 216 KiB."""
    return _scaled(value, 1024, ("bytes", "KiB", "MiB", "GiB", "TiB"))


def flops(value: float) -> str:
    """Decimal units: 1.20 GFLOP."""
    return _scaled(value, 1000, ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"))


def counted(count: int, noun: str) -> str:
    """A number of things, as in "1 token" and "2 tokens"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def rate(count: int, duration: float | None) -> str:
    """Tokens a second."""
    return f"{_three_digits(count / duration)} tok/s" if duration else "- tok/s"


def describe_bytes(done: int, total: int, elapsed: float) -> str:
    """Progress of what is counted in bytes, for `pellucid.progress`."""
    return f"{num_bytes(done)} of {num_bytes(total)}, {num_bytes(done / elapsed)}/s"


def describe_count(things: str) -> Describe:
    """Progress of what is counted one by one: "texts", say."""
    return lambda done, total, elapsed: f"{done} of {total} {things}, {elapsed:.0f} s"


def describe_tokens(done: int, total: int, elapsed: float) -> str:
    """Progress of what is counted in tokens."""
    return f"{done} of {total} tokens, {rate(done, elapsed)}"


def ago(duration: float) -> str:
    """How long ago something was: now, 5 minutes ago, 3 days ago."""
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if duration >= length:
            return f"{counted(int(duration / length), unit)} ago"
    return "now"


def times(value: float) -> str:
    """A ratio: 12.3x."""
    return f"{_three_digits(value)}x"


def _scaled(value: float, base: int, units: tuple[str, ...]) -> str:
    if value < base:
        return f"{value:.0f} {units[0]}"
    for unit in units[1:]:
        value /= base
        if value < base or unit == units[-1]:
            break
    return f"{_three_digits(value)} {unit}"


def _three_digits(value: float) -> str:
    for decimals, limit in ((2, 9.995), (1, 99.95)):
        if value < limit:
            return f"{value:.{decimals}f}"
    return f"{value:.0f}"
