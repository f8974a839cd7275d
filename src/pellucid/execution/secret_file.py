"""Secrets that processes share, in files."""

from pathlib import Path

MIN_SECRET_BYTES = 16


def read_secret(field: str, path: Path) -> bytes:
    """The bytes of a file, without white space around them.

    Args:
        field: what an error calls the file.

    Raises:
        ValueError: the file cannot be read, or is too short to be a secret.
    """
    try:
        secret = path.expanduser().read_bytes().strip()
    except OSError as error:
        raise ValueError(f"{field}={str(path)!r}: {error.strerror}") from None
    if len(secret) < MIN_SECRET_BYTES:
        raise ValueError(
            f"{field}={str(path)!r}: has {len(secret)} bytes; at least {MIN_SECRET_BYTES} are needed"
        )
    return secret
