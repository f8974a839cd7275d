"""Writes documents to read them, one a line as JSON: `python training/make_corpus.py --documents 20 --seed 1`.

Training needs no file: `data.py` draws the same documents on the fly.
"""

import argparse
import json
from itertools import islice

from corpus.mixture import documents

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--documents", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--held-out", action="store_true")
    args = parser.parse_args()
    for kind, text in islice(documents(args.seed, args.held_out), args.documents):
        print(json.dumps({"kind": kind, "text": text}, ensure_ascii=False))
