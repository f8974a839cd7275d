"""Makes mistakes in C++, one at a time: links the tests one after the other, and runs those that are others with it."""

import hashlib
import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

from trials import QUIET

BUILD = Path("build/checked")
KNOWN = BUILD / "seconds"  # of processor time, by programs' digests
NINJA = ["ninja", "-C", str(BUILD)]
PYTEST = [sys.executable, "-m", "pytest", *QUIET]


def _digest(program: Path) -> str:
    return hashlib.sha256(program.read_bytes()).hexdigest()


def _seconds_spent() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _run(command: list[str], seconds: float) -> tuple[int, str]:
    """The status and the output."""
    # A loop without an end stops by its processor time, which other work does not lengthen.
    waits = seconds * max(1, os.getloadavg()[0])
    limits = ["timeout", "--kill-after=9", f"{waits:.0f}", "prlimit", f"--cpu={seconds:.0f}"]
    ended = subprocess.run([*limits, *command], check=False, capture_output=True)
    return ended.returncode, ended.stdout.decode(errors="replace")


class NativeTrials:
    """Programs are linked without what they never call: one that a mistake leaves as it is cannot notice it."""

    def __init__(self, seconds_of_pytest: float) -> None:
        self._seconds = dict.fromkeys(BUILD.glob("_native*.so"), seconds_of_pytest)
        known = json.loads(KNOWN.read_text()) if KNOWN.exists() else {}
        for program in BUILD.glob("tests/native/cpp/test_*"):
            if (digest := _digest(program)) not in known:
                known[digest] = -_seconds_spent()
                if _run([str(program)], 900)[0]:
                    sys.exit(f"{program} fails without a mistake")
                known[digest] += _seconds_spent()
                KNOWN.write_text(json.dumps(known))
            self._seconds[program] = known[digest]
        self._digests = {it: _digest(it) for it in self._seconds}
        self._passed, self._fail = set[str](), set[str]()  # of pytest's, without a mistake
        _, self._dependencies = _run([*NINJA, "-t", "deps"], 60)

    def is_built(self, path: str) -> bool:
        """Not so what is for processors with other instructions than this machine's."""
        return f"/{path}\n" in self._dependencies

    def who_notices(self, path: str, changed: str, tests: list[str]) -> tuple[str | None, int]:
        """The test that fails with this source and passes without, and how many programs are others with it: none
        where it does not compile, or to the same, as what is for other processors does.
        """
        source = Path(path).read_text()
        while True:
            chosen = [it for it in tests if it not in self._fail]
            try:
                Path(path).write_text(changed)
                who, num_programs = self._who_fails(chosen)
            finally:
                Path(path).write_text(source)
            if who not in chosen or who in self._passed:
                return who, num_programs
            _run(NINJA, 900)
            (self._fail if self._fails_in_pytest([who]) else self._passed).add(who)

    def _who_fails(self, tests: list[str]) -> tuple[str | None, int]:
        num_others = 0
        for program in sorted(self._seconds, key=self._seconds.__getitem__):
            if _run([*NINJA, str(program.relative_to(BUILD))], 900)[0]:
                return None, 0
            if _digest(program) == self._digests[program]:
                continue
            num_others += 1
            if program.suffix == ".so":
                who = self._fails_in_pytest(tests)
            else:
                status, _ = _run([str(program)], 3 * self._seconds[program] + 30)
                who = program.name if status else None
            if who:
                return who, num_others
        return None, num_others

    @staticmethod
    def _fails_in_pytest(tests: list[str]) -> str | None:
        """The first that fails, or that is under way when the process ends."""
        status, output = _run([*PYTEST, "-vv", *tests], 300)
        began = re.findall(r"^(tests/.+?\.py::.+?) ?(?:[A-Z]+ .*)?$", output, re.MULTILINE)
        return (began[-1] if began else "pytest") if status else None
