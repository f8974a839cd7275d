"""The identity of a checkpoint: a digest of its content, the same for each copy on any machine."""

import hashlib
from pathlib import Path

from pellucid.loading.checksums import listed_digests
from pellucid.loading.file_digests import kept_digests
from pellucid.loading.gguf_names import part_names

_PATTERNS = ("*.safetensors", "*.json")


def weights_identity(path: Path) -> bytes:
    """32 bytes that differ between checkpoints of different content: the digest of each file, and in a directory its
    name. Times and places of files do not matter.

    A file that SHA256SUMS lists has the digest there, which loading has compared. Other files are read once.

    Args:
        path: a directory in Hugging Face layout, a GGUF file, or a part of a split one.

    Raises:
        ValueError: a file is not a regular file.
        OSError: a file cannot be read.
    """
    if path.is_dir():
        files = sorted(file for pattern in _PATTERNS for file in path.glob(pattern))
        listed = listed_digests(path)
        names = [file.name for file in files]
    else:
        files = [path.with_name(name) for name in part_names(path.name)]
        listed = {}
        names = [str(number) for number in range(len(files))]  # a GGUF file may have any name
    digests = dict(listed)
    unlisted = [file for file in files if file not in listed]
    digests.update(zip(unlisted, kept_digests(unlisted), strict=True))
    content = [(name, digests[file]) for name, file in zip(names, files, strict=True)]
    return hashlib.sha256(repr(content).encode()).digest()
