"""Checks models by their headers: `pellucid check`."""
