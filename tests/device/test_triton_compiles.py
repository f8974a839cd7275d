"""Kernels compile for each GPU, without one: no spills, the intended products, loads of 16 bytes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

SCRIPT = Path(__file__).parents[1] / "support" / "compiled_kernels.py"
# Of each compute capability the products that its tensor cores have, and its shared memory.
GPUS = {
    80: ("mma.sync", 163 << 10),
    89: ("mma.sync", 99 << 10),
    90: ("wgmma.mma_async", 227 << 10),
    100: ("tcgen05.mma", 227 << 10),
    120: ("mma.sync", 99 << 10),
}
# Their bits are the definition's.
EXACT = ("weights_kernel", "race_kernel", "winner_kernel", "store_codes_kernel", "largest_kernel")


@pytest.mark.parametrize("capability", list(GPUS))
def test_kernels_compile(capability: int) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(SCRIPT.parents[1])
    command = (sys.executable, str(SCRIPT), str(capability))
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert found
    mma, shared_bytes = GPUS[capability]
    for each in found:
        assert each["spilled_bytes"] == 0, each
        assert each["shared_bytes"] <= shared_bytes, each
        # A logarithm is a polynomial of the library's.
        assert each["num_fused"] == 0 or each["kernel"] == "delta_kernel", each
        if each["kernel"] in EXACT:
            assert each["num_inexact"] == 0, each
        has_products = "format" in each
        # Weights, or rows of attention, are the first operand: 64 of four warps at least, or the older instructions.
        tile = each.get("tile", each)
        is_narrow = tile.get("outputs", tile.get("rows", 0)) < 64 or tile.get("num_warps", 4) < 4
        assert each["mma"] == ["mma.sync" if is_narrow else mma] * has_products, each
        # Of the smallest tile only weights, or keys and values, are so wide.
        assert each["wide_loads"] > 0 or not has_products or "is_odd" in each, each
