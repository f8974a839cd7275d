"""pellucid: an LLM inference engine that you can see through."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pellucid.async_engine import AsyncLLMEngine
    from pellucid.beam_search_params import BeamSearchParams
    from pellucid.config import EngineConfig
    from pellucid.llm import LLM
    from pellucid.sampling_params import SamplingParams

__version__ = "0.1.0"
__all__ = ["LLM", "AsyncLLMEngine", "BeamSearchParams", "EngineConfig", "SamplingParams"]

# Imported when first used, so that `pellucid --help` does not wait for numpy.
_HOMES = {
    "AsyncLLMEngine": "pellucid.async_engine",
    "BeamSearchParams": "pellucid.beam_search_params",
    "EngineConfig": "pellucid.config",
    "LLM": "pellucid.llm",
    "SamplingParams": "pellucid.sampling_params",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
