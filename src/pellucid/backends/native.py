"""Typed access to the native extension: the only file that imports `pellucid._native`."""

try:
    from pellucid._native import (
        CacheLevel,
        CpuInfo,
        Draw,
        Indices,
        Kernels,
        KVCache,
        LinearWeights,
        Program,
        ProgramAttention,
        ProgramExperts,
        Roofline,
        RowSet,
        RowSummarizer,
        ThreadPool,
        WeightBuffer,
        WeightFile,
        WeightPacker,
        block_types,
        cpu_info,
        find_kernels,
        kernel_levels,
        kv_bytes_per_block,
        measure_roofline,
        merges_of_scores,
        pack_weights,
        plan_weights,
        quantize_weights,
        unpack_blocks,
    )
    from pellucid._native import (
        __file__ as EXTENSION_FILE,
    )
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "pellucid's native extension is not built for this Python; run `make setup` in a checkout, "
        "or install the package with pip",
        name=error.name,
    ) from error

__all__ = [
    "EXTENSION_FILE",
    "CacheLevel",
    "CpuInfo",
    "Draw",
    "Indices",
    "KVCache",
    "Kernels",
    "LinearWeights",
    "Program",
    "ProgramAttention",
    "ProgramExperts",
    "Roofline",
    "RowSet",
    "RowSummarizer",
    "ThreadPool",
    "WeightBuffer",
    "WeightFile",
    "WeightPacker",
    "block_types",
    "cpu_info",
    "find_kernels",
    "kernel_levels",
    "kv_bytes_per_block",
    "measure_roofline",
    "merges_of_scores",
    "pack_weights",
    "plan_weights",
    "quantize_weights",
    "unpack_blocks",
]
