"""Stages in processes of their own, for tests and benchmarks."""

import re
import subprocess
import sys


class StageProcess:
    """`pellucid stage` with one thread, on this machine.

    Args:
        port: where it listens; 0 takes a free one.
        model: None: the bundled one.
    """

    def __init__(self, key_file: str, port: int = 0, model: str | None = None) -> None:
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "pellucid", "stage", *([model] if model else [])),
                *("--listen", f"127.0.0.1:{port}", "--stages-key", key_file, "--num-threads", "1"),
            ],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stderr is not None
        found = re.search(r"listening at 127\.0\.0\.1:(\d+);", self._process.stderr.readline())
        assert found is not None
        self.port = int(found[1])
        self.pid = self._process.pid

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def kill(self) -> None:
        """As `kill -9`."""
        self._process.kill()
        self._process.wait()
        assert self._process.stderr is not None
        self._process.stderr.close()
