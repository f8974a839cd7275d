"""Writes what llama.cpp makes of the texts of tests/support/texts_of_all_scripts.py, for test_texts.py.

PELLUCID_TEST_MODELS=FOLDER python tests/real/write_token_ids.py      needs llama-cpp-python
"""

import json
import sys
from pathlib import Path

from llama_cpp import Llama

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.real_models import FILES, TOKEN_IDS, real_file
from support.texts_of_all_scripts import TEXTS


def main() -> None:
    found = {}
    for name in FILES:
        llama = Llama(str(real_file(name)), vocab_only=True, verbose=False)
        found[name] = [
            llama.tokenize(text.encode(), add_bos=False, special=True) if text else []
            for text in TEXTS
        ]
    lines = [
        f'"{name}": [\n'
        + ",\n".join(json.dumps(ids, separators=(",", ":")) for ids in texts)
        + "\n]"
        for name, texts in found.items()
    ]
    TOKEN_IDS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
