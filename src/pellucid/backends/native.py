"""The native extension's typed face: the one place that imports `pellucid._native`."""

try:
    from pellucid._native import CacheLevel, CpuInfo, cpu_info
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "pellucid's native extension is not built for this Python; run `make setup` in a checkout, "
        "or install the package with pip",
        name=error.name,
    ) from error

__all__ = ["CacheLevel", "CpuInfo", "cpu_info"]
