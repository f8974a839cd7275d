"""The models in the hub's cache folder: what there is, who uses it, and its deletion.

The folder is huggingface_hub's: models--OWNER--NAME holds `blobs`, whose names are digests, `snapshots/COMMIT/PATH`,
links to them, and `refs`, which name commits. Files in no layout of a model are left alone.
"""

import os
import shutil
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pellucid.loading.file_names import INDEX_FILE, SINGLE_FILE
from pellucid.loading.gguf_names import models_among
from pellucid.loading.json_file import read_json_object

_PREFIX = "models--"
_PARTIAL = "*.incomplete"


@dataclass(frozen=True)
class CachedModel:
    """A model in the cache, or what is left of one.

    Args:
        repository: "owner/name".
        tag: of a GGUF file; None: a directory.
        revision: branch, tag or commit; None: the main branch.
        file_format: "GGUF", "safetensors", "no weights" or, of a download that broke off, "partial".
        num_bytes: of its files.
        last_used: when one of them was read or written, in seconds since 1970, as far as the file system notes it.
        path: the directory or the GGUF file.
        files: in the snapshot or, of a partial download, among the blobs.
    """

    repository: str
    tag: str | None
    revision: str | None
    file_format: str
    num_bytes: int
    last_used: float
    path: Path
    files: tuple[Path, ...]

    @property
    def name(self) -> str:
        """As commands take it."""
        return self.repository if self.tag is None else f"{self.repository}:{self.tag}"

    @property
    def is_whole(self) -> bool:
        return self.file_format in ("GGUF", "safetensors")


def cache_folder() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def cached_models() -> list[CachedModel]:
    """All of them, the last used first."""
    folder = cache_folder()
    repositories = sorted(folder.glob(f"{_PREFIX}*")) if folder.is_dir() else []
    found = [model for each in repositories if each.is_dir() for model in _models_in(each)]
    return sorted(found, key=lambda model: -model.last_used)


def users_of(models: Iterable[CachedModel]) -> list[int]:
    """The processes of this user that have files of these models open, as far as the system shows them (Linux)."""
    blobs = {str(file.resolve()) for model in models for file in model.files}
    return [
        int(process.name) for process in _processes() if not blobs.isdisjoint(_files_of(process))
    ]


def delete(models: Collection[CachedModel]) -> None:
    """Deletes models from the cache, and what only they use.

    Raises:
        ValueError: a folder of the cache is a link, so that its files are elsewhere.
        OSError: a file cannot be deleted.
    """
    for owner_and_name in {model.repository.replace("/", "--") for model in models}:
        folder = cache_folder() / f"{_PREFIX}{owner_and_name}"
        if folder.is_symlink():
            raise ValueError(f"{folder}: is a link to {folder.resolve()}; delete that by hand")
        kept = [each for each in _models_in(folder) if each not in models]
        if not kept:
            shutil.rmtree(folder)
            shutil.rmtree(folder.parent / ".locks" / folder.name, ignore_errors=True)
            continue
        for file in {file for model in models for file in model.files if folder in file.parents}:
            blob = file.resolve()
            file.unlink()
            is_own = folder.resolve() in blob.parents  # a link may lead out of the cache
            if is_own and not any(
                each.resolve() == blob for each in (folder / "snapshots").rglob("*")
            ):
                blob.unlink(missing_ok=True)


def _models_in(folder: Path) -> Iterator[CachedModel]:
    repository = folder.name.removeprefix(_PREFIX).replace("--", "/")
    refs = {
        path.read_text().strip(): str(path.relative_to(folder / "refs"))
        for path in (folder / "refs").rglob("*")
        if path.is_file()
    }
    snapshots = [path for path in (folder / "snapshots").glob("*") if path.is_dir()]
    listed: set[Path] = set()
    found: list[CachedModel] = []
    for snapshot in sorted(snapshots, key=lambda path: refs.get(path.name) != "main"):
        ref = refs.get(snapshot.name, snapshot.name)
        for model in _models_of(snapshot, repository, None if ref == "main" else ref):
            blobs = {file.resolve() for file in model.files}
            if not blobs <= listed:
                listed |= blobs
                found.append(model)
    partial = tuple((folder / "blobs").glob(_PARTIAL))
    if partial:
        found.append(_model(repository, None, None, "partial", folder / "blobs", partial))
    has_models = any(model.is_whole for model in found) or partial
    yield from (model for model in found if not has_models or model.file_format != "no weights")


def _models_of(snapshot: Path, repository: str, revision: str | None) -> Iterator[CachedModel]:
    """The GGUF files of a commit, and what is not part of them."""
    files = {
        str(path.relative_to(snapshot)): path for path in snapshot.rglob("*") if path.is_file()
    }
    for tag, parts in models_among(files).items():
        there = tuple(files.pop(part) for part in parts if part in files)
        file_format = "GGUF" if len(there) == len(parts) else "partial"
        yield _model(repository, tag, revision, file_format, there[0], there)
    if files:
        file_format = _directory_format(snapshot, files)
        yield _model(repository, None, revision, file_format, snapshot, tuple(files.values()))


def _directory_format(snapshot: Path, files: Collection[str]) -> str:
    if SINGLE_FILE in files:
        return "safetensors"
    if INDEX_FILE not in files:
        return "no weights"
    try:
        shards = read_json_object(snapshot / INDEX_FILE).optional_object("weight_map")
    except (ValueError, OSError):  # damaged: loading says how
        return "partial"
    is_whole = shards is not None and all(name in files for name in shards.values.values())
    return "safetensors" if is_whole else "partial"


def _model(
    repository: str,
    tag: str | None,
    revision: str | None,
    file_format: str,
    path: Path,
    files: tuple[Path, ...],
) -> CachedModel:
    states = [file.stat() for file in files]
    last_used = max(max(each.st_atime, each.st_mtime) for each in states)
    num_bytes = sum(each.st_size for each in states)
    return CachedModel(repository, tag, revision, file_format, num_bytes, last_used, path, files)


def _processes() -> list[Path]:
    own = str(os.getpid())
    return [path for path in Path("/proc").glob("[0-9]*") if path.name != own]


def _files_of(process: Path) -> Iterator[str]:
    """The paths of the files that a process has mapped or open; those of other users are not shown."""
    try:
        for line in (process / "maps").read_text(errors="replace").splitlines():
            yield line[line.find("/") :] if "/" in line else ""
        for descriptor in (process / "fd").iterdir():
            yield str(descriptor.readlink())
    except OSError:  # another user's, or it has ended
        return
