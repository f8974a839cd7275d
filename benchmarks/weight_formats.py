"""What each weight format costs and gains on a real model: the table of docs/quantization.md.

    python benchmarks/weight_formats.py MODEL.gguf --text FILE [--topics 9] [--max-tokens 320] [--llama LIBRARY]

For the file as it is, for each format that pellucid quantizes its weights to, and, with llama.cpp's library
(`python tools/fetch_models.py FOLDER llama.cpp`), for files of GGUF's types with the same weights, written here:

KL, same, perplexity   of the next token, beside the file's own numbers with f32 arithmetic and an f32 cache
MB                     weights in memory, in 10^6 bytes
prompt, decode         speed as a ratio to int8: processor time of one thread, median of rounds in turn
KL of llama.cpp        on the same file, with its f16 cache (ours is bf16); ratio: ours divided by it

The texts are FILE's first tokens, and those of the first pages of Python's own documentation (pydoc_data) that are
long enough.
"""

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
from quantization_quality import LogProbs, Quality, compare, next_token_log_probs

from pellucid.engine import LLMEngine
from pellucid.inputs.config import QUANTIZATIONS, EngineConfig
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.loaded_model import LoadedModel, load_model

LLAMA_CPP = Path(__file__).parents[1] / "tools" / "llama_cpp.py"
GGUF_TYPES = ("Q8_0", "Q6_K", "Q5_K", "Q4_K", "IQ4_XS", "Q4_0", "MXFP4")
SPEED_REFERENCE = "`int8`"
PROMPT, GENERATED = 128, 8  # tokens of a round


@dataclass
class Row:
    """A format.

    Args:
        divergence_of_llama: llama.cpp's on the same file; None: there is no such file, or no llama.cpp.
    """

    name: str
    quality: Quality
    weight_bytes: int
    engine: LLMEngine
    divergence_of_llama: float | None


def measure(
    name: str,
    config: EngineConfig,
    references: list[LogProbs],
    texts: list[list[int]],
    llama: Callable[[Path], list[LogProbs]] | None,
) -> Row:
    model = load_model(config)
    assert config.model is not None
    theirs = None if llama is None else compare(references, llama(Path(config.model)), texts)
    return Row(
        name,
        compare(references, log_probs(model, texts, "bf16"), texts),
        model.weight_bytes,
        LLMEngine(config, model),
        None if theirs is None else theirs.divergence,
    )


def log_probs(model: LoadedModel, texts: list[list[int]], kv_dtype: str) -> list[LogProbs]:
    return [
        next_token_log_probs(model.decoder, model.config, model.backend, text, kv_dtype)
        for text in texts
    ]


def log_probs_of_llama(library: Path, texts: list[list[int]], path: Path) -> list[LogProbs]:
    with tempfile.TemporaryDirectory() as folder:
        ids, out = Path(folder, "ids.json"), Path(folder, "logits.npz")
        ids.write_text(json.dumps(texts))
        command = [sys.executable, str(LLAMA_CPP), str(library), "logits", *map(str, (path, ids))]
        subprocess.run([*command, str(out)], check=True)
        with np.load(out) as found:
            logits = [found[f"arr_{index}"].astype(np.float64) for index in range(len(texts))]
    for rows in logits:
        rows -= rows.max(axis=-1, keepdims=True)
        rows -= np.log(np.exp(rows).sum(axis=-1, keepdims=True))
    return logits


def gguf_files(library: Path, path: Path, folder: Path) -> Iterator[tuple[str, Path]]:
    files = {each: folder / f"{each}.gguf" for each in GGUF_TYPES}
    if missing := [each for each, file in files.items() if not file.exists()]:
        command = [sys.executable, str(LLAMA_CPP), str(library), "quantize", str(path)]
        subprocess.run([*command, str(folder), *missing], check=True)
    yield from files.items()


def seconds(engine: LLMEngine, token_ids: list[int]) -> tuple[float, float]:
    """Processor time of a prompt, and of the tokens after the first one."""
    params = SamplingParams(temperature=0, max_tokens=GENERATED + 1, ignore_eos=True)
    engine.add_request(token_ids[:PROMPT], params)
    start = time.process_time()
    engine.step()
    prompt_end = time.process_time()
    while engine.has_unfinished_requests:
        engine.step()
    return prompt_end - start, time.process_time() - prompt_end


def speeds(rows: list[Row], token_ids: list[int], rounds: int) -> dict[str, tuple[float, float]]:
    """Of prompts and of decode: medians of ratios to the reference in the same round."""
    found: dict[str, list[tuple[float, float]]] = {row.name: [] for row in rows}
    for number in range(rounds + 1):
        of_round = {row.name: seconds(row.engine, token_ids) for row in rows}
        if number:  # the first round builds programs
            prompt, decode = of_round[SPEED_REFERENCE]
            for name, (own_prompt, own_decode) in of_round.items():
                found[name].append((prompt / own_prompt, decode / own_decode))
    return {
        name: (statistics.median(p for p, _ in ratios), statistics.median(d for _, d in ratios))
        for name, ratios in found.items()
    }


def print_row(row: Row, prompt: float, decode: float) -> None:
    quality, theirs = row.quality, row.divergence_of_llama
    llama = "|" if theirs is None else f"{theirs:#.2g} | {quality.divergence / theirs:.2f}"
    print(
        f"| {row.name} | {quality.divergence:#.2g} | {100 * quality.agreement:.1f} % | {quality.perplexity:.2f} "
        f"| {row.weight_bytes / 1e6:.0f} | {prompt:.1f} | {decode:.1f} | {llama} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("--text", type=Path, required=True, help="UTF-8 text to read")
    parser.add_argument("--topics", type=int, default=9, help="pages of Python's to read (9)")
    parser.add_argument("--max-tokens", type=int, default=320, help="of a text (320)")
    parser.add_argument("--llama", type=Path, metavar="LIBRARY", help="see above")
    parser.add_argument("--folder", type=Path, help="keeps the files that are written here")
    parser.add_argument("--rounds", type=int, default=5, help="of speeds (5)")
    args = parser.parse_args()

    def config(path: Path, **changes: object) -> EngineConfig:
        settings = {"backend": "cpu", "num_threads": 1, "speculation": "off", "max_model_len": 512}
        settings |= {"model": str(path), "kv_cache_memory": 1 << 26, "max_num_seqs": 1}
        return EngineConfig(**(settings | {"enable_prefix_caching": False} | changes))  # type: ignore[arg-type]

    exact = load_model(config(args.model, quantize_activations=False))
    token_ids = list(exact.tokenizer.encode(args.text.read_text(encoding="utf-8")))
    if len(token_ids) < PROMPT:
        parser.error(f"--text {args.text}: has fewer than {PROMPT} tokens")
    pages = (list(exact.tokenizer.encode(topics[name])) for name in sorted(topics))
    long_enough = (page for page in pages if len(page) >= args.max_tokens)
    texts = [
        text[: args.max_tokens] for text in (token_ids, *itertools.islice(long_enough, args.topics))
    ]
    references = log_probs(exact, texts, "f32")
    own = compare(references, references, texts)
    print(f"{exact.name}: {len(texts)} texts, {sum(map(len, texts))} tokens", flush=True)
    llama = None if args.llama is None else partial(log_probs_of_llama, args.llama, texts)
    rows: list[Row] = []

    def add(name: str, settings: EngineConfig, has_file: bool = True) -> None:
        print(name, file=sys.stderr, flush=True)
        rows.append(measure(name, settings, references, texts, llama if has_file else None))

    with tempfile.TemporaryDirectory() as scratch:
        add("as published", config(args.model))
        for name in QUANTIZATIONS[1:]:
            add(f"`{name}`", config(args.model, quantization=name), has_file=False)
        if args.llama is not None:
            folder = args.folder or Path(scratch)
            for name, path in gguf_files(args.llama, args.model, folder):
                add(f"GGUF, {name}", config(path))
        found = speeds(rows, token_ids, args.rounds)
    print(
        f"| | KL (nats) | most likely token unchanged | perplexity (f32: {own.perplexity:.2f}) | MB | prompt | decode "
        "| llama.cpp's KL on the same file | ours divided by it |\n|---|" + "--:|" * 8
    )
    for row in rows:
        print_row(row, *found[row.name])


if __name__ == "__main__":
    main()
