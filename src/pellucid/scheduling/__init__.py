"""Control plane: which tokens of which requests the next step computes. Pure Python, no arrays."""
