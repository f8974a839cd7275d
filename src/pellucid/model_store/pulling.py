"""Downloads a model of the hub into its cache."""

from collections.abc import Callable
from pathlib import Path

from pellucid.loading.hub import ModelLocation, find_local_or_hub_model, find_model


def pull_model(model: str, revision: str | None, on_progress: Callable[[int, int], None]) -> Path:
    """The directory or the GGUF file in the cache. Arguments are those of `find_model`.

    Raises:
        ValueError: it is a file here, or the hub does not have it.
        OSError: the hub cannot be reached, or the cache cannot be written.
    """
    if isinstance(find_local_or_hub_model(model, revision), ModelLocation):
        raise ValueError(f"{model}: is here already: pellucid run {model}")
    return find_model(model, revision, on_progress).path
