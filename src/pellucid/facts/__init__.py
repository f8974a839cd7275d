"""Plain arithmetic: the facts of a checkpoint, groups of layers, bytes and operations."""
