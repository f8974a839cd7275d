"""Merges of vocabularies with scores. Files in the user's folder for caches keep them: those of Gemma's 262,144 tokens
take half a second to compute.

A file's name is the digest of what the merges follow from, so a changed vocabulary has other files.
"""

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pellucid.backends.native import Texts, merges_of_scores
from pellucid.loading.cache_file import cache_path, write_cache_bytes

MIN_TOKENS = 16_384  # the merges of fewer are computed as fast as a file is read
MAX_KEPT = 16  # files, of 8 bytes for each merge; the newest
_FORM = b"pellucid merges 1"  # another one for other merges of the same vocabulary
_DIGEST_BYTES = 32

Merges: TypeAlias = npt.NDArray[np.int32]


def kept_merges(
    tokens: list[str], scores: npt.NDArray[np.float64], made: npt.NDArray[np.bool_]
) -> Merges:
    """The merges [M, 2] of `merges_of_scores`, from a file if one holds them. If they cannot be kept, they are computed
    each time."""
    if len(tokens) < MIN_TOKENS:
        return merges_of_scores(Texts(tokens), scores, made)
    path = cache_path("merges") / _digest(tokens, scores, made)
    found = _read(path)
    if found is None:
        found = merges_of_scores(Texts(tokens), scores, made)
        with suppress(OSError):
            _write(path, found)
    return found


def _digest(tokens: list[str], scores: npt.NDArray[np.float64], made: npt.NDArray[np.bool_]) -> str:
    digest = hashlib.sha256(_FORM)
    lengths = np.fromiter(map(len, tokens), np.int64, len(tokens))
    for data in (lengths, scores, made):
        digest.update(data.tobytes())
    digest.update("".join(tokens).encode())
    return digest.hexdigest()


def _read(path: Path) -> Merges | None:
    """None: there is no such file, or it is damaged."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    pairs = data[_DIGEST_BYTES:]
    if hashlib.sha256(pairs).digest() != data[:_DIGEST_BYTES]:
        return None
    return np.frombuffer(pairs, np.int32).reshape(-1, 2)


def _write(path: Path, merges: Merges) -> None:
    pairs = merges.tobytes()
    write_cache_bytes(path, hashlib.sha256(pairs).digest() + pairs)
    files = sorted(path.parent.iterdir(), key=lambda each: each.stat().st_mtime_ns)
    for old in files[:-MAX_KEPT]:
        old.unlink(missing_ok=True)
