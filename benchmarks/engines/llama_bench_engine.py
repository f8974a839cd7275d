"""llama-bench, the benchmark program of llama.cpp or of its fork ik_llama.cpp, found on the PATH.

Each run is a process of the program's. The time is the program's own and leaves out loading; of two
repetitions the faster one counts. It decodes one sequence at a time.
"""

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from engines.traffic import Served, TrafficRequest
from engines.worker import Task, serve

GGUF_FILES = {"int4": "model-Q4_0.gguf", "int8": "model-Q8_0.gguf", "bf16": "model-BF16.gguf"}
NAMES = (
    "llama-bench",
    "ik-llama-bench",
)  # both programs are called llama-bench where they are built
REPETITIONS = 2


def find_programs() -> dict[str, Path]:
    """The programs on the PATH, by engine; what a program's help lists tells which one it is."""
    found: dict[str, Path] = {}
    for path in _candidates():
        engine = "ik_llama.cpp" if "--run-time-repack" in _help(path) else "llama-bench"
        found.setdefault(engine, path)
    return found


class LlamaBench:
    """One program on one file of weights."""

    def __init__(self, task: Task) -> None:
        assert task.program is not None
        self._program = task.program
        self._options = _help(task.program)
        model = task.weights / GGUF_FILES[task.weight_format]
        self._command = [str(task.program), "-m", str(model), "-t", str(task.num_threads)]
        self._command += ["-ngl", "0", "-fa", "1", "-r", str(REPETITIONS), "-o", "json"]
        self.settings = f"{task.program.name}, {model.name}, flash attention"
        if "--run-time-repack" in self._options:  # weights in the order that its kernels want
            self._command += ["-rtr", "1"]
            self.settings += ", run-time repacking"

    def prefill(self, num_tokens: int) -> float:
        return self._run("-p", str(num_tokens), "-n", "0")

    def decode(self, num_tokens: int, depth: int, batch: int) -> float:
        if batch != 1:
            raise ValueError(f"batch={batch}: llama-bench decodes one sequence")
        if "--n-depth" in self._options:
            return self._run("-p", "0", "-n", str(num_tokens), "-d", str(depth))
        return self._run("-p", "0", "-n", "0", "-gp", f"{depth},{num_tokens}")

    def serve(self, requests: Sequence[TrafficRequest]) -> Served:
        raise ValueError("llama-bench serves no requests")

    def _run(self, *test: str) -> float:
        ran = subprocess.run([*self._command, *test], check=True, stdout=subprocess.PIPE, text=True)
        [result] = json.loads(ran.stdout)
        return float(min(result["samples_ns"])) / 1e9


def _candidates() -> Iterator[Path]:
    for directory in os.get_exec_path():
        for name in NAMES:
            path = Path(directory or ".") / name
            if path.is_file() and os.access(path, os.X_OK):
                yield path


def _help(program: Path) -> str:
    ran = subprocess.run([program, "--help"], capture_output=True, text=True, check=False)
    return ran.stdout + ran.stderr


if __name__ == "__main__":
    serve(LlamaBench)
