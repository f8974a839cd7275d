"""pellucid: an LLM inference engine that you can see through."""

from importlib import import_module
from typing import TYPE_CHECKING

from pellucid.facts.garbage import paused_collector

if TYPE_CHECKING:
    from pellucid.async_engine import AsyncLLMEngine
    from pellucid.inputs.beam_search_params import BeamSearchParams
    from pellucid.inputs.config import EngineConfig
    from pellucid.inputs.llm_inputs import TextPrompt, TokensPrompt
    from pellucid.inputs.prompts import ChatPrompt
    from pellucid.inputs.sampling_params import SamplingParams
    from pellucid.inputs.structured_outputs import StructuredOutputsParams
    from pellucid.llm import LLM
    from pellucid.outputs import CompletionOutput, RequestOutput

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "AsyncLLMEngine",
    "BeamSearchParams",
    "ChatPrompt",
    "CompletionOutput",
    "EngineConfig",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
]

# Imported when first used, so that `pellucid --help` does not wait for numpy.
_MODULES = {
    "AsyncLLMEngine": "async_engine",
    "BeamSearchParams": "inputs.beam_search_params",
    "ChatPrompt": "inputs.prompts",
    "CompletionOutput": "outputs",
    "EngineConfig": "inputs.config",
    "LLM": "llm",
    "RequestOutput": "outputs",
    "SamplingParams": "inputs.sampling_params",
    "StructuredOutputsParams": "inputs.structured_outputs",
    "TextPrompt": "inputs.llm_inputs",
    "TokensPrompt": "inputs.llm_inputs",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with paused_collector():
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
