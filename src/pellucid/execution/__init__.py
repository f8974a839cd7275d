"""Data plane: executes scheduled steps. Arrays, no policy."""
