"""What a device does with the backend on PyTorch: exactness, then speed. No network; without a GPU it checks the host.

    python benchmarks/device_check.py                         all parts, 10 minutes at most
    python benchmarks/device_check.py --device cuda --parts rows products --minutes 5
    python benchmarks/device_check.py --parts tune            writes the chip's fastest tiles into triton/tiles.json
    python benchmarks/device_check.py --json there.json

Each part is a process with a share of the time, so one that fails or hangs leaves the others whole. A table is last.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from device_parts.common import Row
from device_parts.engines import baseline, engine, host
from device_parts.exactness import draws, rows, tests
from device_parts.speed import attention, ceilings, products
from device_parts.tiles import tune

ROOT = Path(__file__).parents[1]

# In order, each with its share of the time.
PARTS: dict[str, tuple[Callable[[str], Iterator[Row]], float]] = {
    "ceilings": (ceilings, 0.04),
    "rows": (rows, 0.06),
    "draws": (draws, 0.03),
    "products": (products, 0.06),
    "attention": (attention, 0.06),
    "host": (host, 0.05),
    "baseline": (baseline, 0.12),
    "engine": (engine, 0.28),
    "tests": (tests, 0.3),
    "tune": (tune, 0.3),
}
_BY_REQUEST = ("tune",)  # not among the parts of a plain run


def run_part(name: str, device: str, seconds: float) -> list[Row]:
    """A part in a process of its own: its lines so far, and why it ended early."""
    command = (sys.executable, __file__, "--device", device, "--only", name)
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=seconds)
            end = "" if process.returncode == 0 else err.strip().splitlines()[-1][:200]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            out, _ = process.communicate()
            end = f"ended after its {seconds:.0f} s"
    found = [Row(*json.loads(line)) for line in out.splitlines() if line.startswith("[")]
    return [*found, Row(name, "", end)] if end else found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--device", default="auto", help="as of `pellucid run`")
    parser.add_argument(
        "--parts",
        nargs="+",
        choices=PARTS,
        default=[each for each in PARTS if each not in _BY_REQUEST],
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--json", type=Path, help="also writes the table there")
    parser.add_argument("--only", choices=PARTS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.only is not None:
        from pellucid.backends.torch.device import find_device

        for row in PARTS[given.only][0](find_device(given.device).type):
            print(json.dumps(row), flush=True)
        return
    whole = sum(PARTS[name][1] for name in given.parts)
    table: list[Row] = []
    for name in given.parts:
        print(f"{name} ...", file=sys.stderr)
        table += run_part(name, given.device, 60 * given.minutes * PARTS[name][1] / whole)
    for row in table:
        print(f"{row.part:10}{row.what:40}{row.found}")
    if given.json is not None:
        given.json.write_text(json.dumps([row._asdict() for row in table], indent=1))


if __name__ == "__main__":
    main()
