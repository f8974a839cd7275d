"""What Triton makes of the kernels for a GPU that need not be there: a JSON line for each kernel and configuration.

python tests/support/compiled_kernels.py 90
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from pellucid.backends.quantization.formats import STORED_FORMATS
from pellucid.backends.torch.triton.linear import linear_kernel
from pellucid.backends.torch.triton.ops import LinearTile, linear_constants, linear_tiles

# One for each branch of the template.
FORMATS = ("bf16", "int8", "int4-zp", "int4-k", "mxfp4")
_CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
_MMA = r"wgmma\.mma_async|mma\.sync|tcgen05\.mma"
_DIVISIBLE = ("num_columns", "num_outputs")


def compile_linear(name: str, tile: LinearTile, capability: int) -> Any:
    """The kernel of `linear`, for matrices of which a row has a multiple of 16 columns."""
    weight_format = STORED_FORMATS.get(name)
    constants = linear_constants(weight_format) | {"OUTPUTS": tile.outputs, "ROWS": tile.rows}
    of_channels = weight_format is not None and weight_format.group_size is None
    number = {"none": "*bf16", "exponent": "*u8", "product": "*i8"}.get(constants["SCALE"])
    scales = number or ("*fp32" if of_channels else "*fp16")
    types = {
        "y": "*fp32",
        "x": "*bf16",
        "stored": "*bf16" if weight_format is None else "*i32",
        "scales": scales,
        "minimums": scales,
        "zero_points": "*u8",
        "scale_factors": "*fp16",
        "minimum_factors": "*fp16",
    }
    names = linear_kernel.arg_names
    signature = {
        each: "constexpr" if each in constants else types.get(each, "i32") for each in names
    }
    divisible = {
        (i,): [["tt.divisibility", 16]]
        for i, each in enumerate(names)
        if signature[each].startswith("*") or each in _DIVISIBLE
    }
    own = {(names.index(each),): value for each, value in constants.items()}
    source = ASTSource(fn=linear_kernel, signature=signature, constexprs=own, attrs=divisible)
    options = {"num_warps": tile.num_warps, "num_stages": tile.num_stages}
    return triton.compile(
        source,
        target=GPUTarget("cuda", capability, 32),
        options={**options, "enable_fp_fusion": False},
    )


def facts_of(compiled: Any) -> dict[str, Any]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        command = (str(_CUOBJDUMP), "-res-usage", file.name)
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    numbers = {key: int(value) for key, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
    ptx = compiled.asm["ptx"]
    return {
        "registers": numbers["REG"],
        "spilled_bytes": numbers["STACK"] + numbers["LOCAL"],
        "shared_bytes": compiled.metadata.shared,
        "mma": sorted(set(re.findall(_MMA, ptx))),
        "wide_copies": len(re.findall(r"cp\.async\.cg\S*[^;]*0x10", ptx)),
        "num_fused": len(re.findall(r"\bfma\.rn", ptx)),
    }


def compiled_kernels(capability: int) -> Iterator[dict[str, Any]]:
    for name in FORMATS:
        for tile in linear_tiles(STORED_FORMATS.get(name)):
            facts = facts_of(compile_linear(name, tile, capability))
            yield {"kernel": "linear", "format": name, "tile": tile._asdict(), **facts}


if __name__ == "__main__":
    for each in compiled_kernels(int(sys.argv[1])):
        print(json.dumps(each), flush=True)
