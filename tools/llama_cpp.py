"""What llama.cpp makes of a GGUF file: called by benchmarks and tests, in a process of its own.

    python tools/llama_cpp.py LIBRARY logits MODEL TEXTS OUT [--cache TYPE]
        TEXTS: .json, lists of token ids; OUT: .npz, f32 [tokens, V] each; TYPE: of the KV cache
    python tools/llama_cpp.py LIBRARY quantize MODEL FOLDER TYPE...    writes TYPE.gguf, all matrices in blocks of TYPE

LIBRARY is a shared library with llama.cpp's C interface (llama.h), such as the one that
`python tools/fetch_models.py FOLDER llama.cpp` fetches.
"""

import argparse
import ctypes
import json
from collections.abc import Iterator
from ctypes import (
    POINTER,
    Structure,
    c_char_p,
    c_float,
    c_int8,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_void_p,
)
from pathlib import Path

import gguf
import numpy as np

# Of rows that no block of 256 fits into, llama.cpp stores these instead.
_FALLBACKS = {
    "Q6_K": "Q8_0",
    "Q5_K": "Q5_1",
    "Q4_K": "Q5_0",
    "Q3_K": "IQ4_NL",
    "Q2_K": "IQ4_NL",
    "IQ4_XS": "IQ4_NL",
}
BLOCK_TYPES = ("Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0", "IQ4_NL", "MXFP4", *_FALLBACKS)


class _Params(Structure):
    """Of any kind: the library fills in its defaults. Larger than each of its structures of parameters, of which only
    fields at the front are set here, which stand where they always stood."""

    _fields_ = (("words", c_uint32 * 128),)


_CONTEXT_SIZE, _BATCH_SIZE, _MICRO_BATCH_SIZE = 0, 1, 2  # words of llama_context_params
# Of keys and of values, in the library of tools/model_packages.txt. Other versions have them elsewhere.
_CACHE_TYPES = (26, 27)
CACHE_TYPES = ("F16", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0")


class _Batch(Structure):
    _fields_ = (
        ("n_tokens", c_int32),
        ("token", POINTER(c_int32)),
        ("embd", c_void_p),
        ("pos", POINTER(c_int32)),
        ("n_seq_id", POINTER(c_int32)),
        ("seq_id", POINTER(POINTER(c_int32))),
        ("logits", POINTER(c_int8)),
    )


_LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, c_char_p, c_void_p)
_quiet = _LOG(lambda *_: None)


def load_library(path: Path) -> ctypes.CDLL:
    """With the types of the functions that are called here."""
    library = ctypes.CDLL(str(path))
    for name, result, arguments in (
        ("llama_backend_init", None, ()),
        ("llama_log_set", None, (_LOG, c_void_p)),
        ("llama_model_default_params", _Params, ()),
        ("llama_context_default_params", _Params, ()),
        ("llama_model_load_from_file", c_void_p, (c_char_p, _Params)),
        ("llama_model_get_vocab", c_void_p, (c_void_p,)),
        ("llama_vocab_n_tokens", c_int32, (c_void_p,)),
        ("llama_init_from_model", c_void_p, (c_void_p, _Params)),
        ("llama_batch_init", _Batch, (c_int32, c_int32, c_int32)),
        ("llama_batch_free", None, (_Batch,)),
        ("llama_free", None, (c_void_p,)),
        ("llama_decode", c_int32, (c_void_p, _Batch)),
        ("llama_get_logits", POINTER(c_float), (c_void_p,)),
        ("ggml_row_size", c_size_t, (c_int32, c_int64)),
        (
            "ggml_quantize_chunk",
            c_size_t,
            (c_int32, c_void_p, c_void_p, c_int64, c_int64, c_int64, c_void_p),
        ),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    library.llama_log_set(_quiet, None)
    library.llama_backend_init()
    return library


def logits(
    library: ctypes.CDLL, model_path: Path, texts: list[list[int]], cache_type: str
) -> Iterator[np.ndarray]:
    """Of each token's successor, f32 [tokens, V] for each text."""
    model = library.llama_model_load_from_file(
        bytes(model_path), library.llama_model_default_params()
    )
    if not model:
        raise RuntimeError(f"{model_path}: llama.cpp cannot load it")
    vocab_size = library.llama_vocab_n_tokens(library.llama_model_get_vocab(model))
    params = library.llama_context_default_params()
    for word in (_CONTEXT_SIZE, _BATCH_SIZE, _MICRO_BATCH_SIZE):
        params.words[word] = -(-max(map(len, texts)) // 256) * 256
    for word in _CACHE_TYPES:
        if params.words[word] != gguf.GGMLQuantizationType.F16:
            raise RuntimeError("the types of the cache are not where this version has them")
        params.words[word] = gguf.GGMLQuantizationType[cache_type]
    for token_ids in texts:
        context = library.llama_init_from_model(model, params)
        batch = library.llama_batch_init(len(token_ids), 0, 1)
        batch.n_tokens = len(token_ids)
        for index, token_id in enumerate(token_ids):
            batch.token[index], batch.pos[index], batch.logits[index] = token_id, index, 1
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = 0
        if not context or library.llama_decode(context, batch):
            raise RuntimeError(f"{model_path}: llama.cpp cannot compute it")
        found = library.llama_get_logits(context)
        yield np.ctypeslib.as_array(found, (len(token_ids), vocab_size)).copy()
        library.llama_batch_free(batch)
        library.llama_free(context)


def quantize(
    library: ctypes.CDLL, model_path: Path, folder: Path, block_types: list[str]
) -> list[Path]:
    """Writes copies of a file, each matrix of which, embedding included, is in blocks of one type: TYPE.gguf."""
    reader = gguf.GGUFReader(model_path)
    architecture = reader.fields[gguf.Keys.General.ARCHITECTURE].contents()
    paths = [folder / f"{each}.gguf" for each in block_types]
    writers = [gguf.GGUFWriter(path, architecture) for path in paths]
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == gguf.Keys.General.ARCHITECTURE:
            continue
        contents, (kind, *of_items) = field.contents(), field.types
        for writer in writers:
            writer.add_key_value(field.name, contents, kind, *of_items[-1:])
    for tensor in reader.tensors:
        numbers = gguf.dequantize(tensor.data, tensor.tensor_type)
        for writer, block_type in zip(writers, block_types, strict=True):
            if numbers.ndim < 2:
                writer.add_tensor(tensor.name, numbers)
                continue
            fits = numbers.shape[-1] % 256 == 0
            name = block_type if fits else _FALLBACKS.get(block_type, block_type)
            kind = gguf.GGMLQuantizationType[name]
            writer.add_tensor(tensor.name, _blocks(library, numbers, kind), raw_dtype=kind)
    for writer in writers:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return paths


def _blocks(
    library: ctypes.CDLL, numbers: np.ndarray, kind: gguf.GGMLQuantizationType
) -> np.ndarray:
    """Of a matrix f32 [N, K], as bytes [N, of a row]."""
    num_rows, row_size = numbers.shape
    numbers = np.ascontiguousarray(numbers, np.float32)
    blocks = np.empty((num_rows, library.ggml_row_size(kind, row_size)), np.uint8)
    library.ggml_quantize_chunk(
        kind, numbers.ctypes.data, blocks.ctypes.data, 0, num_rows, row_size, None
    )
    return blocks


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("library", type=Path, metavar="LIBRARY")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("logits")
    for name in ("model", "texts", "out"):
        command.add_argument(name, type=Path)
    command.add_argument("--cache", default="F16", choices=CACHE_TYPES, help="its type (F16)")
    command = commands.add_parser("quantize")
    for name in ("model", "folder"):
        command.add_argument(name, type=Path)
    command.add_argument("types", nargs="+", choices=BLOCK_TYPES)
    args = parser.parse_args()
    library = load_library(args.library)
    if args.command == "logits":
        texts = json.loads(args.texts.read_text())
        np.savez(args.out, *logits(library, args.model, texts, args.cache))
    else:
        quantize(library, args.model, args.folder, args.types)


if __name__ == "__main__":
    main()
