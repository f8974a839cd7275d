"""Data plane: carries a step out. Arrays, no policy."""
