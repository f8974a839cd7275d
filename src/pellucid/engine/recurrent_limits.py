"""What an engine does without for models with recurrent states."""

from collections.abc import Callable
from dataclasses import replace

from pellucid.config import EngineConfig


def without_reuse(config: EngineConfig, warn: Callable[[str], None]) -> EngineConfig:
    """The settings without drafts, and without blocks in files, beside which no recurrent states are kept.

    Args:
        warn: is told what was switched off that somebody asked for.
    """
    without = replace(
        config,
        prefix_cache_dir=None,
        swap_space=0,
        speculation="off",
        draft_model=None,
    )
    names = ("prefix_cache_dir", "swap_space", "draft_model")
    asked = [name for name in names if getattr(config, name) != getattr(without, name)]
    if config.speculation in ("ngram", "draft"):
        asked.append("speculation")
    if asked:
        warn(
            f"{', '.join(asked)}: switched off, because this model has recurrent states, which neither go"
            " back behind a wrong draft nor into a file"
        )
    return without
