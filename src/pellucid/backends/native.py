"""Typed access to the native extension: all of it. No other file imports `pellucid._native`."""

try:
    from pellucid._native import *  # noqa: F403
    from pellucid._native import __file__ as _file
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "pellucid's native extension is not built for this Python; run `make setup` in a checkout, "
        "or install the package with pip",
        name=error.name,
    ) from error

EXTENSION_FILE = _file
