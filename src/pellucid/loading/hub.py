"""Finds a model's files: the bundled model, a directory, a GGUF file, or a repository of the Hugging Face hub."""

import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pellucid.loading.file_names import CONFIG_FILE, TOKENIZER_FILE, has_weights
from pellucid.loading.gguf_names import matches_tag, models_among, shown_names
from pellucid.loading.other_formats import recognize_files
from pellucid.loading.quantization_settings import SETTINGS_FILES

BUNDLED_MODEL = Path(__file__).parents[1] / "assets" / "pellucid-5m"
BUNDLED_DRAFT_MODEL = BUNDLED_MODEL.with_name("pellucid-1m-draft")

# What is downloaded. Never code, never pickles; "model*" leaves out a second copy in another layout.
ALWAYS_THERE = ".gitattributes"  # without a file there is no snapshot
_TOKENIZER_FILES = (
    ALWAYS_THERE,
    CONFIG_FILE,  # it and the next one may say which tokens begin and end a text
    "generation_config.json",
    TOKENIZER_FILE,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/*.jinja",
)
SMALL_FILES = (
    *_TOKENIZER_FILES,
    "model.safetensors.index.json",
    *SETTINGS_FILES,
    "SHA256SUMS",
)
_WEIGHT_FILES = ("model*.safetensors",)
_HUB_ID = re.compile(
    r"(?P<repository>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?::(?P<tag>[\w./-]+))?"
)
_GGUF_MAGIC = b"GGUF"


@dataclass(frozen=True)
class ModelLocation:
    """Where a model's files are, and its name for people.

    Args:
        path: the directory in Hugging Face layout, or the GGUF file; of a split one, its first part.
        name: the hub id, or the name of the directory or file.
    """

    path: Path
    name: str


@dataclass(frozen=True)
class HubName:
    """A model of the hub as users name it.

    Args:
        model: "owner/name" or "owner/name:Q4_K_M".
        repository: "owner/name".
        tag: "Q4_K_M", or None.
        revision: branch, tag or commit; None is the main branch.
        setting: which one names it.
    """

    model: str
    repository: str
    tag: str | None
    revision: str | None
    setting: str = "model"

    def __str__(self) -> str:
        """For messages."""
        shown = f"{self.setting}={self.model!r}"
        return shown if self.revision is None else f"{shown}, revision={self.revision!r}"


def find_model(model: str | None, revision: str | None = None) -> ModelLocation:
    """The files of `model`, downloaded into the hub's cache if need be.

    huggingface_hub's environment variables hold: HF_HOME, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE,
    HF_HUB_DISABLE_PROGRESS_BARS. Without network, a snapshot in the cache is used as it is.

    Args:
        model: a directory, a GGUF file, a hub id "owner/name", a GGUF file of a hub repository by its
            quantization, "owner/name:Q4_K_M", or None for the bundled model.
        revision: branch, tag or commit of a hub id; None is its main branch.

    Raises:
        ValueError: there is no such model or revision, or it is in a format that does not load.
        OSError: the hub cannot be reached or the cache cannot be written.
    """
    found = find_local_or_hub_model(model, revision)
    return (
        found if isinstance(found, ModelLocation) else ModelLocation(_download(found), found.model)
    )


def find_local_or_hub_model(model: str | None, revision: str | None) -> ModelLocation | HubName:
    """The files of a model here, or the name of one on the hub, which is not asked. Arguments are those of
    `find_model`.

    Raises:
        ValueError: it is neither.
    """
    path = BUNDLED_MODEL if model is None else _existing_path(model)
    if path is not None:
        if not path.is_dir() and not _is_gguf(path):
            raise ValueError(
                f"model={str(path)!r}: must be a directory in Hugging Face layout, or a .gguf file"
            )
        if revision is not None:
            raise ValueError(f"revision={revision!r}: only a hub id has revisions, not {path}")
        return ModelLocation(path, _display_name(path))
    assert model is not None
    if (match := _HUB_ID.fullmatch(model)) is None:
        raise ValueError(
            f"model={model!r}: no such file or directory, and not the name of a model on the hub"
            " (owner/name or, for a GGUF file, owner/name:Q4_K_M)"
        )
    return HubName(model, match["repository"], match["tag"], revision)


def find_tokenizer(tokenizer: str) -> ModelLocation:
    """The directory with the files of a tokenizer, downloaded into the hub's cache if need be: no weights.

    Args:
        tokenizer: a directory in Hugging Face layout, or a hub id "owner/name".

    Raises:
        ValueError, OSError: as `find_model`.
    """
    if (path := _existing_path(tokenizer)) is not None and path.is_dir():
        return ModelLocation(path, _display_name(path))
    match = None if path is not None else _HUB_ID.fullmatch(tokenizer)
    if match is None or match["tag"] is not None:
        raise ValueError(
            f"tokenizer={tokenizer!r}: must be a directory with {TOKENIZER_FILE}, or the name of one on the hub"
            " (owner/name)"
        )
    name = HubName(tokenizer, tokenizer, None, None, "tokenizer")
    return ModelLocation(fetch_files(name, _TOKENIZER_FILES), tokenizer)


def _existing_path(model: str) -> Path | None:
    try:
        path = Path(model).expanduser()
        return path if model and path.exists() else None
    except (OSError, RuntimeError, ValueError):  # too long, no such user, a null byte
        return None


def _is_gguf(path: Path) -> bool:
    """By its name or, for a file such as Ollama's that has another name, by how it begins."""
    if path.suffix == ".gguf" or not path.is_file():
        return path.suffix == ".gguf"
    with path.open("rb") as file:
        return file.read(len(_GGUF_MAGIC)) == _GGUF_MAGIC


def _display_name(path: Path) -> str:
    """The last part of a path; of a snapshot in the hub's cache, whose last part is a commit, the hub id."""
    path = Path(os.path.abspath(path))  # noqa: PTH100 (resolve() would follow links into the cache)
    if path.parent.name == "snapshots" and path.parents[1].name.startswith("models--"):
        return path.parents[1].name.removeprefix("models--").replace("--", "/")
    return path.name


def _download(name: HubName) -> Path:
    """The directory or the GGUF file. Configuration comes first: what does not load is not downloaded."""
    snapshot = fetch_files(name, SMALL_FILES if name.tag is None else (ALWAYS_THERE,))
    if name.tag is None and (snapshot / CONFIG_FILE).is_file():
        # Imported here: models that are here already need none of it.
        from pellucid.loading.hf_config import read_model_config

        read_model_config(snapshot)
        snapshot = fetch_files(name, (*SMALL_FILES, *_WEIGHT_FILES), snapshot)
        if has_weights(snapshot):
            return snapshot
    parts = choose_gguf(name, list_files(name, snapshot))
    return fetch_files(name, parts, snapshot) / parts[0]


def fetch_files(name: HubName, patterns: Collection[str], snapshot: Path | None = None) -> Path:
    """Downloads files into the hub's cache, as far as they are not there.

    Args:
        patterns: of their names.
        snapshot: an earlier result, whose commit they are of; None: the newest one of the name's revision.

    Returns:
        The directory in the cache with the files of this commit. Its name is the commit.

    Raises:
        ValueError, OSError: as `find_model`.
    """
    # Imported here: local models need none of it, and it takes longer than they take to load.
    from huggingface_hub import snapshot_download

    revision = name.revision if snapshot is None else snapshot.name
    with explained_errors(name):
        return Path(
            snapshot_download(name.repository, revision=revision, allow_patterns=list(patterns))
        )


def list_files(name: HubName, snapshot: Path) -> list[str]:
    """The files of a repository at the commit of `snapshot`; offline, those in the cache."""
    from huggingface_hub import HfApi

    try:
        # Not list_repo_files, which repeats a failed request for 20 seconds.
        info = HfApi().model_info(name.repository, revision=snapshot.name)
        return [file.rfilename for file in info.siblings or ()]
    except Exception:  # of the transfer libraries, which differ between versions
        files = (path for path in snapshot.rglob("*") if path.is_file())
        return [str(path.relative_to(snapshot)) for path in files]


def choose_gguf(name: HubName, files: Collection[str]) -> tuple[str, ...]:
    """The parts of the GGUF file that the tag names, or of the only one in a repository.

    Raises:
        ValueError: there is none, or there are several, which it lists.
    """
    tag = name.tag
    models = models_among(files)
    chosen = [parts for parts in models.values() if tag is None or matches_tag(parts, tag)]
    if len(chosen) == 1:
        return chosen[0]
    if models:
        reason = (
            "it has several GGUF files" if tag is None else f"{len(chosen)} files match {tag!r}"
        )
        choices = shown_names(f"{name.repository}:{each}" for each in models)
        raise ValueError(f"{name}: {reason}: choose one of {choices}")
    if tag is not None:
        raise ValueError(f"{name}: the repository has no GGUF files: leave out {':' + tag!r}")
    if (found := recognize_files(files)) is not None:
        raise ValueError(f"{name}: it holds {found}")
    raise ValueError(f"{name}: it has neither config.json with model.safetensors nor GGUF files")


@contextmanager
def explained_errors(name: HubName) -> Iterator[None]:
    """Turns the hub's errors into ones that say what to do."""
    from huggingface_hub import constants, errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise ValueError(
            f"{name}: its owner asks for an agreement first: accept it at "
            f"{constants.ENDPOINT}/{name.repository}, then set HF_TOKEN or run `hf auth login`"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ValueError(
            f"{name}: no such file or directory here, and no such model at {constants.ENDPOINT}; "
            "if it is private, set HF_TOKEN or run `hf auth login`"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ValueError(f"{name}: the model has no such branch, tag or commit") from error
    except errors.HFValidationError as error:
        raise ValueError(f"{name}: not a hub id: {error}") from error
    except errors.LocalEntryNotFoundError as error:
        if constants.HF_HUB_OFFLINE:
            reason = "HF_HUB_OFFLINE is set"
        elif isinstance(error.__cause__, errors.HfHubHTTPError):
            reason = f"{constants.ENDPOINT} answered {error.__cause__.response.status_code}"
        else:
            reason = f"{constants.ENDPOINT} cannot be reached"
        raise ConnectionError(
            f"{name}: no such file or directory here, the cache {constants.HF_HUB_CACHE} does not hold"
            f" such a model, and {reason}: connect once to download it"
        ) from error
    except errors.HfHubHTTPError as error:
        raise ConnectionError(f"{name}: {constants.ENDPOINT} answered: {error}") from error
    except OSError as error:
        raise OSError(
            f"{name}: the cache directory {constants.HF_HUB_CACHE} cannot be written: {error}; "
            "set HF_HOME to a directory that can"
        ) from error
    except Exception as error:  # of the transfer libraries, which differ between versions
        raise ConnectionError(f"{name}: the download broke off: {error!r}") from error
