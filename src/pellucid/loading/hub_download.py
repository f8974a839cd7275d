"""Downloads weights into the hub's cache: a download that broke off is continued.

huggingface_hub's own downloads begin again. The layout is its own: a file's bytes are `blobs/ETAG`, and
`snapshots/COMMIT/PATH` is a link to them.
"""

import hashlib
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pellucid.loading.hub_repository import HubName, explained_errors, open_range

OnProgress = Callable[[int, int], None]  # (bytes that are here, bytes in all)
_PIECE_BYTES = 1 << 20
_SHA256_DIGITS = 64


def download_weights(
    name: HubName, files: Collection[str], snapshot: Path, on_progress: OnProgress | None = None
) -> None:
    """Downloads files of weights, as far as they are not in the cache.

    Args:
        files: paths within the repository.
        snapshot: the directory in the cache of their commit.
        on_progress: called after each piece; None: huggingface_hub's bar is shown.

    Raises:
        ValueError: the repository does not have the file.
        OSError: the hub cannot be reached, a file does not arrive whole, or the cache cannot be written.
    """
    missing = [file for file in files if not (snapshot / file).exists()]
    if not missing:
        return
    with explained_errors(name):
        wanted = [_find(name, file, snapshot) for file in missing]
        with _shown(name, sum(each.size for each in wanted), on_progress) as show:
            for each in wanted:
                each.download(show)


@dataclass(frozen=True)
class _Wanted:
    """A file that is not in the cache.

    Args:
        name: of its repository.
        path: within it.
        snapshot: the directory in the cache of its commit.
        etag: names its bytes; of weights, their SHA-256.
        size: in bytes.
    """

    name: HubName
    path: str
    snapshot: Path
    etag: str
    size: int

    def download(self, show: Callable[[int], None]) -> None:
        """Args: show: called with the number of bytes that have come."""
        from huggingface_hub import constants
        from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

        repository = self.snapshot.parents[1]
        blob = repository / "blobs" / self.etag
        lock = Path(constants.HF_HUB_CACHE, ".locks", repository.name, f"{self.etag}.lock")
        for folder in (lock.parent, blob.parent):
            folder.mkdir(parents=True, exist_ok=True)
        with WeakFileLock(lock):  # huggingface_hub's downloads take it, too
            if blob.exists():
                show(self.size)
            else:
                partial = blob.with_name(f"{self.etag}.incomplete")
                self._complete(partial, show)
                self._check(partial)
                partial.replace(blob)
        pointer = self.snapshot / self.path
        pointer.parent.mkdir(parents=True, exist_ok=True)
        pointer.unlink(missing_ok=True)  # a link whose target was deleted
        pointer.symlink_to(os.path.relpath(blob, pointer.parent))

    def _complete(self, partial: Path, show: Callable[[int], None]) -> None:
        with partial.open("ab") as file:
            if file.tell() > self.size:
                file.truncate(0)
            show(start := file.tell())
            if start == self.size:
                return
            with open_range(self.name, self.snapshot.name, self.path, f"{start}-") as response:
                for piece in response.iter_bytes():
                    file.write(piece)
                    show(len(piece))

    def _check(self, partial: Path) -> None:
        """Raises ConnectionError, and deletes the file, if it is not what the hub says."""
        digest = hashlib.sha256()
        with partial.open("rb") as file:
            while piece := file.read(_PIECE_BYTES):
                digest.update(piece)
        is_damaged = len(self.etag) == _SHA256_DIGITS and digest.hexdigest() != self.etag
        if partial.stat().st_size != self.size or is_damaged:
            partial.unlink()
            raise RuntimeError(f"{self.path} was damaged on its way")


def _find(name: HubName, path: str, snapshot: Path) -> _Wanted:
    from huggingface_hub import errors, get_hf_file_metadata, hf_hub_url

    try:
        found = get_hf_file_metadata(hf_hub_url(name.repository, path, revision=snapshot.name))
    except errors.HfHubHTTPError:
        raise
    except Exception as error:  # of the transfer libraries, which differ between versions
        raise errors.LocalEntryNotFoundError(path) from error
    if found.etag is None or found.size is None:
        raise RuntimeError(f"the hub does not say how long {path} is")
    return _Wanted(name, path, snapshot, found.etag, found.size)


@contextmanager
def _shown(
    name: HubName, total: int, on_progress: OnProgress | None
) -> Iterator[Callable[[int], None]]:
    """A function that takes how many bytes more there are."""
    if on_progress is None:
        from huggingface_hub.utils import tqdm  # type: ignore[attr-defined]

        with tqdm(total=total, unit="B", unit_scale=True, desc=name.model) as bar:  # type: ignore[no-untyped-call]
            yield bar.update
        return
    done = 0

    def show(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        on_progress(done, total)

    yield show
