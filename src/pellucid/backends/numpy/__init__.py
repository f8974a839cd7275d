"""The NumPy backend: the definition of every op, format and cache, on any machine."""
