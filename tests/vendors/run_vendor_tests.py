"""Runs the API tests of the openai and anthropic packages, from their source distributions, against this server.

    make test-vendors           prints what passed, and what the server refused and why

The vendors run these tests against a mock of their API (Prism), which answers every request with an example. Here
the requests go to the bundled model, and the packages' own types check its answers. The tests of routes that the
server does not have are left out.
"""

import os
import re
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

SUPPORT = Path(__file__).parents[1]
sys.path.insert(0, str(SUPPORT))

from support.bundled import bundled_engine  # noqa: E402
from support.http_server import running_server  # noqa: E402

API = "tests/api_resources/"
# package, version, what its base URL ends with, its tests of routes that the server has
VENDORS = (
    (
        "openai",
        "3.54.0",
        "/v1",
        (
            "chat/test_completions.py",
            "responses/test_input_tokens.py",
            "test_completions.py",
            "test_models.py",
            "test_responses.py",
        ),
    ),
    ("anthropic", "2.12.0", "", ("test_messages.py", "test_models.py")),
)


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        running_server(bundled_engine(), model_names=("tested", "*")) as server,
    ):
        for package, version, path, files in VENDORS:
            source = fetched(package, version, Path(folder))
            report = Path(folder) / f"{package}.xml"
            command = [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-p",
                "no:cacheprovider",
                "-k",
                "loose",
            ]
            command += [f"--junitxml={report}", *(API + name for name in files)]
            environment = {**os.environ, "TEST_API_BASE_URL": server.url + path}
            subprocess.run(
                command, cwd=source, env=environment, stdout=subprocess.DEVNULL, check=False
            )
            print_outcomes(f"{package} {version}", report)


def fetched(package: str, version: str, folder: Path) -> Path:
    """The folder of a source distribution."""
    wanted = [f"{package}=={version}", "--no-deps", "--no-binary", ":all:"]
    command = [sys.executable, "-m", "pip", "download", "-q", "-d", str(folder), *wanted]
    subprocess.run(command, check=True)
    with tarfile.open(folder / f"{package}-{version}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder / f"{package}-{version}"


def print_outcomes(title: str, report: Path) -> None:
    """Counts of a JUnit report, and the first line of each failure."""
    outcomes: Counter[str] = Counter()
    for case in ET.parse(report).getroot().iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}"
        failure = case.find("failure")
        if failure is None:
            outcomes["skipped" if case.find("skipped") is not None else "passed"] += 1
            continue
        outcomes["failed"] += 1
        said = re.search(r"'message': [\"'](.*?)[\"'],", failure.get("message") or "")
        print(f"{name}: {said[1] if said else (failure.get('message') or '')[:160]}")
    print(f"{title}: {dict(outcomes)}")


if __name__ == "__main__":
    main()
