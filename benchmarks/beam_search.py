"""The cost of a beam search, compared with `n` completions of one prompt and with separate requests.

    python benchmarks/beam_search.py [MODEL] [--quantization int8] [--width 4] [--prompt 512] [--gen 64]

All arms compute the same number of tokens after the prompt and take turns. With `--transformers`, MODEL (a
directory in Hugging Face layout) is also searched by `generate(num_beams=...)` of an installed transformers, in
bf16 and with as many threads; give --quantization none to compare the same weights.
"""

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from pellucid.engine import LLMEngine
from pellucid.inputs.beam_search_params import BeamSearchParams, RequestParams
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.loaded_model import load_model

BEAMS, SHARED, APART = "beam search", "answers to one prompt", "requests apart"
TRANSFORMERS = "transformers"


def run(engine: LLMEngine, prompts: Sequence[Sequence[int]], params: RequestParams) -> float:
    """Seconds until all prompts, given at once, have their answers."""
    start = time.perf_counter()
    for prompt in prompts:
        engine.add_request(list(prompt), params)
    while engine.has_unfinished_requests:
        engine.step()
    return time.perf_counter() - start


def transformers_arm(args: argparse.Namespace) -> Callable[[Sequence[int]], float]:
    """The same search by transformers."""
    import torch
    from transformers import AutoModelForCausalLM

    if args.num_threads is not None:
        torch.set_num_threads(args.num_threads)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16)
    model.generation_config.eos_token_id = None

    def search(prompt: Sequence[int]) -> float:
        ids = torch.tensor([list(prompt)])
        start = time.perf_counter()
        with torch.no_grad():
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                num_beams=args.width,
                max_new_tokens=args.gen,
                do_sample=False,
                pad_token_id=0,
            )
        return time.perf_counter() - start

    return search


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", nargs="?", help="as `pellucid run`; left out, the bundled model")
    parser.add_argument("--quantization", default="int8")
    parser.add_argument("--num-threads", type=int)
    parser.add_argument("--width", type=int, default=4)
    parser.add_argument("--prompt", type=int, default=512, metavar="N", help="tokens (512)")
    parser.add_argument("--gen", type=int, default=64, metavar="N", help="tokens of output (64)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--transformers", action="store_true")
    args = parser.parse_args()

    config = EngineConfig(
        model=args.model,
        quantization=args.quantization,
        num_threads=args.num_threads,
        max_num_seqs=args.width,
        enable_prefix_caching=False,  # each round pays for its prompt
    )
    model = load_model(config)
    engine = LLMEngine(config, model)
    ends = {"max_tokens": args.gen, "ignore_eos": True}
    beams = BeamSearchParams(beam_width=args.width, **ends)
    shared = SamplingParams(n=args.width, **ends)
    apart = SamplingParams(**ends)
    arms: dict[str, Callable[[Sequence[int]], float]] = {
        BEAMS: lambda prompt: run(engine, [prompt], beams),
        SHARED: lambda prompt: run(engine, [prompt], shared),
        APART: lambda prompt: run(engine, [prompt] * args.width, apart),
    }
    if args.transformers:
        arms[TRANSFORMERS] = transformers_arm(args)

    rng = np.random.default_rng(0)
    taken: dict[str, list[float]] = defaultdict(list)
    for round_number in range(args.rounds + 1):
        prompt = rng.integers(0, model.config.vocab_size, args.prompt).tolist()
        names = list(arms)
        first = round_number % len(names)
        for name in names[first:] + names[:first]:
            seconds = arms[name](prompt)
            if round_number:  # the first round pays for memory that nobody has touched
                taken[name].append(seconds)
    print(
        f"{args.width} sequences of {args.prompt} + {args.gen} tokens,"
        f" {args.quantization}, median of {args.rounds} (all)"
    )
    for name, times in taken.items():
        ratios = [own / beam for own, beam in zip(times, taken[BEAMS], strict=True)]
        print(
            f"{name:24} {1e3 * statistics.median(times):9.1f} ms"
            f"  ({1e3 * min(times):.1f} .. {1e3 * max(times):.1f})"
            f"  {statistics.median(ratios):5.2f} of the beam search"
        )


if __name__ == "__main__":
    main()
