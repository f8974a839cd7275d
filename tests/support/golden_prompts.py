"""The prompts of tests/golden and tests/oracle, whose logits are compared with transformers'."""

import numpy as np

VOCAB_SIZE = 320
ROWS = (0, 17, -1)  # of each prompt, kept in the golden files


def golden_prompts() -> list[list[int]]:
    """Below and beyond the original length (32) of the tiny checkpoints, both beyond their windows."""
    rng = np.random.default_rng(20)
    return [rng.integers(0, VOCAB_SIZE, length).tolist() for length in (24, 61)]
