"""What each weight format costs and gains on a real model: the table of docs/quantization.md.

    python benchmarks/weight_formats.py MODEL.gguf --text FILE [--max-tokens 256] [--llama LIBRARY]

For the file as it is, for each format that pellucid quantizes its weights to, and, with llama.cpp's library
(`python tools/fetch_models.py FOLDER llama.cpp`), for files of GGUF's types with the same weights, written here:

KL, same, perplexity   of the next token, beside the file's own numbers with f32 arithmetic and an f32 cache
MB                     weights in memory, in 10^6 bytes
KL of llama.cpp        on the same file, with its f16 cache (ours is bf16); ratio: ours divided by it
prompt, decode         speed as a ratio to int8: processor time of one thread, median of rounds in turn
"""

import argparse
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

import numpy as np
from quantization_quality import LogProbs, Quality, compare, next_token_log_probs

from pellucid.engine import LLMEngine
from pellucid.inputs.config import QUANTIZATIONS, EngineConfig
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.loaded_model import load_model

LLAMA_CPP = Path(__file__).parents[1] / "tools" / "llama_cpp.py"
GGUF_TYPES = ("Q8_0", "Q6_K", "Q5_K", "Q4_K", "IQ4_XS", "Q4_0", "MXFP4")
SPEED_REFERENCE = "int8"
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
    reference: LogProbs,
    token_ids: list[int],
    llama: Callable[[Path], LogProbs] | None,
) -> Row:
    model = load_model(config)
    assert config.model is not None
    found = next_token_log_probs(model.decoder, model.config, model.backend, token_ids, "bf16")
    theirs = None if llama is None else llama(Path(config.model))
    return Row(
        name,
        compare([reference], [found], [token_ids]),
        model.weight_bytes,
        LLMEngine(config, model),
        None if theirs is None else compare([reference], [theirs], [token_ids]).divergence,
    )


def log_probs_of_llama(library: Path, token_ids: list[int], path: Path) -> LogProbs:
    with tempfile.TemporaryDirectory() as folder:
        ids, out = Path(folder, "ids.json"), Path(folder, "logits.npz")
        ids.write_text(json.dumps([token_ids]))
        command = [sys.executable, str(LLAMA_CPP), str(library), "logits", *map(str, (path, ids))]
        subprocess.run([*command, str(out)], check=True)
        logits = np.load(out)["arr_0"].astype(np.float64)
    logits -= logits.max(axis=-1, keepdims=True)
    return np.asarray(logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True)))


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


def print_quality(row: Row) -> None:
    quality, theirs = row.quality, row.divergence_of_llama
    llama = "|" if theirs is None else f"{theirs:.5f} | {quality.divergence / theirs:.2f}"
    print(
        f"| {row.name} | {quality.divergence:.5f} | {quality.agreement:.1%} | {quality.perplexity:.2f} "
        f"| {row.weight_bytes / 1e6:.0f} | {llama} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("--text", type=Path, required=True, help="UTF-8 text to read")
    parser.add_argument("--max-tokens", type=int, default=256, help="of the text (256)")
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
    token_ids = token_ids[: args.max_tokens]
    if len(token_ids) < PROMPT:
        parser.error(f"--text {args.text}: has fewer than {PROMPT} tokens")
    reference = next_token_log_probs(exact.decoder, exact.config, exact.backend, token_ids)
    own = compare([reference], [reference], [token_ids])
    print(f"{exact.name}: {len(token_ids)} tokens of {args.text}, perplexity {own.perplexity:.2f}")
    llama = None if args.llama is None else partial(log_probs_of_llama, args.llama, token_ids)
    print("| | KL (nats) | same | perplexity | MB | KL of llama.cpp | ratio |")
    print("|---|--:|--:|--:|--:|--:|--:|", flush=True)
    rows: list[Row] = []

    def add(name: str, settings: EngineConfig, has_file: bool = True) -> None:
        rows.append(measure(name, settings, reference, token_ids, llama if has_file else None))
        print_quality(rows[-1])

    with tempfile.TemporaryDirectory() as scratch:
        add("as published", config(args.model))
        for name in QUANTIZATIONS[1:]:
            add(name, config(args.model, quantization=name), has_file=False)
        if args.llama is not None:
            folder = args.folder or Path(scratch)
            for name, path in gguf_files(args.llama, args.model, folder):
                add(f"GGUF, {name}", config(path))
        found = speeds(rows, token_ids, args.rounds)
    print("\n| | prompt | decode |\n|---|--:|--:|")
    for name, (prompt, decode) in found.items():
        print(f"| {name} | {prompt:.2f} | {decode:.2f} |")


if __name__ == "__main__":
    main()
