"""Writes tests/golden/*.npz: logits of transformers, in f32, for the tiny checkpoint of every family.

    python tests/golden/make_golden.py

Needs the `oracle` extra. To be run again when tests/support/checkpoints.py changes a checkpoint.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

GOLDEN = Path(__file__).parent
sys.path.insert(0, str(GOLDEN.parent))

from support.checkpoints import FAMILIES, write_checkpoint  # noqa: E402
from support.golden_prompts import ROWS, golden_prompts  # noqa: E402


def main() -> None:
    for family in FAMILIES:
        with tempfile.TemporaryDirectory() as directory:
            checkpoint = write_checkpoint(Path(directory), family)
            logits = {}
            for i, prompt in enumerate(golden_prompts()):
                # Loaded anew: dynamic scaling keeps the longest length that it has seen.
                model = AutoModelForCausalLM.from_pretrained(
                    checkpoint, dtype=torch.float32, attn_implementation="eager"
                )
                with torch.no_grad():
                    rows = model(torch.tensor([prompt])).logits[0, list(ROWS)]
                logits[f"prompt_{i}"] = rows.numpy()
        np.savez_compressed(GOLDEN / f"{family}.npz", **logits)


if __name__ == "__main__":
    main()
