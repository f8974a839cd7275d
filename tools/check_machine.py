"""Checks that this machine can build pellucid, and lists what is missing: `python3 tools/check_machine.py
[--packages]`.

Exits with 1 and a message if something is missing; with --packages it prints the names of the
Debian packages that bring it instead. Runs on any Python 3, since an old one is among the findings.
"""

import importlib.util
import os
import shlex
import shutil
import sys
import sysconfig


def missing():
    """Pairs of what is missing and the Debian package that brings it."""
    if sys.version_info < (3, 10):
        yield "Python 3.10 or newer (this is %d.%d)" % sys.version_info[:2], "python3"
    if importlib.util.find_spec("ensurepip") is None:
        yield "Python's own means to create environments (ensurepip)", "python3-venv"
    if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
        yield "Python's C headers (Python.h)", "python3-dev"
    compiler = shlex.split(os.environ.get("CXX", "c++"))[0]
    if shutil.which(compiler) is None:
        yield "a C++ compiler (%s)" % compiler, "g++"


def main():
    findings = list(missing())
    if "--packages" in sys.argv[1:]:
        print(*(package for _, package in findings))
    elif findings:
        print("pellucid cannot be built with %s; missing:" % sys.executable, file=sys.stderr)
        for what, package in findings:
            print("  %s; Debian and Ubuntu: apt-get install %s" % (what, package), file=sys.stderr)
        print("Another interpreter can be chosen with make PYTHON=...", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
