"""What Triton makes of the kernels for a GPU that need not be there: a JSON line for each kernel and configuration.

python tests/support/compiled_kernels.py 90
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from pellucid.backends.quantization.formats import STORED_FORMATS
from pellucid.backends.torch.kv_cache import TorchKVLayer, make_torch_kv_cache
from pellucid.backends.torch.triton.attention import AttentionSizes, attention_constants
from pellucid.backends.torch.triton.kernels.attention import attention_kernel
from pellucid.backends.torch.triton.kernels.codes import store_codes_kernel
from pellucid.backends.torch.triton.kernels.draws import race_kernel, weights_kernel, winner_kernel
from pellucid.backends.torch.triton.kernels.experts import (
    count_kernel,
    grouped_linear_kernel,
    place_kernel,
    sum_kernel,
)
from pellucid.backends.torch.triton.kernels.linear import linear_kernel
from pellucid.backends.torch.triton.kernels.recurrence import (
    convolution_kernel,
    delta_kernel,
    keep_rows_kernel,
)
from pellucid.backends.torch.triton.kernels.rows import (
    gated_kernel,
    heads_kernel,
    largest_kernel,
    peaks_kernel,
    rms_norm_kernel,
)
from pellucid.backends.torch.triton.linear import linear_constants
from pellucid.backends.torch.triton.rows import code_constants
from pellucid.backends.torch.triton.tiles import ANY_CHIP, AttentionTile, LinearTile, Tiles
from pellucid.facts.kv_formats import KV_FORMATS, find_kv_format
from support.uniform_model import uniform_model

# One for each branch of the template.
FORMATS = ("bf16", "int8", "int4-zp", "int4-k", "mxfp4")
GROUPED = ("bf16", "int4-k")  # of experts: the same sums
OF_ONE_GROUP = ("int8-channel", "int4-g128-zp")  # in a row, or in a step of a sum
CACHES = ("bf16", "int8", "int4")
_CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
_WIDE = r"cp\.async\.cg\S*[^;]*0x10|ld\.global\S*\.v4\.b32"  # of 16 bytes
_MMA = r"wgmma\.mma_async|mma\.sync|tcgen05\.mma"


def compile_kernel(
    kernel: Any,
    types: Mapping[str, str],
    constants: Mapping[str, Any],
    divisible: Sequence[str],
    options: Mapping[str, int],
    capability: int,
) -> Any:
    """A kernel for a GPU.

    Args:
        types: of arguments that are no i32.
        divisible: numbers that are multiples of 16, besides all addresses.
        options: of Triton.
    """
    names = kernel.arg_names
    signature = {
        each: "constexpr" if each in constants else types.get(each, "i32") for each in names
    }
    hints = {
        (i,): [["tt.divisibility", 16]]
        for i, each in enumerate(names)
        if signature[each].startswith("*") or each in divisible
    }
    own = {(names.index(each),): value for each, value in constants.items()}
    source = ASTSource(fn=kernel, signature=signature, constexprs=own, attrs=hints)
    return triton.compile(
        source,
        target=GPUTarget("cuda", capability, 32),
        options={**options, "enable_fp_fusion": False},
    )


def compile_linear(
    name: str, tile: LinearTile, capability: int, kernel: Any, is_odd: bool = False
) -> Any:
    """A kernel of products, for matrices whose sizes are multiples of 16, or odd ones with one group in a row."""
    weight_format = STORED_FORMATS.get(name)
    constants = linear_constants(weight_format) | {"OUTPUTS": tile.outputs, "ROWS": tile.rows}
    if kernel is grouped_linear_kernel:
        constants |= {"HAS_SOURCES": True, "HAS_BIASES": True}
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
        "biases": "*fp32",
        "sources": "*i32",
        "tiles": "*i32",
    }
    options = {"num_warps": tile.num_warps, "num_stages": tile.num_stages}
    divisible: tuple[str, ...] = ("num_columns", "num_outputs", "num_groups", "y_stride")
    if is_odd:  # Triton makes a constant of each number that is 1
        divisible = ()
        constants |= {"num_groups": 1, "num_blocks": 1}
    return compile_kernel(kernel, types, constants, divisible, options, capability)


def compile_small(kernel: Any, constants: Mapping[str, Any], capability: int) -> Any:
    """A kernel without products over f32: what are no floats are its lists of whole numbers."""
    lists = ("counts", "slots", "sources", "tiles", "requests", "rows", "winners", "tokens")
    lists += "largest", "bits"
    others = {"scale": "fp32", "times": "*fp64", "scales": "*bf16", "peaks": "*i64"}
    others |= dict.fromkeys(("eps", "q_eps", "k_eps"), "fp32")
    others |= dict.fromkeys(("rounded", "keys", "values"), "*bf16")
    others["codes"] = "*u8" if constants.get("BITS") == 4 else "*i8"
    is_size = re.compile(r"(\w+_)?(stride|heads|half)|kv_heads")
    others |= dict.fromkeys(filter(is_size.fullmatch, kernel.arg_names), "i32")
    if kernel in (store_codes_kernel, heads_kernel):
        others["slots"] = "*i64"
    others |= dict.fromkeys(("seeds_low", "seeds_high", "streams", "positions"), "*i64")
    floats = [
        each
        for each in kernel.arg_names
        if each not in (*constants, *lists, *others) and not each.startswith("num_")
    ]
    types = dict.fromkeys(lists, "*i32") | dict.fromkeys(floats, "*fp32") | others
    divisible = "num_numbers", "num_channels", *(each for each in others if "stride" in each)
    return compile_kernel(kernel, types, constants, divisible, {}, capability)


# At the sizes of Qwen3.5 35B-A3B.
SMALL_KERNELS: tuple[tuple[Any, dict[str, Any]], ...] = (
    (count_kernel, {"ROWS": 128}),
    (place_kernel, {"EXPERTS": 256, "ROWS": 128, "TILE": 16}),
    (sum_kernel, {"EXPERTS": 256, "NUM_CHOSEN": 8, "WIDTH": 512}),
    (convolution_kernel, {"KERNEL": 4, "HAS_BIAS": True, "IS_SILU": True, "WIDTH": 256}),
    (keep_rows_kernel, {"KERNEL": 4, "TAPS": 4, "WIDTH": 256}),
    (
        delta_kernel,
        {"KEY_HEADS": 16, "VALUE_HEADS": 32, "KEY_DIM": 128, "VALUE_DIM": 128}
        | {"IS_TILED": False, "KEYS": 128, "VALUES": 32},
    ),
    (store_codes_kernel, code_constants(KV_FORMATS["int8,int4"].keys, 128, 32)),
    (store_codes_kernel, code_constants(KV_FORMATS["int8"].values, 128, 32)),
    (store_codes_kernel, code_constants(KV_FORMATS["int4"].values, 128, 32)),
    *(
        (rms_norm_kernel, {"HAS_WEIGHT": True, "WIDTH": 2048} | own)
        for own in (
            {"HAS_FLOATS": True, "PLANES": 0, "HAS_SUMS": False},
            {"HAS_FLOATS": False, "PLANES": 1, "HAS_SUMS": True},
            {"HAS_FLOATS": False, "PLANES": 8, "HAS_SUMS": True},
        )
    ),
    (gated_kernel, {"ACTIVATION": "silu", "HAS_FLOATS": False, "PLANES": 1, "WIDTH": 1024}),
    (
        heads_kernel,
        {"HAS_KV": True, "BLOCK_SIZE": 32, "WIDTH": 128}
        | dict.fromkeys(("Q_NORM", "Q_ROPE", "K_NORM", "K_ROPE"), True),
    ),
    (peaks_kernel, {"WIDTH": 4096}),
    (largest_kernel, {"PARTS": 64}),
    (weights_kernel, {"WIDTH": 1024}),
    (race_kernel, {"WIDTH": 512}),
    (winner_kernel, {"PARTS": 512}),
)


def compile_attention(kv_dtype: str, tile: AttentionTile, capability: int) -> Any:
    """The kernel of attention, for 4 query heads of 128 dimensions to each kv-head."""
    config = uniform_model(
        architecture="",
        vocab_size=1,
        hidden_size=1,
        intermediate_size=1,
        num_heads=4,
        num_kv_heads=1,
        head_dim=128,
        max_position_embeddings=1,
        norm_eps=1e-5,
        activation="silu",
        rope=None,
        scale=1.0,
        windows=(None,),
    )
    cache = make_torch_kv_cache(config, 1, 32, kv_dtype, 1, torch.device("cpu"))
    layer = cache.layers[0]
    assert isinstance(layer, TorchKVLayer)
    constants = attention_constants(layer, 4, 128, AttentionSizes().num_keys, False, False)
    stored = {"bf16": "*bf16", "f32": "*fp32", "int8": "*i8", "int4": "*u8"}
    k, v = (stored[each.name] for each in find_kv_format(kv_dtype).halves)
    floats = ("output", "partial_values", "partial_facts", "q", "sinks")
    types = dict.fromkeys(floats, "*fp32") | {
        "num_items": "*i32",
        "items": "*i32",
        "tables": "*i64",
        "keys": k,
        "values": v,
        "open_keys": "*bf16",
        "scale": "fp32",
        "softcap": "fp32",
        **{f"{half}_factors": "*bf16" for half in ("key", "value")},
    }
    divisible = [name for name in attention_kernel.arg_names if name.endswith("_stride")]
    options = {"num_warps": tile.num_warps, "num_stages": tile.num_stages}
    return compile_kernel(
        attention_kernel, types, constants | {"ROWS": tile.rows}, divisible, options, capability
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
        "wide_loads": len(re.findall(_WIDE, ptx)),
        # In bf16 it is how a product alone is written: its third operand is -0.
        "num_fused": len(re.findall(r"\bfma\.rn(?:\.ftz)?\.f", ptx)),
        "num_inexact": len(re.findall(r"\.(?:approx|ftz|full)\b", ptx)),
    }


def compiled_kernels(capability: int) -> Iterator[dict[str, Any]]:
    """With the tiles that chips have on which nobody measured."""
    tiles = Tiles.of(ANY_CHIP)
    for name in FORMATS:
        for tile in tiles.numbers if name == "bf16" else tiles.codes:
            kernels = (
                (linear_kernel, grouped_linear_kernel) if name in GROUPED else (linear_kernel,)
            )
            for kernel in kernels:
                facts = facts_of(compile_linear(name, tile, capability, kernel))
                yield {"kernel": kernel.__name__, "format": name, "tile": tile._asdict(), **facts}
    for name in OF_ONE_GROUP:
        own = tiles.codes[0]
        facts = facts_of(compile_linear(name, own, capability, linear_kernel, True))
        shown = {"format": name, "tile": own._asdict(), "is_odd": True}
        yield {"kernel": linear_kernel.__name__, **shown, **facts}
    for name in CACHES:
        for own in tiles.attention if name == "bf16" else tiles.attention[:1]:
            facts = facts_of(compile_attention(name, own, capability))
            yield {"kernel": "attention_kernel", "format": name, "tile": own._asdict(), **facts}
    for kernel, constants in SMALL_KERNELS:
        yield {"kernel": kernel.__name__, **facts_of(compile_small(kernel, constants, capability))}


if __name__ == "__main__":
    for each in compiled_kernels(int(sys.argv[1])):
        print(json.dumps(each), flush=True)
