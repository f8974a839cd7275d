"""Sampled decode beside greedy decode: the same steps of one model, in turn within one process.

    python benchmarks/sampled_decode.py [--shape qwen2.5-0.5b] [--quantization int4] [--pairs 150]

Runs the steps of `pellucid bench --gen 8 --depth 512 --batch 1,32`, once greedily and once with `--temperature
0.8 --top-p 0.95`, in the order greedy, sampled, sampled, greedy. Prints the median ratio of two neighbouring runs.
"""

import argparse
import statistics

from pellucid.benchmark.random_model import random_model
from pellucid.benchmark.session import Session
from pellucid.benchmark.workloads import Decode
from pellucid.inputs.config import EngineConfig


def pairs(
    session: Session, greedy: Decode, sampled: Decode, num_pairs: int
) -> list[tuple[float, float]]:
    """Seconds of runs (greedy, sampled)."""
    found = []
    for number in range(num_pairs):
        order = (greedy, sampled) if number % 2 else (sampled, greedy)
        seconds = {workload: session.run(workload).seconds for workload in order}
        found.append((seconds[greedy], seconds[sampled]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="qwen2.5-0.5b")
    parser.add_argument("--quantization", default="int4")
    parser.add_argument("--depth", type=int, default=512)
    parser.add_argument("--gen", type=int, default=8, help="steps of a run")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--pairs", type=int, default=150, help="for one sequence; fewer for more")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--top-p", type=float, default=0.95)
    parser.add_argument("--num-threads", type=int)
    args = parser.parse_args()
    config = EngineConfig(
        quantization=args.quantization, num_threads=args.num_threads, speculation="off"
    )
    cases = [
        (
            Decode(args.gen, args.depth, batch),
            Decode(args.gen, args.depth, batch, args.temperature, args.top_p),
        )
        for batch in args.batch
    ]
    workloads = [workload for case in cases for workload in case]
    model = random_model(args.shape, config, workloads)
    session = Session(model, config, workloads)
    print(
        f"{model.name}, {args.quantization}, vocabulary of {model.config.vocab_size:,} tokens,"
        f" temperature {args.temperature}, top_p {args.top_p}"
    )
    print("                greedy    sampled   greedy / sampled   quartiles")
    for greedy, sampled in cases:
        for workload in (greedy, sampled):
            session.warm_up(workload)
        num_pairs = max(8, args.pairs // (1 + greedy.batch // 4))
        found = pairs(session, greedy, sampled, num_pairs)
        ratios = sorted(plain / drawn for plain, drawn in found)
        quarter = len(ratios) // 4
        rates = [greedy.num_tokens / statistics.median(each) for each in zip(*found, strict=True)]
        print(
            f"{greedy.test:12s} {rates[0]:7.1f}  {rates[1]:7.1f} tok/s  {statistics.median(ratios):8.3f}x"
            f"         {ratios[quarter]:.3f} .. {ratios[-1 - quarter]:.3f}  ({num_pairs} pairs)",
            flush=True,
        )


if __name__ == "__main__":
    main()
