"""Hostile GGUF files: headers, vocabularies and tensors."""

import struct
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from hostile.case import Case
from hostile.checkpoint_cases import MEGABYTES, load
from support.checkpoints import write_checkpoint
from support.gguf_files import write_gguf

SIZE = 32  # of everything in the models here
Q8_0, Q8_0_BYTES = 8, 34  # its number, and bytes of 32 weights
U8, U32, F32, BOOL, STRING, ARRAY, U64 = 0, 4, 6, 7, 8, 9, 10
FACTS = {
    "general.architecture": "llama",
    "llama.block_count": 1,
    "llama.context_length": 128,
    "llama.embedding_length": SIZE,
    "llama.feed_forward_length": SIZE,
    "llama.attention.head_count": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
}


def GOOD() -> None:  # noqa: N802 (one of the three that warm up)
    """Loads a good file."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        load(write_gguf(path / "good.gguf", write_checkpoint(path, "llama")))


# -- how a file is written, wrong ones too ---------------------------------------------------------


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def value(given: Any) -> bytes:
    """A value with its type."""
    if isinstance(given, bool):
        return struct.pack("<I?", BOOL, given)
    if isinstance(given, int):
        return struct.pack("<II", U32, given)
    if isinstance(given, float):
        return struct.pack("<If", F32, given)
    if isinstance(given, str):
        return struct.pack("<I", STRING) + text(given)
    items = list(given)
    if isinstance(items[0], str):
        return struct.pack("<IIQ", ARRAY, STRING, len(items)) + b"".join(map(text, items))
    kind, letter = (U32, "I") if isinstance(items[0], int) else (F32, "f")
    return struct.pack("<IIQ", ARRAY, kind, len(items)) + struct.pack(
        f"<{len(items)}{letter}", *items
    )


def gguf(
    metadata: Iterable[tuple[str, Any]],
    tensors: Iterable[bytes] = (),
    *,
    num_tensors: int | None = None,
    num_entries: int | None = None,
) -> bytes:
    """A header; `Any` is a value, or the bytes of one."""
    entries = [text(key) + (v if isinstance(v, bytes) else value(v)) for key, v in metadata]
    infos = list(tensors)
    counts = struct.pack(
        "<IQQ",
        3,
        len(infos) if num_tensors is None else num_tensors,
        len(entries) if num_entries is None else num_entries,
    )
    return b"GGUF" + counts + b"".join(entries) + b"".join(infos)


def tensor(name: str, *shape: int, kind: int = 0, offset: int = 0) -> bytes:
    """A tensor's description; `shape` is in the file's order."""
    sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + sizes + struct.pack("<IQ", kind, offset)


def with_vocabulary(tokens: list[str], **others: Any) -> bytes:
    """A model that loads, if its tokenizer does. Its weights are zeros."""
    vocabulary = {"model": "llama", "tokens": tokens, "token_type": [1] * len(tokens)}
    others = vocabulary | {"eos_token_id": 0} | others
    metadata = dict(FACTS)
    metadata |= {f"tokenizer.ggml.{key}": given for key, given in others.items()}
    matrices = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    shapes = {"token_embd.weight": (SIZE, len(tokens)), "output_norm.weight": (SIZE,)}
    shapes |= {f"blk.0.{name}.weight": (SIZE,) for name in ("attn_norm", "ffn_norm")}
    shapes |= {f"blk.0.{name}.weight": (SIZE, SIZE) for name in matrices}
    infos, offset = [], 0
    for name, (_, *rows) in shapes.items():
        infos.append(tensor(name, *shapes[name], kind=Q8_0 if rows else 0, offset=offset))
        offset = aligned(offset + (Q8_0_BYTES * rows[0] if rows else 4 * SIZE))
    header = gguf(metadata.items(), infos)
    return header + bytes(aligned(len(header)) - len(header) + offset)


def aligned(position: int) -> int:
    return -(-position // 32) * 32


def gguf_case(
    what: str, content: Callable[[], bytes], *, name: str = "x.gguf", may_succeed: bool = False
) -> Case:
    def make(path: Path) -> Path:
        (path / name).write_bytes(content())
        return path / name

    return Case(f"gguf: {what}", make, load, may_succeed)


def array(kind: int, count: int, data: bytes = b"") -> bytes:
    """An array whose count may be wrong."""
    return struct.pack("<IIQ", ARRAY, kind, count) + data


def byte_level(**others: Any) -> bytes:
    return with_vocabulary(["a", "b"], **({"model": "gpt2", "pre": "gpt-2"} | others))


def many_layers(count: int) -> bytes:
    metadata = FACTS | {"llama.block_count": count}
    infos = [tensor("token_embd.weight", SIZE, 1)]
    return gguf(metadata.items(), infos) + bytes(8 * SIZE)


def scored(tokens: list[str], **others: Any) -> bytes:
    return with_vocabulary(tokens, scores=[float(-i) for i in range(len(tokens))], **others)


def tokens_of_all_lengths() -> list[str]:
    """Each of up to 256 characters, each beginning and end of which may be a token too."""
    return sorted({chr(97 + i % 26) * (i // 26 + 1) for i in range(26 * 256)})[::3]


REFUSED: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "magic only": lambda: b"GGUF",
    "zeros": lambda: bytes(MEGABYTES),
    "a pointer of Git LFS": lambda: b"version https://git-lfs.github.com/spec/v1\noid",
    "2^60 tensors": lambda: gguf([], num_tensors=1 << 60),
    "2^60 entries": lambda: gguf([], num_entries=1 << 60),
    "65,000 entries": lambda: gguf((f"k{i}", i) for i in range(65_000)),
    "65,000 tensors": lambda: gguf([], (tensor(f"t{i}", 1) for i in range(65_000))),
    "tensors without facts": lambda: gguf([], [tensor("t", 1)]) + bytes(64),
    "a key of nine megabytes": lambda: gguf([("k" * MEGABYTES, 1)]),
    "a string of 2^63 bytes": lambda: gguf([("k", struct.pack("<IQ", STRING, 1 << 63))]),
    "an array of 2^60 strings": lambda: gguf([("k", array(STRING, 1 << 60))]),
    "an array of nested arrays": lambda: gguf([("k", array(ARRAY, 1) * 500_000)]),
    "four million numbers": lambda: gguf([("k", array(U8, 1 << 22, bytes(1 << 22)))] * 2),
    "a million empty strings": lambda: gguf([("k", array(STRING, 1_000_000, bytes(8_000_000)))]),
    "a shape beyond 64 bits": lambda: gguf([], [tensor("t", 2**40, 2**40, 2**40)]),
    "a tensor beyond the file": lambda: gguf([], [tensor("t", 2**31)]),
    "an unknown architecture of nine megabytes": lambda: gguf([("general.architecture", "x" * MEGABYTES)]),
    "a LoRA adapter": lambda: gguf([("general.type", "adapter"), ("general.architecture", "llama")]),
    "a part that is alone": lambda: gguf([*FACTS.items(), ("split.count", 99_999)]),
    "two billion layers": lambda: many_layers(2**31 - 1),
    "ten thousand layers": lambda: many_layers(10_000),
    "a scored token of 100,000 characters": lambda: scored(["<unk>", "x" * 100_000]),
    "a scored token of nine megabytes": lambda: scored(["<unk>", "x" * MEGABYTES]),
    "a score of NaN": lambda: with_vocabulary(["a", "b"], scores=[0.0, float("nan")]),
    "a token type of 99": lambda: with_vocabulary(["a", "b"], token_type=[1, 99]),
    "an endless added token": lambda: scored(["a", "x" * MEGABYTES], token_type=[1, 3]),
    "merges that are no pairs": lambda: byte_level(merges=["ab"] * 500_000),
    "an endless merge": lambda: byte_level(merges=["a " * 4_000_000]),
    "an unknown splitting of nine megabytes": lambda: byte_level(pre="x" * MEGABYTES, merges=["a b"]),
}  # fmt: skip
# Odd, but models: their cost is bounded all the same.
ODD: dict[str, Callable[[], bytes]] = {
    "scored tokens of all lengths": lambda: scored(tokens_of_all_lengths()),
    "50,000 scored tokens": lambda: scored([f"{i}" for i in range(50_000)]),
    "50,000 added tokens": lambda: scored(
        [f"<{i}>" for i in range(50_000)], token_type=[3] * 50_000
    ),
}
CASES = (
    *(gguf_case(what, content) for what, content in REFUSED.items()),
    *(gguf_case(what, content, may_succeed=True) for what, content in ODD.items()),
    gguf_case(
        "a part of a hundred thousand", lambda: gguf(FACTS.items()), name="x-00001-of-99999.gguf"
    ),
)
