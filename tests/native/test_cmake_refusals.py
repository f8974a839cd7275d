"""CMake refuses systems, compilers and architectures that the native code does not build for."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PLATFORM = Path(__file__).parents[2] / "csrc/platform.cmake"
CMAKE = shutil.which("cmake", path=str(Path(sys.executable).parent)) or shutil.which("cmake")
GCC = {"CMAKE_CXX_COMPILER": "/usr/bin/g++", "CMAKE_CXX_COMPILER_ID": "GNU"}
LINUX = {"UNIX": "1", "CMAKE_SYSTEM_PROCESSOR": "aarch64"}


def configure(directory: Path, variables: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    """Runs platform.cmake by itself, with what CMake would have found out about the machine."""
    script = directory / "script.cmake"
    lines = [f'set({name} "{value}")' for name, value in variables.items()]
    lines += [f'include("{PLATFORM}")', 'message("builds for ${PELLUCID_PROCESSOR}")']
    script.write_text("\n".join(lines))
    assert CMAKE is not None
    return subprocess.run([CMAKE, "-P", script], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        pytest.param({"UNIX": ""}, "on Windows use WSL", id="Windows"),
        pytest.param(
            LINUX | GCC | {"CMAKE_CXX_COMPILER_VERSION": "10.2.1"},
            "pellucid needs gcc 11 or newer, or clang; /usr/bin/g++ is gcc 10.2.1.",
            id="gcc 10",
        ),
        pytest.param(
            {"UNIX": "1", "CMAKE_OSX_ARCHITECTURES": "x86_64;arm64"},
            "not for CMAKE_OSX_ARCHITECTURES=x86_64;arm64.",
            id="two architectures",
        ),
    ],
)
def test_refused(variables: dict[str, str], message: str, tmp_path: Path) -> None:
    configured = configure(tmp_path, variables)
    assert configured.returncode != 0
    assert message in " ".join(configured.stderr.split())  # CMake wraps lines


@pytest.mark.parametrize(
    ("variables", "processor"),
    [
        pytest.param(
            LINUX | GCC | {"CMAKE_CXX_COMPILER_VERSION": "11.4.0"}, "aarch64", id="gcc 11"
        ),
        pytest.param(
            LINUX | {"CMAKE_CXX_COMPILER_ID": "Clang", "CMAKE_CXX_COMPILER_VERSION": "10.0"},
            "aarch64",
            id="clang",
        ),
        pytest.param(
            {"UNIX": "1", "CMAKE_SYSTEM_PROCESSOR": "x86_64", "CMAKE_OSX_ARCHITECTURES": "arm64"},
            "arm64",
            id="an Intel Mac builds for Arm",
        ),
    ],
)
def test_accepted(variables: dict[str, str], processor: str, tmp_path: Path) -> None:
    configured = configure(tmp_path, variables)
    assert configured.returncode == 0, configured.stderr
    assert f"builds for {processor}" in configured.stderr
