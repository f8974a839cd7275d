"""Starts an engine's process, sends it tests and reads its results."""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, final

from engines.traffic import Served
from engines.worker import Test

SCRIPTS = Path(__file__).with_name("engines")
ENGINES = {
    "pellucid": "pellucid_engine.py",
    "llama.cpp": "llama_cpp_engine.py",
    "llama-bench": "llama_bench_engine.py",
    "ik_llama.cpp": "llama_bench_engine.py",
    "openvino": "openvino_engine.py",
    "vllm": "vllm_engine.py",
    "transformers": "transformers_engine.py",
}
SECONDS_TO_SETTLE = 0.05  # between waking a process and asking it: its threads find their cores


@final
class Contestant:
    """A running engine, stopped whenever it is not asked: what an engine's idle threads do must not slow
    another one down.

    Args:
        engine: a name in `ENGINES`.
        interpreter: the Python that has it.
        weights: directory of make_weights.py.
        weight_format: a key of `options.FORMATS`.
        num_threads: compute threads.
        tests: all that it will be asked for.
        program: the engine itself, if it is a program and no library.

    Raises:
        RuntimeError: the engine did not start.
    """

    def __init__(
        self,
        engine: str,
        interpreter: str,
        weights: Path,
        weight_format: str,
        num_threads: int,
        tests: Sequence[Test],
        program: Path | None = None,
    ) -> None:
        self.engine = engine
        options = {"--weights": weights, "--format": weight_format, "--threads": num_threads}
        command = [interpreter, str(SCRIPTS / ENGINES[engine])]
        command += [str(word) for pair in options.items() for word in pair]
        command += ["--tests", *(test.name for test in tests)]
        if program is not None:
            command += ["--program", str(program)]
        path = [str(SCRIPTS.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
            start_new_session=True,  # signals reach its own children too
        )
        try:
            self.settings = str(self._answer()["settings"])
        except BaseException:
            self._end()
            raise
        self._signal(signal.SIGSTOP)

    def run(self, test: Test) -> float:
        """Seconds of one run."""
        return self.serve(test).seconds if test.num_requests else float(self._ask(test)["seconds"])

    def serve(self, test: Test) -> Served:
        """One run of a mix."""
        return Served(**self._ask(test))

    def _ask(self, test: Test) -> dict[str, Any]:
        self._signal(signal.SIGCONT)
        threading.Event().wait(SECONDS_TO_SETTLE)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"test": test.name}) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        self._signal(signal.SIGSTOP)
        return answer

    def __enter__(self) -> "Contestant":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()

    def _end(self) -> None:
        with self._process:  # closes the pipes and waits
            self._signal(signal.SIGKILL)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.engine}: ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, number)
