"""Requests that schemathesis derives from /openapi.json: none is answered with a 5xx."""

import os
import subprocess
import sys
from pathlib import Path

from support.bundled import bundled_engine
from support.http_server import running_server


def test_no_derived_request_is_answered_with_a_5xx(tmp_path: Path) -> None:
    with running_server(bundled_engine()) as server:
        command = [str(Path(sys.executable).with_name("schemathesis")), "run"]
        command += [f"{server.url}/openapi.json", "--checks", "not_a_server_error"]
        command += ["--phases", "examples,coverage,fuzzing", "--max-examples", "20", "--seed", "1"]
        command += ["--request-timeout", "300", "--no-color", "--generation-database", "none"]
        command += ["--exclude-path", "/v1/events"]  # never ends
        ran = subprocess.run(
            command,
            cwd=tmp_path,
            env={**os.environ, "CI": "1"},
            capture_output=True,
            text=True,
            timeout=900,
        )
        assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
        assert "Fuzzing" in ran.stdout
        assert server.get("/health").status == 200
        server.wait_until_idle()
