"""Where there is no GPU, Triton's kernels run in its interpreter: this has to be said before one is imported."""

import importlib.util

if importlib.util.find_spec("triton") is not None:
    import support.interpreter  # noqa: F401
