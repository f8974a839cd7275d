"""Checks the path of the image that `--plot` writes."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from pellucid.cli.parsing.panels import OUTPUT

SUFFIXES = (".png", ".svg", ".pdf")
Plot = Annotated[Path | None, OUTPUT.option("FILE.png", "Write the plot as an image, too.")]


def check_image_path(path: Path | None) -> None:
    """Finds out before the runs, not after them, what would keep the image from being written.

    Raises:
        ValueError: matplotlib is missing, or the path cannot be one.
    """
    if path is None:
        return
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"--plot {path}: must end in {', '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise ValueError(f"--plot {path}: there is no directory {path.parent}")
    if find_spec("matplotlib") is None:
        raise ValueError("--plot: needs matplotlib; install it with: pip install 'pellucid[plot]'")
