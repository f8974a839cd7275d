"""Bounds of a JSON body, checked before it is decoded: decoding makes an object for each of its values."""

from typing import Any

from pellucid.server.errors import ApiError, refused

# By the bytes that begin or separate values. Those within texts count too, as finding them out would take as long as
# decoding; a text with as many is longer than a context. Bodies within these bounds are decoded in some 50 ms.
MOST: dict[bytes, int] = {b",": 1 << 20, b'"': 1 << 19, b"{": 1 << 17, b"[": 1 << 17}
SMALL_BODY = min(MOST.values())  # bytes: it cannot have too many of anything
HOLDERS = (dict, list)
MAX_DEPTH = 128  # of lists and objects within each other


def check_counts(data: bytes) -> None:
    """Refuses a body with too many values.

    Raises:
        ApiError: 413, with the numbers.
    """
    if len(data) < SMALL_BODY:
        return
    for mark, most in MOST.items():
        if (count := data.count(mark)) > most:
            raise ApiError(
                413,
                f"the body has {count} times {mark.decode()!r}; at most {most} times is allowed",
                code="body_too_large",
            )


def check_depth(value: Any, field: str) -> None:
    """Refuses lists and objects that are nested too deeply: what reads them is recursive.

    Args:
        value: decoded.
        field: its name.

    Raises:
        ApiError: 400.
    """
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            item
            for holder in level
            for item in (holder.values() if isinstance(holder, dict) else holder)
            if isinstance(item, HOLDERS)
        ]
        if not level:
            return
    raise refused(f"{field}: nested too deeply; at most {MAX_DEPTH} levels are allowed", field)
