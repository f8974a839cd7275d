"""The engine and its parts: schedule, execute, update, emit."""

from pellucid.engine.llm_engine import LLMEngine

__all__ = ["LLMEngine"]
