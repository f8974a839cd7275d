"""Measures the engine's speed on this machine, and its share of the machine's bandwidth and peak."""
