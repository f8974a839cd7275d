"""Writes requirements.txt beside it: the tested libraries and all that they need, each by version and hash.

    python tests/integrations/lock.py

One of these packages has been compromised before (litellm 1.82.7): nothing is installed that was not looked at. The
hashes are those of the files that pip chooses on the machine where the script runs.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
TESTED = (
    "ai-dynamo-runtime==1.6.1",
    "langchain-openai==1.7.3",
    "litellm==1.106.2",
    "lm-eval[api]==0.4.13",
    "mcp==2.3.0",  # litellm imports it for every call with tools, and does not ask for it
    "schemathesis==4.32.5",
)


def requirements(report: dict[str, object]) -> str:
    """The lines of requirements.txt.

    Args:
        report: pip's, of what it would install.
    """
    lines = []
    installed = report["install"]
    assert isinstance(installed, list)
    for item in installed:
        name, version = item["metadata"]["name"], item["metadata"]["version"]
        digest = item["download_info"]["archive_info"]["hashes"]["sha256"]
        lines.append(f"{name}=={version} --hash=sha256:{digest}")
    header = "# Written by lock.py: the files that pip chose for CPython {}.{} on {}\n".format(
        *sys.version_info[:2], sys.platform
    )
    return header + "\n".join(sorted(lines, key=str.lower)) + "\n"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = ["install", "--dry-run", "--ignore-installed", "--report", str(report), *TESTED]
        subprocess.run([sys.executable, "-m", "pip", *command], check=True)
        REQUIREMENTS.write_text(requirements(json.loads(report.read_text())))


if __name__ == "__main__":
    main()
