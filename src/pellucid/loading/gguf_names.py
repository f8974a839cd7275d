"""Parses the names of GGUF files: the part number of a split file, and the quantization."""

import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_TAG = re.compile(
    r"(?:^|[-._])(?P<tag>(?:UD-)?(?:[IT]?Q\d\w*|MXFP4\w*|BF16|FP?16|FP?32))$", re.IGNORECASE
)
_MAX_SHOWN = 20
_NOT_MODELS = ("mmproj", "imatrix")  # vision projectors and statistics for quantization


def part_names(name: str) -> tuple[str, ...]:
    """The names of all parts of a split GGUF file, in order; of another file, its own name.

    Args:
        name: of one part, as llama-gguf-split writes it: "model-00002-of-00003.gguf".
    """
    if (match := _PART.fullmatch(name)) is None:
        return (name,)
    count = int(match["count"])
    return tuple(f"{match['stem']}-{i:05d}-of-{count:05d}.gguf" for i in range(1, count + 1))


def models_among(files: Iterable[str]) -> Mapping[str, tuple[str, ...]]:
    """The GGUF models of a repository or directory: the files of each, by a tag that names it.

    Args:
        files: paths inside the repository; those that are no GGUF models are left out.

    Returns:
        By tag, such as "Q4_K_M": the parts of the file. Where two files have one tag, or a name has
        none, the tag is the path of the file.
    """
    names = [name for name in files if name.endswith(".gguf")]
    models = {
        part_names(name)
        for name in names
        if not any(word in PurePosixPath(name).name.lower() for word in _NOT_MODELS)
    }
    by_tag: dict[str, list[tuple[str, ...]]] = {}
    for parts in sorted(models):
        match = _TAG.search(_stem(parts[0]))
        by_tag.setdefault(match["tag"].upper() if match else parts[0], []).append(parts)
    return {
        tag if len(found) == 1 else parts[0]: parts
        for tag, found in by_tag.items()
        for parts in found
    }


def matches_tag(parts: tuple[str, ...], tag: str) -> bool:
    """Whether `tag`, in any case, is the quantization in a file's name, or the file's own name."""
    path, stem = PurePosixPath(parts[0]), _stem(parts[0])
    if tag in (str(path), path.name, str(path.with_suffix("")), stem):
        return True
    return re.search(rf"(?:^|[-._]){re.escape(tag)}(?:[-.]|$)", stem, re.IGNORECASE) is not None


def shown_names(names: Iterable[str]) -> str:
    """Names for a message, not too many."""
    listed = list(names)
    more = f" and {len(listed) - _MAX_SHOWN} more" if len(listed) > _MAX_SHOWN else ""
    return ", ".join(listed[:_MAX_SHOWN]) + more


def _stem(name: str) -> str:
    """A file's name without its folder, its part and ".gguf"."""
    name = PurePosixPath(name).name
    match = _PART.fullmatch(name)
    return match["stem"] if match else name.removesuffix(".gguf")
