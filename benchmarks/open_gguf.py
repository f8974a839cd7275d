"""Time to open GGUF files of full size and to plan their memory: headers as published, holes in place of weights.

    python benchmarks/open_gguf.py                       the files of NAMES
    python benchmarks/open_gguf.py gemma4-26b-a4b-it-unsloth

"whole header" reads every array as well: tokens, merges, scores. Files are those of tests/published/gguf; the least of
several runs, in seconds.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from pellucid.loading.gguf_file import GgufFile
from pellucid.loading.open_model import open_stored_model
from pellucid.memory.memory_plan import plan_weights
from support.published import read_published, write_published

NAMES = (
    "qwen35-qwen3.6-27b-mtp-ud-q4_k_xl-unsloth",
    "qwen35moe-qwen3.5-35b-a3b",
    "gemma3-27b-it-qat-q4_0-google",
    "gemma4-26b-a4b-it-unsloth",
)
_RUNS = 5


def least(action: Callable[[], object]) -> float:
    """Seconds of the fastest of several runs."""
    times = []
    for _ in range(_RUNS):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


def read_all(path: Path) -> None:
    metadata = GgufFile(path).metadata
    for key in metadata:
        metadata[key]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", default=NAMES, metavar="NAME")
    print(f"{'file':44} {'GiB':>6} {'open':>7} {'plan':>7} {'whole header':>13}")
    with TemporaryDirectory() as folder:
        for name in parser.parse_args().names:
            path = write_published(
                Path(folder) / f"{name}.gguf", read_published(name), vocabulary=True
            )
            model = open_stored_model(path)
            opened = least(lambda path=path: open_stored_model(path))  # type: ignore[misc]
            planned = least(lambda model=model: plan_weights(model, None, "none"))  # type: ignore[misc]
            whole = least(lambda path=path: read_all(path))  # type: ignore[misc]
            size = path.stat().st_size / 2**30
            print(f"{name:44} {size:6.1f} {opened:7.3f} {planned:7.3f} {whole:13.3f}")
            path.unlink()


if __name__ == "__main__":
    main()
