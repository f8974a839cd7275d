"""Measures the available memory, and plans an engine's share of it."""
