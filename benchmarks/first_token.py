"""The first token of a new process: the time from its start to the token, and to its end.

    python benchmarks/first_token.py MODEL...                              rounds of all models, in turn
    python benchmarks/first_token.py MODEL --pythons NEW/bin/python OLD/bin/python   two installations, in turn
    python benchmarks/first_token.py MODEL.gguf --llama-python ENV/bin/python   llama-cpp-python, too

Prints medians: seconds of wall time until the token is printed and until the process has ended, and of processor
time of all threads. The first round, which reads the files into memory, is left out.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

PROMPT = "The capital of France is"
OURS = f"""
import sys
from pellucid import LLM, SamplingParams
params = SamplingParams(temperature=0, max_tokens=1)
[output] = (llm := LLM(sys.argv[1])).generate([{PROMPT!r}], params, use_tqdm=False)
print(output.outputs[0].text, flush=True)
"""
LLAMA_CPP = f"""
import sys
from llama_cpp import Llama
output = (llm := Llama(sys.argv[1], n_ctx=512, verbose=False))({PROMPT!r}, max_tokens=1, temperature=0)
print(output["choices"][0]["text"], flush=True)
"""


class Times(NamedTuple):
    token: float
    end: float
    processor: float


def run(python: str, script: str, model: str) -> Times:
    """One process.

    Raises:
        RuntimeError: it failed.
    """
    start = time.perf_counter()
    process = subprocess.Popen([python, "-c", script, model], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout as output:
        output.readline()
        token = time.perf_counter() - start
        _, status, usage = os.wait4(process.pid, 0)
    end = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{python} {model}: ended with status {process.returncode}")
    return Times(token, end, usage.ru_utime + usage.ru_stime)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--pythons", nargs="+", default=[sys.executable], metavar="PYTHON")
    parser.add_argument("--llama-python", metavar="PYTHON", help="has llama-cpp-python")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    contestants = [(python, OURS) for python in arguments.pythons]
    if arguments.llama_python is not None:
        contestants.append((arguments.llama_python, LLAMA_CPP))
    cases = [
        (python, script, model) for model in arguments.models for python, script in contestants
    ]
    found: dict[tuple[str, str, str], list[Times]] = {case: [] for case in cases}
    for number in range(arguments.rounds + 1):
        for case in cases:
            times = run(*case)
            if number:
                found[case].append(times)
    print(f"{'model':40} {'engine':12} {'token s':>8} {'end s':>7} {'processor s':>12}  python")
    for (python, script, model), times in found.items():
        token, end, processor = (statistics.median(each) for each in zip(*times, strict=True))
        engine = "pellucid" if script is OURS else "llama.cpp"
        print(
            f"{Path(model).name:40} {engine:12} {token:8.2f} {end:7.2f} {processor:12.2f}  {python}"
        )


if __name__ == "__main__":
    main()
