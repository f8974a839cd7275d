"""Makes stand-ins for the files of a model on the hub, with its headers and without its weights.

Each file of weights gets a stand-in in a temporary folder: its header, and a hole of the file system up to the length
of the file. What opens a model opens these too, and checks the headers against the lengths.
"""

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pellucid.loading.file_names import CONFIG_FILE, INDEX_FILE, SINGLE_FILE, TOKENIZER_FILE
from pellucid.loading.hub import ALWAYS_THERE, SMALL_FILES, choose_gguf
from pellucid.loading.hub_repository import (
    HubName,
    explained_errors,
    fetch_files,
    list_files,
    open_range,
)
from pellucid.loading.json_file import read_json_object
from pellucid.loading.quantization_settings import SETTINGS_FILES

_GGUF_PIECE_BYTES = (
    8 << 20
)  # holds the header of most models: the rest is fetched in pieces twice as long
_SAFETENSORS_PIECE_BYTES = 1 << 18
_MAX_SAFETENSORS_HEADER_BYTES = 100_000_000  # the format's own limit
_TOKENIZER_BYTES = 1 << 20  # tokens with a role stand at the beginning
_MAX_FACT_BYTES = 1 << 20  # of a tensor that is a fact
_NUM_CONNECTIONS = 8


def make_stand_ins(name: HubName, folder: Path, with_weights: bool) -> Path:
    """The directory in Hugging Face layout, or the GGUF file.

    Args:
        folder: an empty one, for the stand-ins.
        with_weights: as in `hub_headers.find_headers`.

    Raises:
        ValueError, OSError: as `find_model`.
    """
    configuration = (CONFIG_FILE, *SETTINGS_FILES)
    first = (ALWAYS_THERE,) if name.tag is not None else (ALWAYS_THERE, *configuration)
    snapshot = fetch_files(name, first)
    has_config = name.tag is None and (snapshot / CONFIG_FILE).is_file()
    if has_config and not with_weights:
        for file in configuration:
            if (snapshot / file).is_file():
                (folder / file).symlink_to((snapshot / file).resolve())
        return folder
    files = list_files(name, snapshot)
    if has_config and (INDEX_FILE in files or SINGLE_FILE in files):
        small = [each for each in SMALL_FILES if each != TOKENIZER_FILE]
        _fill_directory(name, fetch_files(name, small, snapshot), files, folder)
        return folder
    parts = choose_gguf(name, files)
    for part in (part for part in parts if part in files):  # opening names one that is missing
        _fill_gguf(_RemoteFile(name, part, snapshot), folder / PurePosixPath(part).name)
    return folder / PurePosixPath(parts[0]).name


@dataclass(frozen=True)
class _RemoteFile:
    """A file of a repository.

    Args:
        name: of the repository.
        path: within it.
        snapshot: the directory in the cache of its commit, which may hold the file.
    """

    name: HubName
    path: str
    snapshot: Path

    @property
    def cached(self) -> Path | None:
        path = self.snapshot / self.path
        return path.resolve() if path.exists() else None

    def read(self, start: int, end: int) -> tuple[bytes, int]:
        """Bytes start .. end - 1 as far as there are so many, and the length of the file.

        Raises:
            ValueError, OSError: as `find_model`.
        """
        commit = self.snapshot.name
        with (
            explained_errors(self.name),
            open_range(self.name, commit, self.path, f"{start}-{end - 1}") as response,
        ):
            data = bytearray()
            for chunk in response.iter_bytes():
                data += chunk
                if len(data) >= end - start:  # a server may send more than it was asked for
                    break
            length = response.headers.get("Content-Range", "").rpartition("/")[2]
            return bytes(data[: end - start]), int(length or response.headers["Content-Length"])


def _fill_directory(name: HubName, snapshot: Path, files: Collection[str], folder: Path) -> None:
    """Stand-ins for the files of a repository in Hugging Face layout. Files that loading does not read are empty."""
    for path in snapshot.iterdir():
        (folder / path.name).symlink_to(path.resolve())
    weights = {SINGLE_FILE}
    if INDEX_FILE in files:
        weight_map = read_json_object(folder / INDEX_FILE).optional_object("weight_map")
        weights = set() if weight_map is None else set(map(str, weight_map.values.values()))
    missing = [each for each in files if "/" not in each and not (folder / each).exists()]
    for each in missing:
        (folder / each).touch()
    if TOKENIZER_FILE in missing:
        _write(
            folder / TOKENIZER_FILE,
            *_RemoteFile(name, TOKENIZER_FILE, snapshot).read(0, _TOKENIZER_BYTES),
        )
    with ThreadPoolExecutor(_NUM_CONNECTIONS) as threads:
        wanted = [each for each in missing if each in weights]
        remote = [_RemoteFile(name, each, snapshot) for each in wanted]
        # list() waits, and raises the first error
        list(threads.map(_fill_safetensors, remote, (folder / each for each in wanted)))


def _fill_safetensors(remote: _RemoteFile, path: Path) -> None:
    header, length = remote.read(0, _SAFETENSORS_PIECE_BYTES)
    end = 8 + min(int.from_bytes(header[:8], "little"), _MAX_SAFETENSORS_HEADER_BYTES)
    if len(header) < min(end, length):
        header += remote.read(len(header), end)[0]
    _write(path, header, length)


def _fill_gguf(remote: _RemoteFile, path: Path) -> None:
    """The header, and the tensors that are facts."""
    if (cached := remote.cached) is not None:
        path.symlink_to(cached)
        return
    # Imported here: a directory needs no gguf library.
    from pellucid.loading.gguf_file import GgufFile
    from pellucid.loading.gguf_model import FACT_TENSORS

    num_fetched = _fetch_gguf_header(remote, path)
    try:
        tensors = GgufFile(path).tensors
    except ValueError:  # opening it will say the same
        return
    for name in FACT_TENSORS:
        info = tensors.get(name)
        if info is not None and info.end > num_fetched and info.num_bytes <= _MAX_FACT_BYTES:
            with path.open("r+b") as file:
                file.seek(info.start)
                file.write(remote.read(info.start, info.end)[0])


def _fetch_gguf_header(remote: _RemoteFile, path: Path) -> int:
    """Writes at least the header, if it is not damaged, and a hole for the rest. Returns the bytes fetched."""
    from pellucid.loading.gguf_file import MAX_HEADER_BYTES, GgufFile, HeaderEndsEarlyError

    num_fetched = 0
    while num_fetched < MAX_HEADER_BYTES:
        piece, length = remote.read(num_fetched, 2 * num_fetched or _GGUF_PIECE_BYTES)
        _write(path, piece, num_fetched + len(piece))
        num_fetched += len(piece)
        try:
            GgufFile(path)
        except HeaderEndsEarlyError:
            if piece and num_fetched < length:
                continue
        except ValueError:  # more of the header would not help
            pass
        break
    _write(path, b"", length)
    return num_fetched


def _write(path: Path, data: bytes, length: int) -> None:
    """Appends `data`, and a hole up to `length`."""
    with path.open("ab") as file:
        file.write(data)
        file.truncate(length)
