"""`pellucid rm`: deletes downloaded models."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from pellucid.cli.output.terminal import EXIT_FAILED, note
from pellucid.cli.output.units import num_bytes
from pellucid.cli.parsing.panels import OTHERS, argument
from pellucid.facts.model_names import find_short_name

if TYPE_CHECKING:
    from pellucid.model_store.cache import CachedModel


def rm(
    names: Annotated[
        list[str],
        argument(
            "NAME...",
            "As pellucid list shows it. owner/name and a short name mean all files of their repository.",
            autocompletion=lambda incomplete: _completed(incomplete),
        ),
    ],
    *,
    yes: bool = OTHERS.flag("Delete without a question.", "--yes", "-y"),
) -> None:
    """Delete downloaded models.

    Only files in the cache of the Hugging Face hub, and none that a process has open.
    """
    from pellucid.model_store.cache import cached_models, delete, users_of

    cached = cached_models()
    chosen = [model for model in cached if any(_is_meant(name, model) for name in names)]
    for name in names:
        if not any(_is_meant(name, model) for model in chosen):
            raise ValueError(_unknown(name, cached))
    if users := users_of(chosen):
        shown = ", ".join(map(str, users))
        raise ValueError(f"{', '.join(names)}: in use by process {shown}; end it first")
    for model in chosen:
        note(f"{model.name}: {model.file_format}, {num_bytes(model.num_bytes)}, {model.path}")
    total = num_bytes(sum(model.num_bytes for model in chosen))
    if not yes and not _agreed(f"delete {total}? [y/N] "):
        note("nothing was deleted")
        raise typer.Exit(EXIT_FAILED)
    delete(chosen)
    note(f"deleted {total}")


def _is_meant(name: str, model: "CachedModel") -> bool:
    if (short := find_short_name(name)) is None:
        return name in (model.name, model.repository)
    known, tag = short
    return model.repository == known.repository and tag in (None, model.tag)


def can_ask() -> bool:
    return sys.stdin.isatty()


def _agreed(question: str) -> bool:
    if not can_ask():
        raise ValueError("--yes: is needed where nobody can be asked")
    print(question, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _unknown(name: str, cached: "list[CachedModel]") -> str:
    from pellucid.model_store.cache import cache_folder

    known = ", ".join(model.name for model in cached) or "no models"
    return (
        f"{name}: is not in {cache_folder()}, outside of which nothing is deleted; it has {known}"
    )


def _completed(incomplete: str) -> list[str]:
    from pellucid.model_store.cache import cached_models

    return [model.name for model in cached_models() if model.name.startswith(incomplete)]
