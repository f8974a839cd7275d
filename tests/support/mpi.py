"""Runs Python on two ranks of MPI."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

TIMEOUT = 300.0  # seconds: a limit against hangs
HAS_MPI = shutil.which("mpirun") is not None
TESTS = Path(__file__).parents[1]
MPIRUN = (
    *("mpirun", "-n", "2", "--bind-to", "none", "--oversubscribe"),
    *(("--allow-run-as-root",) if os.geteuid() == 0 else ()),
)


def mpirun(*command: str, recovers: bool = False) -> subprocess.CompletedProcess[str]:
    """Runs a command on two ranks.

    Args:
        recovers: whether the other rank stays when one is killed.
    """
    recovery = ("--enable-recovery",) if recovers else ()
    return subprocess.run(
        [*MPIRUN, *recovery, sys.executable, *command],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
