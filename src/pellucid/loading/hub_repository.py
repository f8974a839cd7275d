"""A repository of the Hugging Face hub: its files, ranges of their bytes, and errors that say what to do."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct


class HubName(Struct, frozen=True):
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


def fetch_files(name: HubName, patterns: Collection[str], snapshot: Path | None = None) -> Path:
    """Downloads small files into the hub's cache, as far as they are not there. No progress is shown.

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
    from huggingface_hub.utils import tqdm  # type: ignore[attr-defined]

    class NoBar(tqdm):
        def __init__(self, *args: Any, **facts: Any) -> None:
            super().__init__(*args, **{**facts, "disable": True})  # type: ignore[no-untyped-call]

    revision = name.revision if snapshot is None else snapshot.name
    with explained_errors(name):
        return Path(
            snapshot_download(
                name.repository,
                revision=revision,
                allow_patterns=list(patterns),
                tqdm_class=NoBar,
            )
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


@contextmanager
def open_range(name: HubName, commit: str, path: str, wanted: str) -> Iterator[Any]:
    """The hub's answer to a request for bytes of a file, as httpx's Response, whose body is not read yet.

    Args:
        wanted: "first-last", or "first-" for all from there; counted from 0.

    Raises:
        Exception: of the transfer libraries; `explained_errors` turns it into one for people.
    """
    from huggingface_hub import constants, get_session, hf_hub_url, hf_raise_for_status
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    headers = {
        **build_hf_headers(),
        "Range": f"bytes={wanted}",
        "Accept-Encoding": "identity",
    }
    with get_session().stream(
        "GET",
        hf_hub_url(name.repository, path, revision=commit),
        headers=headers,
        timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT,
    ) as response:
        if response.is_error and response.status_code != 416:  # 416: the file ends before that
            response.read()
            hf_raise_for_status(response)
        if response.status_code == 200 and not wanted.startswith("0-"):
            raise RuntimeError("the server sends whole files only")
        yield response


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
        raise ConnectionError(
            f"{name}: the download broke off: {error!r}; the same command goes on where it stopped"
        ) from error
