"""Finds the headers of a model: of its files here, or of those on the hub, without weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pellucid.loading.hub import ModelLocation, find_local_or_hub_model


@contextmanager
def find_headers(
    model: str | None, revision: str | None = None, *, with_weights: bool = True
) -> Iterator[ModelLocation]:
    """As `find_model`, but nothing is downloaded except configuration and headers. The files exist within the block.

    Args:
        with_weights: whether the headers of weights are needed where there is a config.json; if not, only this is
            downloaded.

    Raises:
        ValueError: as `find_model`. A ValueError in the block names files as the hub does.
        OSError: as `find_model`.
    """
    found = find_local_or_hub_model(model, revision)
    if isinstance(found, ModelLocation):
        yield found
        return
    # Imported here: files that are here already need none of it.
    from tempfile import TemporaryDirectory

    from pellucid.loading.hub_stand_ins import make_stand_ins

    with TemporaryDirectory(prefix="pellucid-") as root:
        folder = Path(root) / found.repository
        folder.mkdir(parents=True)
        try:
            yield ModelLocation(make_stand_ins(found, folder, with_weights), found.model)
        except ValueError as error:
            raise ValueError(str(error).replace(f"{root}/", "")) from None
