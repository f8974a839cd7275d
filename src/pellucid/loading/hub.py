"""Finds a model's files: the bundled model, a directory, a GGUF file, or a repository of the Hugging Face hub."""

import os
import re
from collections.abc import Callable, Collection
from fnmatch import fnmatch
from pathlib import Path

from msgspec import Struct

from pellucid.facts.model_names import find_short_name, path_here
from pellucid.loading.file_names import CONFIG_FILE, TOKENIZER_FILE, has_weights
from pellucid.loading.gguf_names import matches_tag, models_among, shown_names
from pellucid.loading.hub_repository import HubName, fetch_files, list_files
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
_WEIGHT_FILES = "model*.safetensors"
_HUB_ID = re.compile(
    r"(?P<repository>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?::(?P<tag>[\w./-]+))?"
)
_GGUF_MAGIC = b"GGUF"


class ModelLocation(Struct, frozen=True):
    """Where a model's files are, and its name for people.

    Args:
        path: the directory in Hugging Face layout, or the GGUF file; of a split one, its first part.
        name: the hub id, or the name of the directory or file.
    """

    path: Path
    name: str


def find_model(
    model: str | None,
    revision: str | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> ModelLocation:
    """The files of `model`, downloaded into the hub's cache if need be.

    huggingface_hub's environment variables hold: HF_HOME, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE,
    HF_HUB_DISABLE_PROGRESS_BARS. Without network, a snapshot in the cache is used as it is.

    Args:
        model: a directory, a GGUF file, a hub id "owner/name", a GGUF file of a hub repository by its
            quantization, "owner/name:Q4_K_M", or None for the bundled model.
        revision: branch, tag or commit of a hub id; None is its main branch.
        on_progress: called with (bytes, bytes in all) while weights are downloaded; None: a bar is shown.

    Raises:
        ValueError: there is no such model or revision, or it is in a format that does not load.
        OSError: the hub cannot be reached or the cache cannot be written.
    """
    found = find_local_or_hub_model(model, revision)
    if isinstance(found, ModelLocation):
        return found
    return ModelLocation(_download(found, on_progress), found.model)


def find_local_or_hub_model(model: str | None, revision: str | None) -> ModelLocation | HubName:
    """The files of a model here, or the name of one on the hub, which is not asked. Arguments are those of
    `find_model`.

    Raises:
        ValueError: it is neither.
    """
    path = BUNDLED_MODEL if model is None else path_here(model)
    if path is not None:
        if not path.is_dir() and not _is_gguf(path):
            raise ValueError(
                f"model={str(path)!r}: must be a directory in Hugging Face layout, or a .gguf file"
            )
        if revision is not None:
            raise ValueError(f"revision={revision!r}: only a hub id has revisions, not {path}")
        return ModelLocation(path, _display_name(path))
    assert model is not None
    if (short := find_short_name(model)) is not None:
        known, tag = short
        raise ValueError(
            f"model={model!r}: short names are for the command line; name the file on the hub, such as"
            f" '{known.repository}:{tag or 'Q4_K_M'}'"
        )
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
    if (path := path_here(tokenizer)) is not None and path.is_dir():
        return ModelLocation(path, _display_name(path))
    match = None if path is not None else _HUB_ID.fullmatch(tokenizer)
    if match is None or match["tag"] is not None:
        raise ValueError(
            f"tokenizer={tokenizer!r}: must be a directory with {TOKENIZER_FILE}, or the name of one on the hub"
            " (owner/name)"
        )
    name = HubName(tokenizer, tokenizer, None, None, "tokenizer")
    return ModelLocation(fetch_files(name, _TOKENIZER_FILES), tokenizer)


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


def _download(name: HubName, on_progress: Callable[[int, int], None] | None) -> Path:
    """The directory or the GGUF file. Configuration comes first: what does not load is not downloaded."""
    # Imported here: models that are here already need none of it.
    from pellucid.loading.hub_download import download_weights

    snapshot = fetch_files(name, SMALL_FILES if name.tag is None else (ALWAYS_THERE,))
    files = list_files(name, snapshot)
    if name.tag is None and (snapshot / CONFIG_FILE).is_file():
        from pellucid.loading.hf_config import read_model_config

        read_model_config(snapshot)
        weights = [file for file in files if fnmatch(file, _WEIGHT_FILES)]
        download_weights(name, weights, snapshot, on_progress)
        if has_weights(snapshot):
            return snapshot
    parts = choose_gguf(name, files)
    download_weights(name, parts, snapshot, on_progress)
    return snapshot / parts[0]


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
