"""Writes transformers' logits and beams in f32 for the tiny checkpoint of every family.

tests/golden/*.npz: logits. tests/golden/beams.json: for some families the beam searches of
`BeamCase.drawn(seed)`, as lists of [token ids, score].

    python tests/golden/make_golden.py [FAMILY]...

Needs the `oracle` extra. To be run again when tests/support/checkpoints.py changes a checkpoint.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

GOLDEN = Path(__file__).parent
sys.path.insert(0, str(GOLDEN.parent))

from support.beam_cases import FAMILIES as BEAM_FAMILIES  # noqa: E402
from support.beam_cases import GOLDEN_SEEDS, BeamCase  # noqa: E402
from support.checkpoints import FAMILIES, write_checkpoint  # noqa: E402
from support.golden_prompts import ROWS, golden_prompts  # noqa: E402
from support.transformers_models import load_theirs  # noqa: E402


def main(families: list[str]) -> None:
    beams_file = GOLDEN / "beams.json"
    beams = json.loads(beams_file.read_text())
    for family in families or FAMILIES:
        with tempfile.TemporaryDirectory() as directory:
            checkpoint = write_checkpoint(Path(directory), family)
            logits = {}
            for i, prompt in enumerate(golden_prompts()):
                # Loaded anew: dynamic scaling keeps the longest length that it has seen.
                with torch.no_grad():
                    rows = load_theirs(checkpoint)(torch.tensor([prompt])).logits[0, list(ROWS)]
                logits[f"prompt_{i}"] = rows.numpy()
            if family in BEAM_FAMILIES:
                model = load_theirs(checkpoint)
                beams[family] = [
                    BeamCase.drawn(seed).transformers_answer(model) for seed in GOLDEN_SEEDS
                ]
        np.savez_compressed(GOLDEN / f"{family}.npz", **logits)
    beams_file.write_text(json.dumps(beams, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
