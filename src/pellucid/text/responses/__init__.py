"""Parses a model's answer while it arrives: reasoning, content and tool calls."""
