"""Where a model is: the bundled one, a directory, or the cache of the Hugging Face hub."""

import re
from pathlib import Path

BUNDLED_MODEL = Path(__file__).parents[1] / "assets" / "pellucid-5m"

# What we read. Never code, never pickles; "model*" leaves out a second copy in another layout.
_FILES = (
    "config.json",
    "generation_config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "SHA256SUMS",
)
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def resolve_model(model: str | None, revision: str | None = None) -> Path:
    """The directory or the file of `model`, downloaded into the hub's cache if need be.

    huggingface_hub's environment variables hold: HF_HOME, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE,
    HF_HUB_DISABLE_PROGRESS_BARS. Without network, a snapshot in the cache is used as it is.

    Args:
        model: a directory, a GGUF file, a hub id "owner/name", or None for the bundled model.
        revision: branch, tag or commit of a hub id; None is its main branch.

    Raises:
        ValueError: there is no such model or revision, or it is not ours to read.
        OSError: the hub cannot be reached or the cache cannot be written.
    """
    directory = BUNDLED_MODEL if model is None else _existing_path(model)
    if directory is not None:
        if not directory.is_dir() and directory.suffix != ".gguf":
            raise ValueError(
                f"model={str(directory)!r}: must be a directory in Hugging Face layout, or a .gguf file"
            )
        if revision is not None:
            raise ValueError(f"revision={revision!r}: only a hub id has revisions, not {directory}")
        return directory
    assert model is not None
    if not _HUB_ID.fullmatch(model):
        raise ValueError(f"model={model!r}: neither a directory nor a hub id (owner/name)")
    return _download(model, revision)


def _existing_path(model: str) -> Path | None:
    try:
        path = Path(model).expanduser()
        return path if model and path.exists() else None
    except (OSError, RuntimeError, ValueError):  # too long, no such user, a null byte
        return None


def _download(model: str, revision: str | None) -> Path:
    # Imported here: local models need none of it, and it takes longer than they take to load.
    from huggingface_hub import constants, errors, snapshot_download

    name = f"model={model!r}" if revision is None else f"model={model!r}, revision={revision!r}"
    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=list(_FILES)))
    except errors.GatedRepoError as error:
        raise ValueError(
            f"{name}: its owner asks for an agreement first: accept it at "
            f"{constants.ENDPOINT}/{model}, then set HF_TOKEN or run `hf auth login`"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ValueError(
            f"{name}: no directory of that name here and no such model at {constants.ENDPOINT}; "
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
            f"{name}: {reason}, and the cache {constants.HF_HUB_CACHE} does not hold the model: "
            "connect once to download it, or name a directory"
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
