"""`python tests/hostile [WORD]`: measures the cases whose names have WORD, and prints what each takes."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from hostile.corpus import CASES, warm_up
from hostile.measure import Measurement, measure_apart, work


def show(measurement: Measurement) -> None:
    print(
        f"{measurement.seconds:7.2f} s  {measurement.cpu_seconds:7.2f} s CPU  {measurement.peak_bytes / 1e6:7.0f} MB"
        f"  {measurement.outcome:10}  {measurement.name}: {measurement.message[:120]!r}",
        flush=True,
    )


if sys.argv[1:] == ["--worker"]:
    work(CASES, json.load(sys.stdin), warm_up)
else:
    word = " ".join(sys.argv[1:])
    names = [name for name in CASES if word in name]
    if not names:
        sys.exit(f"no case has {word!r} in its name")
    found = measure_apart(names, show)
    print(
        f"{len(found)} cases: at most {max(each.seconds for each in found):.2f} s and"
        f" {max(each.peak_bytes for each in found) / 1e6:.0f} MB"
    )
