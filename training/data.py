"""Batches of token ids: rows of whole documents, a pure function of (seed, step), so a run resumes anywhere."""

from itertools import islice
from pathlib import Path

import torch
from corpus.mixture import documents
from tokenizers import Tokenizer

END_OF_TEXT = 1
# Documents reach beyond a row's end now and then; much beyond would only be cut away.
CHARACTERS_PER_TOKEN = 3


def load_tokenizer(directory: Path) -> Tokenizer:
    return Tokenizer.from_file(str(directory / "tokenizer.json"))


def batch(
    tokenizer: Tokenizer,
    seed: int,
    step: int,
    rows: int,
    length: int,
    drills: int = 0,
    held_out: bool = False,
) -> torch.Tensor:
    """`rows` x `length + 1` ids; each row begins with a document and is filled with more of them."""
    stream = documents(
        seed * 1_000_003 + step,
        held_out,
        longest_recall=CHARACTERS_PER_TOKEN * length,
        drills=drills,
    )
    filled: list[list[int]] = []
    row: list[int] = []
    while len(filled) < rows:
        texts = [text for _, text in islice(stream, 8)]
        for encoding in tokenizer.encode_batch_fast(texts):
            row += [*encoding.ids, END_OF_TEXT]
            if len(row) > length:
                filled.append(row[: length + 1])
                row = []
    return torch.tensor(filled[:rows])
