"""The settings that an engine switches off for models with recurrent states."""

from collections.abc import Callable
from dataclasses import replace

from pellucid.config import EngineConfig


def without_reuse(config: EngineConfig, warn: Callable[[str], None]) -> EngineConfig:
    """The settings without blocks in files, beside which no recurrent states are kept.

    Args:
        warn: is told what was switched off that somebody asked for.
    """
    without = replace(config, prefix_cache_dir=None, swap_space=0)
    names = ("prefix_cache_dir", "swap_space")
    asked = [name for name in names if getattr(config, name) != getattr(without, name)]
    if asked:
        warn(
            f"{', '.join(asked)}: switched off, because this model has recurrent states, which do not go"
            " into a file"
        )
    return without
